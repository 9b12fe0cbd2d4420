"""Folders ("kits") of the server, the sites and the administrator: certificates from NVIDIA FLARE, access rules.

A folder of another role, or that `make_kits` did not write, raises `InvalidArgument`.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import yaml

from tfp_bfl.errors import Error, InvalidArgument, MissingDependency, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.sites.deployment.party_file import FILE, new_file

ADMIN, SERVER = "admin", "server"
_ROLE = "tfp_bfl.json"
_USER = "admin@federation.local"
# The organisation of the server and the administrator; each site is an organisation by its own name.
_PROJECT = "federation"
_NAME, _HOST = re.compile(r"[a-z][a-z0-9-]{0,30}"), re.compile(r"[A-Za-z0-9.-]{1,200}")
CLASSES = "tfp_bfl.sites.deployment.flare."
_BUILDERS = {
    "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
    "static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"},
    "cert.CertBuilder": {},
    "signature.SignatureBuilder": {},
}
_TRUST_SECONDS = 5.0
# The first bytes of HTTP/2, which a gRPC server answers. In TLS 1.3 the client considers the connection established
# before the server has verified the client's certificate; the answer shows that it has.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_KEY_OF = """
The folder startup holds a private key, which identifies the owner of this
folder. Send the folder over a confidential channel, and keep it confidential.
"""
_INSTRUCTIONS = {
    "party": """This folder belongs to the site {name} of the federation with the server {host}.

1. Install tfp_bfl with its extra "sites" on Python 3.11, 3.12 or 3.13.
2. Describe in local/{file} the data of the site and the runs that it accepts.
3. tfp-bfl deploy check FOLDER     checks the data and prints what would be sent
4. tfp-bfl deploy start FOLDER     takes part in runs, until Ctrl-C

FOLDER is the path of this folder. The site connects to the server and accepts
no connections. Its data, local/{file} and local/secret are never sent.
"""
    + _KEY_OF,
    SERVER: """This folder belongs to the server of a federation, {host}.

1. Install tfp_bfl with its extra "sites" on Python 3.11, 3.12 or 3.13.
2. Open the port that startup/fl_server.json names.
3. tfp-bfl deploy start FOLDER     serves runs, until Ctrl-C

FOLDER is the path of this folder. Its subfolder runs holds the runs.
"""
    + _KEY_OF,
    ADMIN: """This folder belongs to the administrator, who submits runs to the server {host}.

1. Install tfp_bfl with its extra "sites" on Python 3.11, 3.12 or 3.13.
2. tfp-bfl deploy run FOLDER --name first --model mlp --rounds 40 --output first

FOLDER is the path of this folder. The administrator starts no process: the
command submits a run, prints its progress and downloads its result.
tfp-bfl deploy run --help lists the options.
"""
    + _KEY_OF,
}


def check_installed() -> None:
    """Raise MissingDependency if NVIDIA FLARE is not installed."""
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "NVIDIA FLARE is not installed: in a clone of tfp_bfl, `make deployment` builds an environment with it, "
            ".venvs/deployment (docs/deployment.md)."
        ) from None


def make_kits(folder: str | pathlib.Path, host: str, port: int, sites: Sequence[str]) -> list[pathlib.Path]:
    """Write a folder for the server, one for each site and one for the administrator, and return them.

    Each folder has its certificate and private key. The folder `authority` holds the key of the certificate authority
    and stays with the person who runs this: a later call with the same `folder` adds sites. `host` and `port` are where
    the sites reach the server.
    """
    for name in sites:
        if not _NAME.fullmatch(name) or name in (ADMIN, SERVER, "authority", _PROJECT):
            raise InvalidArgument(f"{shown(name)} is no name of a site: use small letters, digits and -.")
    if len(set(sites)) != len(sites) or not sites:
        raise InvalidArgument("Name each site once, and at least one site.")
    if not _HOST.fullmatch(host) or host == _PROJECT:
        raise InvalidArgument(f"{shown(host)} is no host name: use letters, digits, - and dots.")
    folder = pathlib.Path(folder).resolve()
    wanted = [name for name in (SERVER, ADMIN) if not (folder / name).exists()] + list(sites)
    for name in sites:
        if (folder / name).exists():
            raise InvalidArgument(f"{path_name(folder / name)} exists already: nothing is overwritten.")
    check_installed()
    authority = folder / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    project = {
        "api_version": 3,
        "name": _PROJECT,
        "participants": [
            {"name": host, "type": "server", "org": _PROJECT, "fed_learn_port": port},
            *({"name": name, "type": "client", "org": name} for name in sites),
            {"name": _USER, "type": "admin", "org": _PROJECT, "role": "project_admin"},
        ],
        "builders": [{"path": f"nvflare.lighter.impl.{path}", "args": given} for path, given in _BUILDERS.items()],
    }
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        file = pathlib.Path(draft) / "project.yml"
        file.write_text(yaml.safe_dump(project), encoding="utf-8")
        work = pathlib.Path(draft) / "work"
        state = authority / "state"
        if state.exists():
            shutil.copytree(state, work / "federation" / "state")
        command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(file), "-w", str(work), "--force"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=draft)
        made = sorted((work / "federation").glob("prod_*"))
        if done.returncode or not made:
            raise Error(f"NVIDIA FLARE could not make the certificates: {(done.stderr or done.stdout).strip()[-500:]}.")
        if not state.exists():
            shutil.copytree(work / "federation" / "state", state)
        for name in wanted:
            there = {SERVER: host, ADMIN: _USER}.get(name, name)
            shutil.move(str(made[-1] / there), str(folder / name))
            _finish(folder / name, name, host)
    return [folder / name for name in wanted]


def _finish(kit: pathlib.Path, name: str, host: str) -> None:
    """Write instructions and access rules in place of FLARE's: jobs carry no code and run no shell commands."""
    kit.chmod(0o700)
    role = name if name in (ADMIN, SERVER) else "party"
    (kit / "readme.txt").write_text(_INSTRUCTIONS[role].format(name=name, host=host, file=FILE), encoding="utf-8")
    (kit / _ROLE).write_text(json.dumps({"role": role, "name": name, "host": host}) + "\n", encoding="utf-8")
    if role == ADMIN:
        return
    local = kit / "local"
    rules = json.loads((local / "authorization.json.default").read_text(encoding="utf-8"))
    for permissions in rules["permissions"].values():
        if isinstance(permissions, dict):
            permissions.update({"byoc": "none", "shell_commands": "none"})
    may = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
    rules["permissions"]["project_admin"] = {**dict.fromkeys(may, "any"), "byoc": "none", "shell_commands": "none"}
    (local / "authorization.json").write_text(json.dumps(rules, indent=1), encoding="utf-8")
    if role == "party":
        (local / FILE).write_text(new_file(), encoding="utf-8")


