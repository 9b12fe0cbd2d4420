"""Files of the repository: what names them names files that exist; containers, workflows and the package are sound."""

import ast
import re
import runpy
import types
from pathlib import Path

import pytest
import setuptools
import yaml

import tfp_bfl as bfl
from tfp_bfl import errors
from tfp_bfl.app.cli import cli

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"requirements/[a-z0-9]+\.(?:in|lock|txt)")
FILES = [
    ".ci/run",
    "Dockerfile",
    "CONTRIBUTING.md",
    "Makefile",
    "docs/deployment.md",
    "docs/security.md",
    "docs/troubleshooting.md",
    "tests/environments.sh",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "requirements").iterdir()),
]


@pytest.mark.parametrize("name", FILES)
def test_named_lock_files_exist(name):
    named = set(NAMED.findall((ROOT / name).read_text()))
    assert {path for path in named if not (ROOT / path).is_file()} == set()
    assert named or name == "requirements/overrides.txt"


def test_the_error_of_a_missing_federation_names_a_lock():
    (path,) = NAMED.findall(errors.INSTALL_TFF_COMMAND)
    assert (ROOT / path).is_file()


def lines_of(name):
    return (ROOT / name).read_text().splitlines()


def test_the_image_is_pinned_not_root_and_copies_what_is_there():
    lines = [line.split() for line in lines_of("Dockerfile") if line and line[0] not in "# "]
    stages = [line for line in lines if line[0] == "FROM"]
    assert [line[1] for line in stages] == ["python:3.12-slim"] * 2
    (lock,) = NAMED.findall(" ".join(word for line in lines if line[0] == "ARG" for word in line))
    assert (ROOT / lock).is_file()
    installs = [line for line in lines if line[0] == "RUN" and "install" in line]
    assert all("--no-deps" in line for line in installs)
    assert "--require-hashes" in installs[0] and installs[0][-1] == '"$LOCK"' and installs[-1][-1] == "."
    last = lines[lines.index(stages[1]) :]
    (user,) = (line[1] for line in last if line[0] == "USER")
    assert user.partition(":")[0].isdigit() and int(user.partition(":")[0]) > 0
    copied = [name for line in lines if line[0] == "COPY" and "--from=build" not in line for name in line[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)
    # What setup.py, setup.cfg and pyproject.toml read is in the image, and in what docker sends to build it.
    allowed = {line[1:] for line in lines_of(".dockerignore") if line.startswith("!")}
    assert {*copied} == allowed >= {"setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"}


def test_containers_of_a_federation_are_hardened_and_run_commands_that_there_are():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "north", "south", "west", "admin"}
    for name, service in services.items():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and service["tmpfs"] == ["/tmp"]
        assert service["security_opt"] == ["no-new-privileges:true"] and "ports" not in service
        assert re.fullmatch(r"\$\{USER_ID:-[1-9]\d*\}:\$\{GROUP_ID:-[1-9]\d*\}", service["user"])
        mounts = [volume.split(":") for volume in service["volumes"]]
        assert [mode for source, _, *mode in mounts if source == f"./kits/{name}/startup"] == [["ro"]]
        assert service["command"][:2] == ["deploy", "run" if name == "admin" else "start"]
    assert {"run", "start"} <= cli.commands["deploy"].commands.keys()


def test_workflows_forms_and_policies_name_what_there_is():
    workflows = [yaml.safe_load(path.read_text())["jobs"].values() for path in (ROOT / ".github/workflows").iterdir()]
    commands = [step["run"] for jobs in workflows for job in jobs for step in job["steps"] if "run" in step]
    targets = {line.partition(":")[0] for line in lines_of("Makefile")} | {".venv/.installed"}
    assert {command.split()[1] for command in commands if command.startswith("make ")} <= targets
    paths = [word for command in commands for word in command.split() if word.startswith("tests/")]
    assert paths and all((ROOT / path).exists() for path in paths)
    assert {"python -m build", "python -m twine check --strict dist/*"} < {*commands}
    for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir():
        form = yaml.safe_load(path.read_text())
        assert form["name"] and form["description"] and all(field["type"] for field in form["body"])
    (version,) = re.findall(r"^version = (\d+\.\d+)", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert f"| {version} | yes |" in lines_of("SECURITY.md")


def test_the_description_of_a_package_has_no_links_that_lead_nowhere(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **named: given.update(named))
    runpy.run_path(str(ROOT / "setup.py"))
    text = given["long_description"]
    assert text.startswith("# tfp_bfl\n") and "## Licence" in text and "docs/images" not in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []


def missing(node):
    """Return the name after `bfl.` that a chain of attributes has and the library lacks; None for others."""
    parts, found = [], bfl
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    for part in parts if isinstance(node, ast.Name) and node.id == "bfl" else ():
        if not isinstance(found, types.ModuleType):
            return None
        if not hasattr(found, part):
            return ".".join(parts)
        found = getattr(found, part)
    return None


def test_studies_and_benchmarks_name_what_there_is():
    """Most of their programs run only in the longest tests."""
    files = [path for folder in ("experiments", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    nodes = [(path.name, node) for path in files for node in ast.walk(ast.parse(path.read_text()))]
    assert len(files) > 50
    assert {(name, absent) for name, node in nodes if (absent := missing(node))} == set()
    assert missing(ast.parse("bfl.training.nothing(1)").body[0].value.func) == "training.nothing"
