"""Trainings that cost nothing."""

import pytest

from tfp_bfl.app.one_run.pipeline import Finished
from tfp_bfl.bench import cell, cells
from tfp_bfl.errors import Error


@pytest.fixture
def stand_in(monkeypatch):
    """Trainings that cost nothing: the score follows from the options; `tasks` are those that were run."""
    tasks = []

    def trial(task):
        tasks.append(("trial", task))
        return Finished({}, {}, {"test_nll": abs((task.config.learning_rate or 0.5) - 0.04)}, {"seconds": 2.0})

    def final(task):
        tasks.append(("final", task))
        if task.config.rounds == 3 and task.config.algorithm == "default":
            raise Error("The training diverged.")
        scores = {"accuracy": 0.5, "test_nll": task.config.learning_rate or 1.0}
        return Finished({}, {"dataset": "digits"}, scores, {"seconds": 1.0})

    # To collect the garbage of all tests before would take most of the time.
    monkeypatch.setattr(cells, "forget_models", lambda: None)
    monkeypatch.setattr(cell, "run_trial", trial)
    monkeypatch.setattr(cell, "run_final", final)
    return tasks
