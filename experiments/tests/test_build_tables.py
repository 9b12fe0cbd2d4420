"""Tables and figures of the studies follow from the records."""

import shutil
import subprocess

import pytest

from experiments import build_tables

STUDY = "privacy"
RESULTS = f"experiments/{STUDY}/results"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with the results of one study, in which nothing is built."""
    (tmp_path / RESULTS).mkdir(parents=True)
    shutil.copy(build_tables.results_of(STUDY) / "records.jsonl", tmp_path / RESULTS)
    monkeypatch.setattr(build_tables, "ROOT", tmp_path)
    monkeypatch.setattr(build_tables, "HERE", tmp_path / "experiments")
    monkeypatch.setattr(build_tables, "STAMPS", tmp_path / "build")
    monkeypatch.setattr(build_tables, "STUDIES", {STUDY: build_tables.STUDIES[STUDY]})
    return tmp_path


def test_a_study_is_built_once(root, capsys, monkeypatch):
    build_tables.main()
    assert capsys.readouterr().out.startswith("privacy: tables and figures built in ")
    table = (root / RESULTS / "costs_5_parties.md").read_text()
    assert table.startswith("|") and (root / RESULTS / "costs_5_parties.csv").exists()
    monkeypatch.setattr(build_tables, "build_study", None)
    build_tables.main()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("change", ["records", "a missing output", "the library", "the study"])
def test_a_change_builds_the_study_again(root, change):
    build_tables.main()
    assert build_tables.is_built(STUDY)
    if change == "records":
        records = root / RESULTS / "records.jsonl"
        records.write_text("".join(sorted(records.read_text().splitlines(keepends=True), reverse=True)))
    elif change == "a missing output":
        (root / RESULTS / "costs_5_parties.csv").unlink()
    else:
        path = root / {"the library": "tfp_bfl/plots/style.py", "the study": f"experiments/{STUDY}/tables.py"}[change]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert not build_tables.is_built(STUDY)
    build_tables.main()
    assert build_tables.is_built(STUDY)


def test_the_records_stay_as_they_are(root):
    path = root / RESULTS / "records.jsonl"
    before = path.read_bytes(), path.stat().st_mtime_ns
    build_tables.main()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def tracked(folder):
    found = subprocess.run(["git", "ls-files", folder], cwd=build_tables.ROOT, capture_output=True, text=True)
    if found.returncode or not found.stdout:
        pytest.skip("needs the repository")
    return found.stdout.splitlines()


def test_every_file_of_records_is_built():
    paths = {path for path in tracked("experiments") if path.endswith("/records.jsonl")}
    built = set()
    for study, calls in build_tables.STUDIES.items():
        for folder, arguments in calls:
            sizes = {"aggregation": arguments[-1:], "fl_swag": arguments[-1:], "kernel_posterior": ("small",)}
            parts = (folder, *sizes.get(study, ()))
            built.add("/".join(part for part in ("experiments", study, "results", *parts, "records.jsonl") if part))
    assert paths <= built


def test_the_repository_holds_no_result_that_can_be_built():
    results = [path for path in tracked("experiments") if "/results/" in path]
    assert results and [path for path in results if not path.endswith("/records.jsonl")] == []
