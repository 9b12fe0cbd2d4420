"""A linear model over sites with configuration files and messages as bytes, without NVIDIA FLARE."""

import csv
import json

import numpy as np
import pyarrow.csv
import pytest

from tests.glm.test_agreement import sites_of
from tests.kit import fails, json_of, refuses, summary_of
from tests.sites.channel import add_line
from tests.sites.linear_models import (
    ILL,
    SITES,
    WHOLE,
    Channel,
    begins,
    check_equal,
    described,
    pooled,
    questions,
    refusal_of,
    run,
)
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.files.arrays import stored_arrays
from tfp_bfl.glm.agreement import describe
from tfp_bfl.glm.design import Outcome
from tfp_bfl.sites.deployment import member
from tfp_bfl.sites.deployment.channel import SUMS, TALK
from tfp_bfl.sites.deployment.glm_site import RESULTS
from tfp_bfl.sites.deployment.jobs import make_glm_job


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        ILL,
        {"outcome": "days", "categorical": ["stage"]},
        {"outcome": "days", "family": "cox", "event": "ill", "stratified": True, "categorical": ["stage"]},
        {**ILL, "random": ["(intercept)"]},
        {"outcome": "days", "random": ["(intercept)"], "drop": ["age"]},
        {"outcome": "days", "weights": "stage"},
        {"outcome": "ill", "family": "bernoulli", "offset": "stage"},
    ],
)
def test_the_fit_is_that_of_all_rows_in_one_place(kits, options, secure_sums):
    channel = Channel(kits)
    done = run(kits, channel, options, quorum=3, secure_sums=secure_sums)
    if "drop" not in options:
        exact, is_random = pooled(options), "random" in options
        check_equal(done, exact.posterior if is_random else exact, 1e-6 if is_random else 1e-8)
    page = (done / "report.html").read_text()
    assert "Coefficients" in page and "Checks" in page and "http://" not in page.replace("http://www.w3.org", "")
    # Without masks the server has each site's sums, and draws what one Newton step makes of them.
    assert ("<img" in page) == (not secure_sums and "random" not in options and "event" not in options)
    assert len(list(csv.DictReader((done / "coefficients.csv").open()))) >= 3
    summary = summary_of(done)
    assert "3 clients" in summary["lines"][0]
    assert summary["parties"] == list(SITES) and summary["largest_answer_bytes"] > 0
    # Each site has the result, and with random effects its own one, which the server has not.
    own = [json.loads((kits / site / "local" / RESULTS / "first.json").read_text()) for site in SITES]
    assert all(("effect" in one) == ("random" in options) for one in own)
    names = {name for reply in channel.replies for name in stored_arrays(reply, "answer", 2**30)}
    assert names == ({"masked", "proofs"} if secure_sums else {"sums"})
    refuses("run first is complete", run, kits, Channel(kits), options)


