"""Sites of a linear model that send what can not be: they are left out, and the others are fitted."""

import json
import re

import numpy as np
import pytest

from tests.kit import fails, refuses, summary_of
from tests.sites.linear_models import ILL, Channel, check_equal, described, pooled, refusal_of, run
from tfp_bfl.files.arrays import to_bytes
from tfp_bfl.glm.agreement import check_description
from tfp_bfl.sites.deployment.channel import SUMS, TALK, Refusal, Withheld


def why_s1_is_left_out(done):
    assert summary_of(done)["parties"] == ["s0", "s2"]
    return refusal_of(done)


NOT_FINITE, NOT_RISING = "its sums are not finite", "its times of events are not finite and ascending"
COX = {"outcome": "days", "family": "cox", "event": "ill", "categorical": ["stage"]}


@pytest.mark.parametrize(
    ("options", "at", "lie", "reason"),
    [
        (ILL, 2, "silence", "did not answer"),
        (ILL, 2, Refusal("it is busy"), "it is busy"),
        (ILL, 2, b"no arrays", "is not a file of arrays"),
        (ILL, 2, to_bytes({"sums": np.zeros(2, int)}), "does not have the required form"),
        (ILL, 0, lambda x: x[1:], "does not have the required form"),
        (ILL, 2, lambda x: x[:, np.newaxis], "does not have the required form"),
        (ILL, 1, lambda x: x * np.nan, NOT_FINITE),
        (ILL, range(2, 99), lambda x: x + np.inf, NOT_FINITE),
        (COX, 2, lambda x: x[::-1], NOT_RISING),
        (COX, 2, lambda x: np.append(x, np.nan), NOT_RISING),
        (COX, 2, lambda x: x[0], "does not have the required form"),
    ],
)
def test_the_sender_of_an_answer_that_can_not_be_is_left_out(kits, options, at, lie, reason):
    lies = {(SUMS, "s1", number): lie for number in ([at] if isinstance(at, int) else at)}
    done = run(kits, Channel(kits, lies), options)
    assert reason in why_s1_is_left_out(done) and "Without s1" in summary_of(done)["warnings"][0]
    if options is ILL and at == 2:
        check_equal(done, pooled(ILL, without=["s1"]))


def test_the_sender_of_a_masked_answer_of_another_length_is_named(kits):
    lie = to_bytes({"masked": np.zeros((3, 3), np.int64)})
    fails(r"cancel \(s1: its answer does not have", run, kits, Channel(kits, {(SUMS, "s1", 2): lie}), secure_sums=True)


NO_FORM = "does not have the required form"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ([["z", "category", []]], NO_FORM),
        ([["z", "number", ["a"]]], NO_FORM),
        ([["z", "category", ["a", "a"]]], NO_FORM),
        ([["z", "number", []], ["z", "number", []]], NO_FORM),
        ([["z" * 10_001, "number", []]], NO_FORM),
        ([["z", "category", ["\ud800"]]], NO_FORM),
        ([["ill", "number", []]], NO_FORM),
        ([["z"]], NO_FORM),
        ([[f"z{k}", "number", []] for k in range(2001)], "at most 2,000 are possible: leave columns out with --drop"),
        ([[f"z{k}", "category", ["a", "b", "c"]] for k in range(700)], "has 2,100 columns"),
    ],
)
def test_descriptions_that_can_not_be_are_one_sentence(columns, reason):
    refuses(reason, check_description, "s1", {"columns": columns, "events": []}, ["ill"])


def test_a_description_has_no_columns_beside_those_of_the_job():
    check_description("s1", {"columns": [["z", "category", ["a"]]], "events": []}, ["ill"], ["z"])
    refuses(NO_FORM, check_description, "s1", {"columns": [["x", "number", []]], "events": []}, ["ill"], ["z"])


def lying(kits, change, options=ILL, secure_sums=False):
    """Sites of which s1 describes something else: parts of its description are changed."""
    channel = Channel(kits)
    own = described(channel, "s1", options, secure_sums)
    channel.lies = {(TALK, "s1", 0): json.dumps({**own, **change(own)}).encode()}
    return channel


@pytest.mark.parametrize(
    ("change", "secure_sums", "reason"),
    [
        (lambda own: {"columns": [["z", "category", []]]}, False, "required form"),
        (lambda own: {"offer": {**own["offer"], "signature": "AAAA"}}, True, "is not signed by s1"),
        (lambda own: {"offer": {"public": 3}}, True, "can't mask its messages"),
    ],
)
def test_the_sender_of_a_description_or_a_key_offer_that_can_not_be_is_left_out(kits, change, secure_sums, reason):
    done = run(kits, lying(kits, change, secure_sums=secure_sums), secure_sums=secure_sums)
    assert reason in why_s1_is_left_out(done)


@pytest.mark.parametrize("secure_sums", [False, True])
def test_a_site_with_text_among_numbers_is_left_out_and_told(kits, secure_sums):
    path = kits / "s1" / "local" / "patients.csv"
    head, first, *rest = path.read_text().splitlines()
    place = head.replace('"', "").split(",").index("days")
    cells = first.split(",")
    cells[place] = '"n. a."'
    path.write_text("\n".join([head, ",".join(cells), *rest]) + "\n")
    channel = Channel(kits)
    with pytest.raises(Withheld, match="Cells of 'days' can't be used") as raised:
        described(channel, secure_sums=secure_sums)
    assert "'days' holds 'n. a.' in row 1" in raised.value.at_site and "n. a." not in str(raised.value)
    done = run(kits, channel, secure_sums=secure_sums)
    assert why_s1_is_left_out(done) and "n. a." not in (done / "parties.json").read_text()


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (["age", "category", ["old", "young"]], "The column 'age' holds numbers at s[02] and text at s1"),
        (["extra", "number", []], "The column 'extra' is empty at s0, s2"),
        (["sex", "category", [f"x{k}" for k in range(30)]], "'sex' holds 32 texts at all sites"),
    ],
)
def test_a_site_that_does_not_fit_the_others_is_left_out(kits, change, reason, secure_sums):
    options = {**ILL, "missing": "drop"}
    done = run(kits, lying(kits, with_column(change), options, secure_sums), options, secure_sums=secure_sums)
    assert re.search(reason, why_s1_is_left_out(done))


def with_column(changed):
    return lambda own: {"columns": [*{**{x[0]: x for x in own["columns"]}, changed[0]: changed}.values()]}


def test_of_two_sites_that_do_not_fit_neither_is_left_out(kits):
    channel = lying(kits, with_column(["age", "category", ["old"]]))
    refuses("'age' holds numbers at s0 and text at s1", run, kits, channel, without=["s2"], quorum=1)
