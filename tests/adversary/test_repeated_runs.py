"""Threat: an honest protocol over few rows, or repeated with other options, whose sums differ by single rows."""

import shutil

import numpy as np
import pyarrow.csv
import pytest
import tensorflow as tf

from tests.adversary.test_examples_of_networks import PROCESS, SOURCES, TRIES, message_of, traced
from tests.kit import json_of
from tests.sites.linear_models import SITES, Channel, run
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.glm.agreement import agree, describe
from tfp_bfl.glm.design import SiteCells, settle
from tfp_bfl.glm.outcomes import Outcome
from tfp_bfl.glm.sums import Sums
from tfp_bfl.sites.deployment import member
from tfp_bfl.sites.deployment.party_file import FILE, read_file
from tfp_bfl.sites.deployment.site import Site

LEAST = 20


@pytest.mark.parametrize(("number", "least", "most"), [(1, 20, 20), (10, 1, 12), (LEAST, 0, 0)])
def test_an_honest_round_over_few_rows_reads_one_of_them(number, least, most):
    """20 tries: 20 with 1 to 3 rows, 17 with 5, 6 with 8 and 10, 0 with 20, by the change of a neuron over its bias."""
    weights, party, reads = PROCESS.round.initialize().weights, traced()[0], 0
    whole, party._steps = party._examples, None
    for k in range(TRIES):
        rows = np.random.default_rng(k).choice(len(SOURCES[0].labels), number, replace=False)
        party._examples = tf.nest.map_structure(lambda x, rows=rows: tf.gather(x, rows), whole)
        answer = party.answer(message_of(weights, 0))
        kernel, bias = (answer[f"weights/point/{i}"] - np.array(weights.point[i]) for i in (0, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            distances = np.max(np.abs(SOURCES[0].features[rows] - (kernel / bias).T[:, np.newaxis]), 2)
        reads += bool(np.nanmin(distances) < 0.1)
    party._examples = whole
    assert least <= reads <= most


def test_a_site_of_few_rows_takes_part_in_no_run(hospitals, kits):
    """Of networks and of linear models, by a sentence that names the rule and not the number of rows."""
    for folder, ask in (
        (hospitals / "north" / "local", lambda folder: Site(folder).describe()),
        (kits / "s1" / "local", lambda folder: run(kits, Channel(kits), {"outcome": "days"}, quorum=3)),
    ):
        path = folder / "patients.csv"
        head, *rows = path.read_text().splitlines(True)
        path.write_text("".join([head, *rows[: LEAST - 1]]))
        with pytest.raises((Error, InvalidArgument), match=f"fewer than {LEAST} rows .* min_rows of its file allows"):
            ask(folder)
    assert read_file(folder).min_rows == LEAST


def tables(folder, number):
    """Three sites of 60 rows; one row of s1, which is returned, has an empty cell in its last column."""
    rng = np.random.default_rng(number)
    hidden = int(rng.integers(60))
    for site in SITES:
        x = rng.normal(size=(60, 5))
        lines = [[f"{value:.6f}" for value in row] for row in x]
        if site == "s1":
            row, lines[hidden][3] = x[hidden, :3], ""
        text = "\n".join(map(",".join, [["x0", "x1", "x2", "x3", "y"], *lines]))
        (folder / site / "local" / "patients.csv").write_text(text + "\n")
    return row


def test_rows_differ_by_none_or_by_many(tmp_path):
    """A table that grows, too; models without a column in common have no difference."""
    rows = np.arange(100) < 90
    member.RowSet(tmp_path, "first", "ab", ["x", "y"], rows).record()
    for other, columns, refused in [
        (rows, ["x"], False),
        (np.arange(100) < 89, ["x"], True),
        (np.arange(100) < 89, ["z"], False),
        (np.arange(100) < 70, ["x"], False),
        (np.append(rows, True), ["y", "z"], True),
        (np.append(rows, np.ones(LEAST, bool)), ["y", "z"], False),
    ]:
        one = member.RowSet(tmp_path, "second", "cd", columns, other)
        if refused:
            with pytest.raises(InvalidArgument, match="differ from those in the run first by fewer than 20"):
                one.check(LEAST)
        else:
            one.check(LEAST)


@pytest.mark.parametrize(("missing", "is_read"), [("indicate", False), ("drop", False), ("before", True)])
def test_one_fit_does_not_read_the_row_that_it_leaves_out(kits, missing, is_read):
    """The sums of all rows less those of the fit are the cells of the one incomplete row, if a site sends both."""
    row, outcome = tables(kits, 0), Outcome("y", "gaussian")
    table = pyarrow.csv.read_csv(kits / "s1" / "local" / "patients.csv")
    plan = agree({"s1": describe(table, outcome, "s1")}, outcome, "drop")
    way = "drop" if missing == "before" else missing
    cells = SiteCells(table, outcome, plan, way, "s1")
    sums = cells.sums() if missing != "before" else SiteCells(table, outcome, plan, "indicate", "s1").sums()
    fitted = cells.rows(settle(plan, way, cells.sums())[0]).design
    left = sums[2 : 2 + len(row)] - np.sum(fitted[:, 1 : 1 + len(row)], 0)
    assert bool(np.max(np.abs(left - row)) < 0.1) == is_read


@pytest.mark.deep(after="tests/adversary/test_repeated_runs.py")
@pytest.mark.parametrize("secure_sums", [False, True])
def test_two_honest_fits_read_the_row_that_they_differ_by(kits, secure_sums):
    """20 of 20 if sites allow it (min_rows: 1), with masks too; 0 by default: the second fit is without the site."""
    reads = {1: 0, LEAST: 0}
    for least in reads:
        for site in SITES:
            (kits / site / "local" / FILE).write_text(f"data: patients.csv\nmin_rows: {least}\n")
        for number in range(TRIES):
            row = tables(kits, number)
            found = []
            for only in (["x0", "x1", "x2"], ["x0", "x1", "x2", "x3"]):
                name, options = f"{least}_{number}_{len(only)}", {"outcome": "y", "only": only}
                try:
                    done = run(kits, Channel(kits), options, name, secure_sums=secure_sums)
                except Error as error:  # Without s1, the sum of the others with masks would reveal its own.
                    assert "would reveal" in str(error)
                    break
                record = json_of(done / "posterior.json")
                found.append(Sums.unpack(np.array(record["sums"]), len(only) + 1).information[:4, :4])
                reason = json_of(done / "parties.json")["s1"].get("refused", "")
                assert ("differ from those in the run" in reason) == (least > 1 and len(only) == 4)
            if len(found) == 2:
                left = found[0] - found[1]
                reads[least] += bool(np.max(np.abs(left[0] / left[0, 0] - [1, *row])) < 0.1)
            for path in kits.glob("*/local/memory"):  # The next try has another table.
                shutil.rmtree(path)
    assert reads == {1: TRIES, LEAST: 0}


def test_a_site_answers_in_a_number_of_runs_of_its_file(kits):
    for site in SITES:
        (kits / site / "local" / FILE).write_text("data: patients.csv\nmax_runs: 2\n")
    for name in ("first", "second"):
        run(kits, Channel(kits), {"outcome": "days"}, name)
    with pytest.raises(Error, match="It has answered in 2 runs, the most that max_runs of its file allows"):
        run(kits, Channel(kits), {"outcome": "days", "level": 0.9}, "third")
    (kits / "runs" / "second" / "summary.json").unlink()
    run(kits, Channel(kits), {"outcome": "days"}, "second")  # The same run again is no further one.
