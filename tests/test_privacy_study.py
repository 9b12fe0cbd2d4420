"""The study of differential privacy: its data, its cells and its tables."""

import numpy as np
import pytest

import tfp_bfl as bfl
from experiments.privacy import run


def test_every_cell_has_a_name_of_its_own():
    names = [run.cell_name(options) for options in run.cells()]
    assert len(set(names)) == len(names) == 3 * len(run.METHODS) * len(run.NOISES) * len(run.SEEDS)


def test_images_are_tables_of_the_means_of_their_squares():
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)
    source = run.pooled(bfl.data.Source("noise", "train", images, np.int32([0, 1, 2])), 7)
    assert source.features.shape == (3, 49)
    first = images[1, 4:8, 8:12].mean() / 255
    np.testing.assert_allclose(source.features[1, 7 + 2], (first - 0.13) / 0.3, rtol=1e-5)


def test_the_table_has_a_row_for_each_method_and_noise():
    options = next(o for o in run.cells() if o["noise"] == 1.0)
    scores = {**dict.fromkeys(run.COLUMNS.values(), 0.5), "epsilon": 2.97, "clipped": 0.25}
    summaries = [{"options": {**options, "seed": seed}, **scores} for seed in (0, 1)]
    head, row = run.table([*summaries, {"options": {**options, "seed": 2}, "failed": "because"}], options["federation"])
    assert dict(zip(head, row)) == {
        **{"method": options["method"], "noise": "1.0", "epsilon": "2.97", "clipped": "25%", "seeds": "2"},
        **dict.fromkeys(run.COLUMNS, "0.500 +- 0.000"),
    }


@pytest.mark.cpu_seconds(60)
@pytest.mark.parametrize("federation", ["1,000 clients, 50 a round", run.PARTIES])
@pytest.mark.parametrize("noise", [None, 1.0])
def test_a_small_cell_has_a_score_and_its_epsilon(federation, noise, monkeypatch):
    digits = bfl.data.load("digits")
    table = bfl.data.Source("digits", "train", np.float32(digits.features).reshape(-1, 64), digits.labels)
    monkeypatch.setattr(run, "data_of", lambda dataset, size: (table, table))
    if noise is not None:
        pytest.importorskip("dp_accounting")
    options = next(o for o in run.cells() if o["federation"] == federation)
    small = {
        "clients": 10,
        "cohort_size": options["cohort_size"] and 3,
        "examples_per_client": 20,
        "rounds": 2,
        "local_epochs": 1,
    }
    found = run.score({**options, **small, "noise": noise})
    assert 0 <= found["accuracy"] <= 1 and (found["epsilon"] is None) == (noise is None)
