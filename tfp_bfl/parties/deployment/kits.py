"""Folders from which a server, sites and an administrator start: certificates by NVIDIA FLARE, rules of ours."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Union

import yaml

from tfp_bfl.errors import Error, InvalidArgument, MissingDependency, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.parties.deployment.site import FILE
from tfp_bfl.parties.deployment.strangers import strangers

ADMIN, SERVER = "admin", "server"
_ROLE = "tfp_bfl.json"
_USER = "admin@federation.local"
# The organisation of the server and the administrator: no party is of it.
_PROJECT = "federation"
_NAME, _HOST = re.compile(r"[a-z][a-z0-9-]{0,30}"), re.compile(r"[A-Za-z0-9.-]{1,200}")
CLASSES = "tfp_bfl.parties.deployment.flare."
_TEMPLATE = """# The data of this site, and the runs that it takes part in. Sent to nobody. See docs/deployment.md.
data: FILL_IN.csv        # a table (.csv, .parquet), an archive (.npz) or a folder of images, from here
label: label             # the column of the labels
# drop: [patient_id]      # columns that are left out
# separator: ";"         # of a .csv file; that of its header if not given
# test_data: test.csv    # to score models on; a fifth of the data if not given
# algorithms: [variational, partitioned_vi]    # all, if not given
# models: [mlp, lenet]
# rules: [mean_precision_average]
# max_rounds: 1000
# min_parties: 2
# share_scores: true     # sums of a model's scores on the test data
# allow_single_posteriors: true   # false: only rules that need only the sum of the sites' messages
# only_secure_sums: false   # true: only runs in which the messages are masked
# max_example_epsilon: 8    # epsilon of one example over all runs; then only runs with --example-clip-norm
"""
_README = "readme.txt"
_KEY_OF = """
The folder startup holds a private key, by which this folder's owner is known to
the others. Pass the folder on by a way that nobody else reads, and keep it so.
"""
_INSTRUCTIONS = {
    "party": """This folder belongs to the site {name}, whose server is {host}.

1. Install tfp_bfl with its extra "deployment" on Python 3.11.
2. Say in local/{file} which data you have and what you take part in.
3. tfp-bfl deploy check FOLDER     reads the data and prints what would be sent
4. tfp-bfl deploy start FOLDER     takes part in runs, until Ctrl-C

FOLDER is the path of this folder. The site connects to the server and accepts
no connection. Its data, local/{file} and local/secret are sent to nobody.
"""
    + _KEY_OF,
    SERVER: """This folder belongs to the server of a federation, {host}.

1. Install tfp_bfl with its extra "deployment" on Python 3.11.
2. Open the port that fl_server.json in the folder startup names.
3. tfp-bfl deploy start FOLDER     serves runs, until Ctrl-C

FOLDER is the path of this folder. Runs are kept in its folder runs.
"""
    + _KEY_OF,
    ADMIN: """This folder belongs to whoever submits runs to the server {host}.

1. Install tfp_bfl with its extra "deployment" on Python 3.11.
2. tfp-bfl deploy run FOLDER --name first --model mlp --rounds 40 --output first

