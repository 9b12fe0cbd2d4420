"""What a run's summary is made of."""

from importlib import metadata

import pytest

import tfp_bfl as bfl
from tfp_bfl.app.one_run import pipeline, run
from tfp_bfl.app.options.config import make_config

SOURCE = bfl.data.load("breast_cancer")


@pytest.mark.parametrize(("cohort", "expected"), [(None, 250.0), (2, 500.0)])
def test_ms_per_step_is_the_median_of_the_later_rounds(cohort, expected):
    """Four clients of 4, 4, 2 and 2 batches: 12 steps, twice; a round of two clients is taken to be half of them."""
    clients = bfl.data.Clients(SOURCE, [range(0, 32), range(32, 57), range(57, 73), range(73, 82)])
    config = make_config(None, {"clients": 4, "cohort_size": cohort, "batch_size": 8, "local_epochs": 2})
    rows = [{"train_seconds": seconds} for seconds in (99.0, 6.0, 1.0, 7.0)]
    assert run._ms_per_step(config, clients, rows) == pytest.approx(expected)
    assert run._ms_per_step(config, clients, rows[:1]) == pytest.approx(99 / 6 * expected)


def test_versions_are_of_what_is_installed(monkeypatch):
    def version(name):
        if name == "tensorflow_federated":
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(pipeline.metadata, "version", version)
    assert pipeline.versions() == {name: "1" for name in pipeline.VERSIONED if name != "tensorflow_federated"}