def role_of(kit: str | pathlib.Path) -> dict[str, str]:
    """Return the role, name and host of a folder."""
    try:
        role: dict[str, str] = json.loads((pathlib.Path(kit) / _ROLE).read_text(encoding="utf-8"))
        return role
    except (OSError, ValueError):
        raise InvalidArgument(f"{path_name(kit)} is no folder that tfp-bfl deploy init wrote.") from None


def check_admin(kit: str | pathlib.Path) -> None:
    """Refuse a folder that is not the administrator's."""
    if role_of(kit)["role"] != ADMIN:
        raise InvalidArgument(f"{path_name(kit)} is not the folder of the administrator: give admin of deploy init.")


def start(kit: str | pathlib.Path) -> None:
    """Run the server or the site in this process until it is ended, unless the server is of another federation.

    FLARE's resources are written for the present path of the folder.
    """
    role, kit = role_of(kit), pathlib.Path(kit).resolve()
    if role["role"] == ADMIN:
        raise InvalidArgument("An administrator starts no process: tfp-bfl deploy run submits runs.")
    local = kit / "local"
    # One class that jobs may name, storage in the kit, and no streaming of logs.
    text = (local / "resources.json.default").read_text(encoding="utf-8").replace("/tmp/nvflare/", f"{kit}/store/")
    resources = {**json.loads(text), "allow_log_streaming": False}
    resources["class_allow_list"] = [CLASSES + ("Server" if role["role"] == SERVER else "Site")]
    without = ("site_log_streamer", "log_receiver")
    resources["components"] = [part for part in resources["components"] if part["id"] not in without]
    (local / "resources.json").write_text(json.dumps(resources, indent=1), "utf-8")
    (kit / "transfer").mkdir(exist_ok=True)
    kind, uid = ("server", []) if role["role"] == SERVER else ("client", [f"uid={role['name']}"])
    options = ["secure_train=true", *uid, f"org={'federation' if kind == 'server' else role['name']}"]
    module = f"nvflare.private.fed.app.{kind}.{kind}_train"
    command = [sys.executable, "-u", "-m", module, "-m", str(kit), "-s", f"fed_{kind}.json"]
    check_installed()
    settings = kit / "startup" / "fed_client.json"
    if settings.exists():
        (server,) = json.loads(settings.read_text(encoding="utf-8"))["servers"]
        host, _, port = server["service"]["target"].rpartition(":")
        if why := trust_failure(settings.parent, host, int(port)):
            raise InvalidArgument(why)
    os.environ.setdefault("MALLOC_ARENA_MAX", "4")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.chdir(kit)
    os.execv(command[0], [*command, "--set", *options, "config_folder=config"])


def trust_failure(startup: pathlib.Path, host: str, port: int) -> str:
    """Return the reason why a server and a folder of certificates do not trust each other; "" if none is known.

    FLARE reports the server of another federation as missing. The server need not run.
    """
    server = f"The server at {host}:{port}"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.check_hostname = False  # FLARE checks the name, which may differ from the host's.
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.set_alpn_protocols(["h2"])
    connected, answered = False, b""
    try:
        with socket.create_connection((host, port), _TRUST_SECONDS) as plain, context.wrap_socket(plain) as connection:
            connected = True
            connection.sendall(_HTTP2)
            answered = connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return (
            f"{server} belongs to another federation than this folder ({error.verify_message}): use a folder from the "
            "authority of the server."
        )
    except ssl.SSLError as error:
        if not connected and "ALERT" not in str(error.reason):
            return f"{server} does not speak TLS like a server of tfp-bfl: is it the port of another program?"
    except OSError:
        if not connected:
            return ""
    if answered:
        return ""
    return (
        f"{server} rejects this folder's certificate, which is from another authority or no longer valid: use a folder "
        "from the authority of the server."
    )