def test_one_baseline_hazard_needs_times_that_masks_can_not_add(kits):
    options = {"outcome": "days", "family": "cox", "event": "ill", "categorical": ["stage"]}
    check_equal(run(kits, Channel(kits), options), pooled(options))
    add_line(kits / "s1" / "local", "allow_single_posteriors: false")
    done = run(kits, Channel(kits), {**options, "stratified": False}, "third")
    assert "submit with --stratified" in refusal_of(done)
    refuses("with --secure-sums give --stratified", run, kits, Channel(kits), options, "second", secure_sums=True)


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize("options", [{"outcome": "days", "drop": ["age", "sex"]}, {**ILL, "prior_stddev": 0.5}])
def test_sites_join_and_leave_by_their_sums(kits, options, secure_sums):
    """The revised fit of s0 and s1 in the place of s2 is that of s0 and s1 alone."""
    fit = lambda options, name, **how: json_of(run(kits, Channel(kits), options, name, **how) / "posterior.json")
    exact, record = (fit(options, f"without_{x}", without=[x]) for x in ("s2", "s0"))
    assert record["clients"] == ["s1", "s2"]
    channel = Channel(kits)
    revision = {**record["options"], "revise": {"record": record, "add": ["s0"], "remove": ["s2"]}}
    found = json_of(run(kits, channel, revision, "revised", secure_sums=secure_sums) / "posterior.json")
    assert {site for _, site, _ in channel.sent} == {"s0", "s2"}
    assert found["clients"] == exact["clients"] == ["s0", "s1"] and found["rows"] == exact["rows"]
    distance = (np.array(found["mean"]) - exact["mean"]) / np.sqrt(np.diag(exact["covariance"]))
    # Means for empty cells stay those of the first fit.
    np.testing.assert_allclose(distance, 0, atol=1e-7 if options["outcome"] == "days" else 0.2)
    again = {**record["options"], "revise": {"record": found, "add": ["s2"], "remove": ["s0"]}}
    np.testing.assert_allclose(fit(again, "back")["sums"], record["sums"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("revision", "secure_sums", "message"),
    [
        ({"add": ["s1"]}, False, "s1 is in the fit already"),
        ({"remove": ["s2"]}, False, "s2 is not in the fit"),
        ({}, False, "requires sites to add or to remove"),
        ({"add": ["s2"]}, True, "at least two sites must join or leave at once"),
        ({"add": ["s9"]}, False, r"needs an answer of each of its sites \(s9"),
        ({"add": ["s2"], "colour": 1}, False, "do not have the required form"),
        ({"add": ["s2"], "remove": ["s0", "s1"]}, True, "at least two sites must be left"),
        ({"add": ["s2"], "without": ["s0"]}, False, "leave --without out"),
    ],
)
def test_revisions_that_can_not_be_are_one_sentence(kits, revision, secure_sums, message):
    record = json_of(run(kits, Channel(kits), without=["s2"]) / "posterior.json")
    without = revision.pop("without", ())
    options = {**record["options"], "revise": {"record": record, **revision}}
    fails(message, run, kits, Channel(kits), options, "second", secure_sums=secure_sums, without=without)


def test_masked_numbers_are_no_sums_and_answer_one_question(kits):
    channel = Channel(kits)
    run(kits, channel, secure_sums=True)
    answers = [stored_arrays(reply, "answer", 2**30)["masked"] for reply in channel.replies[:3]]
    # Parts of fixed point are below 2^48; masks have 64 bits.
    assert all(np.mean(np.abs(x.astype(np.float64)) > 2.0**48) > 0.99 for x in answers)
    first, *_, last = questions(channel)
    refuses("number 5, but the next .* is 6", channel.sites["s0"].sums, {**last, "points": last["points"] + 1})
    # The same job again: each step has the message of the first time, or none.
    channel.sites["s0"].converse(begins(channel))
    refuses("two answers would reveal their difference", channel.sites["s0"].sums, {**first, "total": np.ones(1)})
    for site in channel.sites.values():
        site._open.close()  # As at the end of its process.
    # The same job again has the same answers; another job of this name has none.
    (kits / "runs" / "first" / "summary.json").unlink()
    again = Channel(kits)
    run(kits, again, secure_sums=True)
    assert sorted(again.replies) == sorted(channel.replies)
    for site in again.sites.values():
        site._open.close()
    (kits / "runs" / "first" / "summary.json").unlink()
    fails("another run of the name first", run, kits, Channel(kits), {**ILL, "prior_stddev": 1.0}, secure_sums=True)


def test_a_site_that_leaves_under_masks_ends_the_run_and_is_named(kits):
    fails(r"not cancel \(s1: it did not", run, kits, Channel(kits, {(SUMS, "s1", 2): "silence"}), secure_sums=True)
    fails("same sites when all answer", run, kits, Channel(kits, {(SUMS, "s1", 1): "silence"}), secure_sums=True)
    # The sums of two of them would reveal those of the third.
    fails(r"s0: .* reveal those of s1", run, kits, Channel(kits), name="second", secure_sums=True, without=["s1"])
    fails("2 sites take part, but the quorum is 3", run, kits, Channel(kits), name="third", quorum=3, without=["s0"])
    run(kits, Channel(kits), name="fourth", secure_sums=True)


def test_before_any_sum_with_masks_was_read_others_go_on_without_a_site(kits):
    done = run(kits, Channel(kits, {(TALK, "s1", 0): "silence"}), secure_sums=True)
    check_equal(done, pooled(ILL, without=["s1"]))
    assert "Of two sites, each can compute" in summary_of(done)["warnings"][-1]
    fails(r"s0: .* reveal those of s1", run, kits, Channel(kits), name="second", secure_sums=True)


@pytest.mark.parametrize(
    ("earlier", "signs", "revealed"),
    [
        ([], {"a": 1, "b": 1}, None),
        ([], {"a": 1}, "a"),
        ([{"a": 1, "b": 1}], {"a": 1, "b": 1}, None),
        ([{"a": 1, "b": 1}], {"a": 1, "b": 1, "c": 1, "d": 1}, None),
        ([{"a": 1, "b": 1}], {"a": 1, "b": 1, "c": 1}, "c"),
        ([{"a": 1, "b": 1}], {"a": 1, "b": -1}, "a"),
        ([{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "d": 1}], {"c": 1, "d": 1}, "c"),
        ([{"a": 1, "b": 1, "c": 1, "d": 1}], {"b": -1, "c": -1, "d": -1}, "a"),
    ],
)
def test_sums_of_several_sets_of_sites_reveal_none_of_one_site(tmp_path, earlier, signs, revealed):
    for number, members in enumerate(earlier):
        (tmp_path / f"run_{number}").mkdir()
        (tmp_path / f"run_{number}" / member.MEMBERS).write_text(json.dumps(members))
    if revealed is None:
        return member.check_members(tmp_path / "next", signs)
    refuses(f"would reveal those of {revealed}: submit with", member.check_members, tmp_path / "next", signs)


def test_the_sign_of_a_site_with_masks_is_that_of_its_job(kits):
    channel = Channel(kits)
    run(kits, channel, secure_sums=True)
    message, record = json.loads(begins(channel)), {"clients": ["s1", "s2", "s3"]}
    refuses("not have the required form", channel.sites["s0"].converse, json.dumps({**message, "sign": -1}).encode())
    # A revision names the sites that it subtracts: with other sites the sum has no sign.
    message["job"]["options"] = {**ILL, "revise": {"record": record, "add": ["s0"], "remove": ["s1"]}}
    refuses("that the revision adds", channel.sites["s0"].converse, json.dumps({**message, "run": "other"}).encode())


def test_no_site_gets_the_sums_of_others(kits):
    first, second = Channel(kits), Channel(kits)
    record = json_of(run(kits, first, without=["s2"]) / "posterior.json")
    done = run(kits, second, {**record["options"], "revise": {"record": record, "add": ["s2"]}}, "second")
    sent = b"".join(content for task, _, content in first.sent + second.sent if task == TALK)
    assert b'"finish"' in sent and b'"revise"' in sent and b'"sums' not in sent and "sums" in record
    # One site is enough for a revision, since the fit is of three.
    assert summary_of(done)["parties"] == list(SITES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("algorithms: [variational]", "allows algorithm variational, not glm"),
        ("models: [mlp]", "limits models or rules, but its algorithms do not name glm"),
        ("rules: [conflation]", "limits models or rules, but its algorithms do not name glm"),
        ("only_secure_sums: true", "only runs with secure sums"),
        ("max_example_epsilon: 1.0", "only runs with differential privacy"),
        ("min_parties: 4", "no run of fewer than 4 sites"),
        ("max_rounds: 2", "at most 2 rounds"),
        ("drop: [age]", ""),
    ],
)
def test_a_site_refuses_what_its_file_forbids(kits, line, message):
    add_line(kits / "s1" / "local", line)
    own = json_of(run(kits, Channel(kits)) / "parties.json")["s1"]
    assert message in own["refused"] if message else "age" not in [name for name, _, _ in own["columns"]]