FOLDER is the path of this folder. Nothing is started here: the command submits
a run, follows it and fetches its result. tfp-bfl deploy run --help lists the
options.
"""
    + _KEY_OF,
}


def check_installed() -> None:
    """Raise MissingDependency where NVIDIA FLARE is not installed."""
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "NVIDIA FLARE is not installed: in a clone of tfp_bfl, `make deployment` builds an environment with it, "
            ".venvs/deployment (docs/deployment.md)."
        ) from None


def make_kits(folder: Union[str, pathlib.Path], host: str, port: int, parties: Sequence[str]) -> list[pathlib.Path]:
    """Write a folder for the server, one for each site and one for the administrator, and return them.

    Each has the certificate and the key of its own; the folder `authority` has the authority's key, and stays with
    whoever made it: with the same folder, more sites can be added.

    Args:
      folder: new, or one of before, for more sites.
      host: under which sites reach the server.
      port: that it listens on.
      parties: their names.

    Raises:
      InvalidArgument: a name or the host is none, or a site's folder is there already.
      MissingDependency: NVIDIA FLARE is not installed.
    """
    for name in parties:
        if not _NAME.fullmatch(name) or name in (ADMIN, SERVER, "authority", _PROJECT):
            raise InvalidArgument(f"{shown(name)} is no name of a site: use small letters, digits and -.")
    if len(set(parties)) != len(parties) or not parties:
        raise InvalidArgument("Name each site once, and at least one.")
    if not _HOST.fullmatch(host) or host == _PROJECT:
        raise InvalidArgument(f"{shown(host)} is no host's name.")
    folder = pathlib.Path(folder).resolve()
    wanted = [name for name in (SERVER, ADMIN) if not (folder / name).exists()] + list(parties)
    for name in parties:
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
            *({"name": name, "type": "client", "org": name} for name in parties),
            {"name": _USER, "type": "admin", "org": _PROJECT, "role": "project_admin"},
        ],
        "builders": [
            {"path": f"nvflare.lighter.impl.{path}", "args": arguments}
            for path, arguments in {
                "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
                "static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"},
                "cert.CertBuilder": {},
                "signature.SignatureBuilder": {},
            }.items()
        ],
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
    """Our rules and instructions in the place of FLARE's: two classes, no code, no logs sent."""
    kit.chmod(0o700)
    role = name if name in (ADMIN, SERVER) else "party"
    (kit / _README).write_text(_INSTRUCTIONS[role].format(name=name, host=host, file=FILE), encoding="utf-8")
    (kit / _ROLE).write_text(json.dumps({"role": role, "name": name, "host": host}) + "\n", encoding="utf-8")
    if role == ADMIN:
        return
    local = kit / "local"
    rules = json.loads((local / "authorization.json.default").read_text(encoding="utf-8"))
    for permissions in rules["permissions"].values():
        if isinstance(permissions, dict):
            permissions.update({"byoc": "none", "shell_commands": "none"})
    rules["permissions"]["project_admin"] = {
        **dict.fromkeys(("submit_job", "clone_job", "manage_job", "download_job", "view", "operate"), "any"),
        **{"byoc": "none", "shell_commands": "none"},
    }
    (local / "authorization.json").write_text(json.dumps(rules, indent=1), encoding="utf-8")
    if role == "party":
        (local / FILE).write_text(_TEMPLATE, encoding="utf-8")


def role_of(kit: Union[str, pathlib.Path]) -> dict[str, str]:
    """Return the role, name and host of a folder.

    Raises:
      InvalidArgument: it is none of `make_kits`.
    """
    try:
        found: dict[str, str] = json.loads((pathlib.Path(kit) / _ROLE).read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        raise InvalidArgument(f"{path_name(kit)} is no folder that tfp-bfl deploy init wrote.") from None


def start_command(kit: Union[str, pathlib.Path]) -> list[str]:
    """Return the command that runs the server or a site, after its resources were written for the place where it is.

    Raises:
      InvalidArgument: the folder is neither a server's nor a site's.
    """
    role, kit = role_of(kit), pathlib.Path(kit).resolve()
    if role["role"] == ADMIN:
        raise InvalidArgument("An administrator starts nothing: tfp-bfl deploy run submits runs.")
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    (local / "resources.json").write_text(json.dumps(_resources(resources, role["role"], kit), indent=1), "utf-8")
    (kit / "transfer").mkdir(exist_ok=True)
    kind, uid = ("server", []) if role["role"] == SERVER else ("client", [f"uid={role['name']}"])
    options = ["secure_train=true", *uid, f"org={'federation' if kind == 'server' else role['name']}"]
    module = f"nvflare.private.fed.app.{kind}.{kind}_train"
    return [
        *(sys.executable, "-u", "-m", module, "-m", str(kit), "-s", f"fed_{kind}.json"),
        *("--set", *options, "config_folder=config"),
    ]


def _resources(resources: dict[str, Any], role: str, kit: pathlib.Path) -> dict[str, Any]:
    """Return FLARE's resources: one class that jobs may name, storage in the kit, and no logs sent."""
    resources["class_allow_list"] = [CLASSES + ("Server" if role == SERVER else "Site")]
    resources["allow_log_streaming"] = False
    resources["components"] = [
        part for part in resources["components"] if part["id"] not in ("site_log_streamer", "log_receiver")
    ]
    text = json.dumps(resources).replace("/tmp/nvflare/", f"{kit}/store/")
    found: dict[str, Any] = json.loads(text)
    return found


def start(kit: Union[str, pathlib.Path]) -> None:
    """Run the server or the site in this process, until it is ended.

    Raises:
      InvalidArgument: the folder is neither's, or of another federation than the server that is there.
      MissingDependency: NVIDIA FLARE is not installed.
    """
    command = start_command(kit)
    check_installed()
    settings = pathlib.Path(kit) / "startup" / "fed_client.json"
    if settings.exists():
        (server,) = json.loads(settings.read_text(encoding="utf-8"))["servers"]
        host, _, port = server["service"]["target"].rpartition(":")
        if why := strangers(settings.parent, host, int(port)):
            raise InvalidArgument(why)
    os.environ.setdefault("MALLOC_ARENA_MAX", "4")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.chdir(kit)
    os.execv(command[0], command)
