"""Sites whose statistics lie far from the others' are named before the first round; the report of a federation."""

import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import fails, refuses, summary_of
from tests.plots.test_report import headings, page, table
from tests.plots.test_report import run as results
from tests.sites.test_deployment import OPTIONS, Channel, run
from tfp_bfl.plots import tables
from tfp_bfl.sites.deployment.channel import DESCRIBE
from tfp_bfl.sites.deployment.party_file import FILE
from tfp_bfl.sites.deployment.server import sections
from tfp_bfl.sites.deployment.site import check
from tfp_bfl.sites.schema import MOST_CLASSES, unseen


def described(mean=14.0, stddev=3.0, classes=("benign", "malignant"), number=100, target=None):
    return {
        "num_examples": number,
        "element_shape": [2],
        "is_image": False,
        "class_names": [] if target else list(classes),
        "columns": [["radius", mean, stddev], ["age", 50.0, 12.0]],
        "target": target,
    }


def three(**west):
    return {"north": described(13.0), "south": described(15.0), "west": described(**west)}


def test_sites_that_are_alike_are_not_doubted_and_a_target_in_other_units_is():
    assert bfl.sites.doubts(three()) == bfl.sites.doubts({"north": described()}) == []
    sites = {name: described(target=["price", 100.0, 20.0]) for name in ("north", "south")}
    sites["west"] = described(target=["price", 1e5, 2e4])
    (sentence,) = bfl.sites.doubts(sites)
    assert "west" in sentence and "'price'" in sentence


@pytest.mark.parametrize(
    ("west", "words"),
    [
        ({"mean": 14_000.0, "stddev": 3_000.0}, "west reports means far outside the other sites': 'radius' (1.4e+04"),
        ({"mean": 1e30, "number": 1}, "west reports means far outside"),
        ({"stddev": 1e6}, "west reports standard deviations far from the other sites'"),
        ({"stddev": 1e-6}, "west reports standard deviations far from the other sites'"),
        ({"classes": ("benign", "Malignant")}, "Only west has the class 'Malignant'"),
        ({"classes": [f"p{i}" for i in range(20)]}, "Only west has classes 'p0', 'p1', 'p2' and 17 more"),
    ],
)
def test_a_site_that_stands_out_is_named(west, words):
    found = [sentence for sentence in bfl.sites.doubts(three(**west)) if sentence.startswith(words)]
    assert len(found) == 1
    assert not any("north" in sentence or "south" in sentence for sentence in found)


def test_what_no_federation_can_bear_is_refused():
    moments = [("radius", 0.0, 1e200), ("radius", float("nan"), 1.0), ("r" * 2000, 1.0, 1.0)]
    moments += [("radius", mean, 1.0) for mean in (-1e200, 10**400)]
    columns = [{"columns": [[*x], ["age", 0.0, 1.0]]} for x in moments]
    classes = {"class_names": [str(i) for i in range(MOST_CLASSES + 1)]}
    for lie in (*columns, {"element_shape": [2**31 - 1, 2**31 - 1]}, classes):
        refuses("west", bfl.sites.check_description, "west", {**described(), **lie})
    names = [[f"{site}{i}" for i in range(MOST_CLASSES - 1)] for site in "ab"]
    sites = {site: described(classes=classes) for site, classes in zip("ab", names)}
    refuses(r"19,998 classes, but a federation has at most 10,000", bfl.sites.agree, "data", sites)
    sites = {"a": described(1e30, 1e30, number=2**31 - 1), "b": described(-1e30, 1e30, number=2**31 - 1)}
    for _, mean, stddev in bfl.sites.agree("data", sites).columns:
        assert np.isfinite([mean, stddev]).all() and stddev > 0


@pytest.mark.cpu_seconds(60)
def test_a_run_names_the_site_before_its_first_round_and_in_its_summary(hospitals):
    channel = Channel(hospitals)
    own = json.loads(channel.sites["west"].describe())
    changed = lambda change: json.dumps({**own, "table": [{**x, **change(x)} for x in own["table"]]}).encode()
    thousandths = lambda x: {name: 1000 * x[name] for name in ("mean", "stddev")}
    channel.lies[DESCRIBE, "west"] = changed(thousandths)
    done = run(hospitals, channel, options={**OPTIONS, "rounds": 1})
    warnings = summary_of(done)["warnings"]
    assert any(line.startswith("west reports means far outside the other sites'") for line in warnings)
    channel.lies[DESCRIBE, "west"] = changed(lambda x: {"stddev": 1e200})
    fails("west", run, hospitals, channel, "second", quorum=3)


def test_sites_without_scores_are_named_as_unseen():
    assert unseen(["north", "south"], ["north", "south"]) == unseen(["north"], []) == []
    (sentence,) = unseen(["north", "south", "west"], ["north", "south"])
    assert sentence.startswith("Without scores of west, swapped labels") and "at west cannot be detected" in sentence
    assert "at any site cannot be detected" in unseen(["north", "south", "west"], [])[0]


def test_rare_classes_are_named_at_the_site_and_not_sent(tmp_path):
    rows = "".join(f"{i / 7},{'sick' if i % 12 == 0 else 'well'}\n" for i in range(60))
    (tmp_path / "d.csv").write_text("x,label\n" + rows)
    (tmp_path / FILE).write_text("data: d.csv\n")
    line, sent = check(tmp_path).split("\n", 1)[1].split("\n", 1)
    assert line == "Classes with fewer than 10 examples, too few to learn much: 'sick' (4)."
    assert "little is learnt" not in sent and '"class_names"' in sent


def reported(**parties):
    rounds = [{"round": 1, "accuracy": 0.9, "faulty_clients": {"1": "NaN mean"}}]
    none = {"probabilities": None, "labels": np.zeros(0, np.int32), "uncertainties": {}, "features": None}
    own = list(sections(parties, rounds, {}))
    return results(**none, label_counts=None, rounds=rounds, sections=own)


def test_a_federation_has_the_sums_of_its_sites_and_no_example(tmp_path):
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]], np.float32)
    entropy = np.array([0.2, 0.9, 0.7])
    scores = bfl.evaluation.Evaluation({}, probabilities, *[entropy] * 2, *[entropy / 1e4] * 2)
    sums = bfl.evaluation.score_sums(scores, [0, 1, 0])
    read = page(tmp_path / "page.html", reported(north=sums, south=None))
    assert {"Learning curve", "Error rate and coverage", "Reliability diagram", "Sites"} <= set(headings(read))
    assert "Retention curves" not in headings(read)
    assert table(read, "north")[:12] == [
        *("north", "3", "0.607", "0.400", "6e-05", "0"),
        *("south", *[tables.DASH] * 4, "1"),
    ]
    without = page(tmp_path / "none.html", reported(north=None))
    assert "Sites" in headings(without) and "Reliability diagram" not in headings(without)