def test_what_a_site_describes_has_no_row(kits):
    summary = described(Channel(kits), "s0")
    assert summary.pop("version") and set(summary) == {"columns", "events"}
    assert summary == json.loads(json.dumps(describe(sites_of(WHOLE, "site")["s0"], Outcome("ill", "bernoulli"), "x",
                                                     TableOptions(categorical=("stage",)))))  # fmt: skip


def test_questions_of_another_form_are_refused(kits):
    channel = Channel(kits)
    run(kits, channel)
    asked = questions(channel)[-1]
    kinds = [{"kind": np.frombuffer(kind, np.uint8)} for kind in (b"effects", b"times")]
    points = [{"points": x} for x in (np.zeros((1, 3)), np.zeros((200, 7)), np.full((1, 7), np.nan))]
    for change in (*kinds, *points, {"step": np.array(-1)}, {"other": np.zeros(1)}):
        refuses("not of this job", channel.sites["s0"].sums, {**asked, **change})
    refuses("does not have the required form", channel.sites["s0"].converse, b'{"step": "begin", "job": 3}')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outcome": "ill", "family": "binomial"}, "There is no family 'binomial'"),
        ({"outcome": "ill", "colour": 3}, "do not have the required form"),
        ({"family": "cox", "outcome": "days"}, "--event names the column"),
        ({"outcome": "ill", "level": 95.0}, "--level is 95"),
        ({"outcome": "ill", "exposure": "days"}, "--exposure is for poisson"),
        ({"outcome": "days", "family": "cox", "event": "ill", "random": ["x"]}, "--random is for"),
        ({"outcome": "ill", "event_value": ["Y"]}, "--event-value is for"),
        ({"outcome": "ill", "family": "multinomial"}, "Between sites there is no multinomial model"),
        (None, "do not have the required form"),
    ],
)
def test_bad_options_are_one_sentence(options, message):
    refuses(message, make_glm_job, options, False)


def test_a_revision_needs_the_folder_of_a_fit(tmp_path, capsys):
    command = ["deploy", "glm-revise", str(tmp_path), str(tmp_path), "--name", "x", "--output", "o", "--add", "s1"]
    assert run_command_line(command) == 2
    assert "is not the posterior.json of `deploy glm`" in capsys.readouterr().err


def test_a_site_whose_masked_sums_would_be_zeros_refuses(kits):
    """Where all sites but one add zeros, the sum over all sites is that of this one."""
    path = kits / "s1" / "local" / "patients.csv"
    own = pyarrow.csv.read_csv(path)
    empty = pyarrow.array([None] * own.num_rows, pyarrow.string())
    pyarrow.csv.write_csv(own.set_column(own.column_names.index("ill"), "ill", empty), path)
    done = run(kits, Channel(kits), ILL, secure_sums=True)
    assert "can't be used as it is" in refusal_of(done) and "s1" not in summary_of(done)["parties"]
