"""The edges: commands and packages of one that is not there, and the core in a tree without their folders."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tfp_bfl import edges
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.errors import MissingDependency

ROOT = pathlib.Path(__file__).resolve().parents[1]
ABSENT = {name: edge._replace(package=f"tfp_bfl.no_{name}") for name, edge in edges.EDGES.items()}
# Of the core, a file of each layer.
TESTS = ("test_edges.py", "test_errors.py", "rules/test_equations.py", "app/test_config.py", "app/test_baselines.py")


def test_the_commands_of_an_edge_that_is_not_there_say_what_to_install(monkeypatch):
    monkeypatch.setattr(edges, "EDGES", ABSENT)
    commands = {command.name: command for command in edges.commands()}
    assert commands.keys() == {"bench", "deploy", "glm", "report", "runs", "survival", "sweep", "table-one", "tune"}
    for arguments in ([], ["run", "--help"], ["--output", "new"]):
        with pytest.raises(MissingDependency, match=r"^tfp-bfl deploy needs .*no_sites, .*pip install '\.\[sites\]'"):
            commands["deploy"].main(arguments, standalone_mode=False)
    assert list(edges.parts("baselines")) == []


def test_a_package_that_is_not_installed_is_one_sentence_and_status_2(monkeypatch, capsys):
    def refuse(*given):
        raise edges.missing("tfp-bfl doctor", "glm")

    monkeypatch.setattr("tfp_bfl.app.doctor.examine", refuse)
    assert run_command_line(["doctor"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tfp-bfl: tfp-bfl doctor needs tfp_bfl.glm, which is not installed; install it with pip ")


def test_runs_with_several_seeds_need_the_sweeps(monkeypatch, capsys):
    monkeypatch.setattr(edges, "EDGES", ABSENT)
    assert run_command_line(["run", "--seeds", "0..1"]) == 2
    assert capsys.readouterr().err.startswith("tfp-bfl: --seeds needs tfp_bfl.no_bench, which is not installed; ")


def test_a_package_of_an_edge_that_is_not_there(monkeypatch):
    monkeypatch.setattr(edges, "PACKAGES", {"glm": ("glm", "tfp_bfl.no_glm")})
    monkeypatch.setattr(edges, "EDGES", ABSENT)
    with pytest.raises(MissingDependency, match=r"^tfp_bfl.glm needs tfp_bfl.no_glm, which is not installed"):
        edges.package("glm")


def test_an_import_that_fails_within_an_edge_is_no_missing_edge(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    monkeypatch.setattr(edges.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        list(edges.parts("COMMANDS"))


@pytest.mark.deep(after="tests/test_edges.py")
def test_the_core_runs_in_a_tree_without_the_edges(tmp_path):
    """Every module of the core can be imported, some of its tests pass, and a run of one round has its report."""
    for name in ("tfp_bfl", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "images", "maths"))
    for name in ("setup.cfg", "pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, tmp_path)
    for edge in edges.EDGES.values():
        shutil.rmtree(tmp_path.joinpath(*edge.package.split(".")))
    for name in edges.PACKAGES:
        shutil.rmtree(tmp_path / "tfp_bfl" / name, ignore_errors=True)
    # An editable installation would find the edges where it was made from.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path = [x for x in sys.meta_path if '__editable__' not in getattr(x, '__module__', '')]\n"
    )

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    modules = sorted(
        ".".join(path.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__")
        for path in (tmp_path / "tfp_bfl").rglob("*.py")
        if path.name != "__main__.py" and "engines" not in path.parts and "keras_3" not in path.stem
    )
    assert len(modules) > 200
    imported = run("-c", f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)")
    assert imported.returncode == 0, imported.stderr[-2000:]
    tests = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not deep", *(f"tests/{x}" for x in TESTS))
    assert tests.returncode == 0, tests.stdout[-2000:]
    options = ("--dataset", "digits", "--model", "mlp", "--rounds", "1", "--engine", "local", "--output", "run")
    trained = run("-m", "tfp_bfl", "run", *options)
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "saved_model").is_dir()
    refused = run("-m", "tfp_bfl", "deploy", "demo")
    assert refused.returncode == 2 and refused.stderr.startswith("tfp-bfl: tfp-bfl deploy needs tfp_bfl.")
    assert len(refused.stderr.splitlines()) == 1
