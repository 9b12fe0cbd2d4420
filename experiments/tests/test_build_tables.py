"""Tables and figures of the studies follow from the records; what records cannot give stays in the repository."""

import shutil
import subprocess

import pytest

from experiments import WITHOUT_RECORDS, build_tables

STUDY = "privacy"
RESULTS = f"experiments/{STUDY}/results"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with the results of one study, in which nothing is built."""
    tracked = build_tables.results_of(STUDY)
    results = tmp_path / RESULTS
    shutil.copytree(tracked / WITHOUT_RECORDS, results / WITHOUT_RECORDS, ignore=shutil.ignore_patterns("*.md"))
    shutil.copy(tracked / "records.jsonl", results)
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


def test_a_table_without_records_is_shown_as_its_csv_has_it(root):
    build_tables.main()
    path = root / RESULTS / WITHOUT_RECORDS / "100_clients.csv"
    lines = path.with_suffix(".md").read_text().splitlines()
    head, *rows = path.read_text().splitlines()
    assert lines[0] == "| " + head.replace(",", " | ") + " |" and len(lines) == len(rows) + 2


def test_a_table_for_programs_gets_no_page(root):
    (root / RESULTS / WITHOUT_RECORDS / "raw.csv").write_text("name,score\na,1\n")
    build_tables.main()
    assert not (root / RESULTS / WITHOUT_RECORDS / "raw.md").exists()


@pytest.mark.parametrize(
    "change", ["records", "a table without records", "a missing output", "the library", "the study"]
)
def test_a_change_builds_the_study_again(root, change):
    build_tables.main()
    assert build_tables.is_built(STUDY)
    if change == "records":
        records = root / RESULTS / "records.jsonl"
        records.write_text("".join(sorted(records.read_text().splitlines(keepends=True), reverse=True)))
    elif change == "a table without records":
        (root / RESULTS / WITHOUT_RECORDS / "new.csv").write_text("a,b\n1,2\n")
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
    built = [path for path in results if not path.endswith("/records.jsonl") and f"/{WITHOUT_RECORDS}/" not in path]
    pages = [path for path in results if path.endswith(".md") and not path.endswith("/README.md")]
    assert results and built == pages == []
