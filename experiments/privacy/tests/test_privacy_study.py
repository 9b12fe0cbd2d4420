"""The study of what hiding costs: its data, its cells, and its tables."""

import numpy as np
import pytest

import tfp_bfl as bfl
from experiments.privacy import config, run, tables
from experiments.records import read_records
from tfp_bfl.files.tables import to_markdown


def test_every_cell_has_a_record_under_a_name_of_its_own():
    every = [(config.cell_name(options), options) for options in config.cells()]
    found = {name: record["options"] for name, record in read_records(run.HERE / "results").items()}
    assert len(every) == len(found) and dict(every) == found
    assert not any(set(":/ ") & set(name) for name in found)


def test_images_are_tables_of_the_means_of_their_squares():
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)
    source = run.pooled(bfl.data.Source("noise", "train", images, np.int32([0, 1, 2])), 7)
    assert source.features.shape == (3, 49)
    first = images[1, 4:8, 8:12].mean() / 255
    np.testing.assert_allclose(source.features[1, 7 + 2], (first - 0.13) / 0.3, rtol=1e-5)


def cells_like(value, **wanted):
    """Summaries of the cells that have these options, whose scores are `value` of the seed."""
    score = lambda seed: {name: value(seed) for name in (*config.COLUMNS.values(), "upload_bytes")}
    found = [o for o in config.cells() if tables.same([{"options": o}], **wanted)]
    return [{"options": o, "epsilon": None, **score(o["seed"])} for o in found]


def test_costs_are_differences_from_messages_as_they_are_seed_by_seed():
    given = {"federation": config.MANY, "method": "FedAvg", "noise": None}
    plain = cells_like(lambda seed: 0.5 + seed, **given)
    sent = cells_like(lambda seed: 0.25 + seed + 0.01 * (seed == 2), **given, sent="quantiser:16")
    head, of_plain, of_sent = tables.costs([*plain, *sent[::-1]], config.MANY)
    assert of_plain[head.index("what")] == tables.PLAIN and of_plain[head.index("NLL, difference")] == ""
    # Mean of -.25, -.25, -.24, and t_2(.975) = 4.3027 of their standard deviation .01 / sqrt(3) over sqrt(3).
    assert of_sent[head.index("NLL, difference")] == "**-0.2467 [-0.2610, -0.2323]**"


@pytest.mark.parametrize("federation", run.COSTS.values())
def test_the_page_has_the_costs_that_are_kept(federation):
    rows = tables.costs_in_short(list(read_records(run.HERE / "results").values()), federation)
    assert to_markdown(rows) in (run.HERE / "README.md").read_text()


@pytest.mark.parametrize("federation", run.COSTS.values())
def test_the_page_has_the_losses_of_posteriors(federation):
    page = (run.HERE / "README.md").read_text()
    rows = tables.extra_losses(list(read_records(run.HERE / "results").values()), federation)
    assert rows[1:] and [row for row in rows[1:] if row[-1].strip("*") not in page] == []


def test_extra_losses_are_differences_of_paired_differences():
    given = {"federation": config.MANY, "method": "log_linear_pool"}
    cells = cells_like(lambda seed: 0.5, **given, noise=None) + cells_like(lambda seed: 0.25, **given, noise=1.0)
    average = {**given, "method": "FedAvg"}
    cells += cells_like(lambda seed: 0.5, **average, noise=None) + cells_like(lambda seed: 0.375, **average, noise=1.0)
    assert tables.extra_losses(cells, config.MANY)[1:] == [["log_linear_pool", "1.0", "**-0.1250 [-0.1250, -0.1250]**"]]


def small(monkeypatch, federation, **wanted):
    """The score of a cell of a few of the digits."""
    digits = bfl.data.load("digits")
    table = bfl.data.Source("digits", "train", np.float32(digits.features).reshape(-1, 64), digits.labels)
    monkeypatch.setattr(run, "data_of", lambda dataset, size: (table, table))
    options = next(o for o in config.cells() if o["federation"] == federation)
    few = {"clients": 10, "cohort_size": options["cohort_size"] and 3, "examples_per_client": 20}
    return run.score({**options, **few, "rounds": 2, "local_epochs": 1, **wanted})


@pytest.mark.cpu_seconds(60)
@pytest.mark.parametrize("federation", [config.MANY, config.PARTIES])
@pytest.mark.parametrize("noise", [None, 1.0])
def test_a_small_cell_has_a_score_and_its_epsilon(federation, noise, monkeypatch):
    if noise is not None:
        pytest.importorskip("dp_accounting")
    found = small(monkeypatch, federation, noise=noise)
    assert 0 <= found["accuracy"] <= 1 and (found["epsilon"] is None) == (noise is None)
    assert found["upload_bytes"] == 4 * found["numbers"]


@pytest.mark.cpu_seconds(60)
@pytest.mark.parametrize(
    ("sent", "least", "most"),
    [("secure sums", 8, 8.1), ("quantiser:16", 2, 2.2), ("largest:0.01, error memory", 2, 2.1)],
)
def test_the_bytes_of_a_number(sent, least, most, monkeypatch):
    """Four for each of mean and variance, without; a compressor leaves the variances as they are."""
    found = small(monkeypatch, config.MANY, sent=sent)
    assert least <= found["upload_bytes"] / found["numbers"] <= most
