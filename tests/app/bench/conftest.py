"""Trainings that cost nothing."""

import pytest

from tfp_bfl.app.bench import cell, one_method, program
from tfp_bfl.errors import Error


@pytest.fixture
def stand_in(monkeypatch):
    """Trainings that cost nothing: the score follows from the options; `tasks` are those that were run."""
    tasks = []

    def trial(task):
        tasks.append(("trial", task))
        return {"nll": abs((task.config.learning_rate or 0.5) - 0.04), "seconds": 2.0}

    def final(task):
        tasks.append(("final", task))
        if task.config.rounds == 3 and task.config.algorithm == "variational":
            raise Error("The training diverged.")
        scores = {"accuracy": 0.5, "nll": task.config.learning_rate or 1.0}
        return {"about": {"dataset": "digits"}, "scores": scores, "cost": {"seconds": 1.0}, "trajectory": []}

    # To collect the garbage of all tests before would take most of the time.
    for module in (program, one_method):
        monkeypatch.setattr(module, "forget_models", lambda: None)
    monkeypatch.setattr(cell, "run_trial", trial)
    monkeypatch.setattr(cell, "run_final", final)
    return tasks
