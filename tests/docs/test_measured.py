"""Numbers of the documentation are those that were measured, and are measured again."""

import importlib.util
import json
import pathlib

import pytest

import tfp_bfl as bfl

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("measure", DOCS / "measure.py")
measure = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(measure)
FOUND = json.loads(measure.MEASURED.read_text())
_spec = importlib.util.spec_from_file_location("kept", DOCS.parent / "benchmarks" / "kept.py")
kept = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kept)


def test_everything_is_measured():
    assert set(FOUND) == {*measure.RUNS, "promises", "regression, controls"}


@pytest.mark.parametrize("page", [page for page in measure.pages() if "<!-- measured:" in page.read_text()], ids=str)
def test_pages_say_what_was_measured(page):
    text = page.read_text()
    assert measure.written(text, FOUND) == text, "nox -s measured, or docs/measure.py write"
    assert text.count("<!-- measured:") == text.count("<!-- /measured -->") == len(measure.MARK.findall(text))


def test_every_block_is_on_a_page():
    texts = "".join(page.read_text() for page in measure.pages())
    assert {match[0] for match in measure.MARK.findall(texts)} == set(measure.BLOCKS)


def test_what_is_measured_now_leaves_the_rest_and_is_on_the_page(tmp_path, monkeypatch):
    before = {"local": {"seconds": 0.5, "bytes": 0}, "ray": {"seconds": 1.0, "bytes": 5000}}
    (tmp_path / "engines.json").write_text(json.dumps(before))
    where = {**kept.machine(), "cores": 3, "load": 0.5}
    kept.merge(tmp_path / "engines.json", {"ray": {"seconds": 0.25, "bytes": 7000.0}}, where)
    found = json.loads((tmp_path / "engines.json").read_text())
    assert found["local"] == before["local"] and found["ray"]["machine"] == where
    monkeypatch.setattr(measure, "BENCHMARKS", tmp_path)
    local, tff, ray, _ = measure.engines({}).splitlines()[2:]
    assert "| 0.5 | 0 | machine and day not kept |" in local and "not measured" in tff
    assert ray.endswith(f"| 0.25 | 7 | {found['ray']['measured'][:10]}, 3 cores, load 0.5 before |")


def test_the_controls_of_regression():
    constant, linear = measure.controls(*(bfl.data.load("diabetes", split) for split in ("train", "test")))
    assert constant == pytest.approx(FOUND["regression, controls"]["constant"], rel=1e-4)
    assert linear == pytest.approx(FOUND["regression, controls"]["linear"], rel=1e-4)


@pytest.mark.deep(after="tests/app/test_regression.py")
@pytest.mark.parametrize(
    "name", ["regression 0", *(pytest.param(name, marks=pytest.mark.long) for name in ("few", "demo"))]
)
def test_a_run_still_has_the_numbers_that_were_measured(name, tmp_path):
    """Sums in another order, on other processors, change some digits."""
    summary = bfl.run(tmp_path / "run", **measure.RUNS[name]).summary
    for score, value in FOUND[name]["summary"].items():
        if score in ("accuracy", "rmse", "test_nll", "ece", "coverage"):
            assert summary[score] == pytest.approx(value, rel=0.03, abs=0.015), score
