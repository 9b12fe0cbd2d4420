"""Runs that break off in an evaluation, are resumed, and end as if they had never been interrupted."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import call, lines_of, summary_of
from tests.units import in_units

CLOCK = ("train_seconds", "seconds", "ms_per_step", "worker_mb", "process_mb")


def rows(folder):
    return [{k: x for k, x in row.items() if "seconds" not in k} for row in lines_of(folder / "metrics.jsonl")]


def summary(folder):
    return {name: x for name, x in summary_of(folder).items() if name not in CLOCK}


def assert_same_run(folder, whole):
    assert rows(folder) == rows(whole) and summary(folder) == summary(whole)
    with np.load(folder / "predictions.npz") as a, np.load(whole / "predictions.npz") as b:
        assert all(a[name].tobytes() == b[name].tobytes() for name in b.files)
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


def assert_resumes_to(whole, folder, arguments, evaluations, monkeypatch):
    """The run of these arguments, interrupted after so many evaluations, ends as the one in the folder `whole`."""
    evaluate, calls = bfl.evaluation.evaluate, iter(range(1, 99))

    def until_then(*args, **options):
        assert next(calls) <= evaluations, "this is expected"
        return evaluate(*args, **options)

    monkeypatch.setattr(bfl.evaluation, "evaluate", until_then)
    with pytest.raises(AssertionError, match="this is expected"):
        call(*arguments, "--output", folder)
    monkeypatch.undo()
    assert call("run", "--resume", folder) == 0
    assert_same_run(folder, whole)


def exported(folder, num_samples):
    test = bfl.data.load("breast_cancer", split="test")
    loaded = bfl.export.load(folder / "saved_model")
    return loaded.predict(in_units(test), num_samples=num_samples, seed=0)["probabilities"]
