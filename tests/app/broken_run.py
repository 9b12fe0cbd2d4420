"""A run that breaks off in an evaluation, and is resumed."""

import pytest

import tfp_bfl as bfl
from tests.units import in_units
from tfp_bfl.app.cli import run_command_line

from .test_resume import assert_same_run


def assert_resumes_to(whole, folder, arguments, evaluations, monkeypatch):
    """The run of these arguments, interrupted after so many evaluations, ends as the one in the folder `whole`."""
    evaluate, calls = bfl.evaluation.evaluate, iter(range(1, 99))

    def until_then(*args, **options):
        assert next(calls) <= evaluations, "this is expected"
        return evaluate(*args, **options)

    monkeypatch.setattr(bfl.evaluation, "evaluate", until_then)
    with pytest.raises(AssertionError, match="this is expected"):
        run_command_line([*arguments, "--output", str(folder)])
    monkeypatch.undo()
    assert run_command_line(["run", "--resume", str(folder)]) == 0
    assert_same_run(folder, whole)


def exported(folder, num_samples):
    """Probabilities of the SavedModel in a run's folder on the test set of breast_cancer."""
    test = bfl.data.load("breast_cancer", split="test")
    loaded = bfl.export.load(folder / "saved_model")
    return loaded.predict(in_units(test), num_samples=num_samples, seed=0)["probabilities"]
