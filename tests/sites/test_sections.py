"""The report of a federation of sites."""

import numpy as np

from tests.plots.test_report import headings, page, run, table
from tfp_bfl import evaluation
from tfp_bfl.plots import tables
from tfp_bfl.sites.deployment.results import sections


def federation(**parties):
    rounds = [{"round": 1, "accuracy": 0.9, "faulty_clients": {"1": "NaN mean"}}]
    none = {"probabilities": None, "labels": np.zeros(0, np.int32), "uncertainties": {}, "features": None}
    own = list(sections(parties, rounds, {}))
    return run(**none, label_counts=None, rounds=rounds, sections=own)


def test_a_federation_has_the_sums_of_its_sites_and_no_example(tmp_path):
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]], np.float32)
    entropy = np.array([0.2, 0.9, 0.7])
    sums = evaluation.score_sums(
        evaluation.Evaluation({}, probabilities, *[entropy] * 2, *[entropy / 1e4] * 2), [0, 1, 0]
    )
    read = page(tmp_path / "page.html", federation(north=sums, south=None))
    assert {"Learning curve", "Error rate and coverage", "Reliability diagram", "Sites"} <= set(headings(read))
    assert "Retention curves" not in headings(read)
    assert table(read, "north")[:14] == [
        *("north", "3", "0.667", "0.607", "0.400", "6e-05", "0"),
        *("south", *[tables.DASH] * 5, "1"),
    ]
    without = page(tmp_path / "none.html", federation(north=None))
    assert "Sites" in headings(without) and "Reliability diagram" not in headings(without)
