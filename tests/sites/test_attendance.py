"""The sites that take part in a federation, the reasons of absent ones, and their return."""

import json
import types

import numpy as np
import pytest

from tests.kit import fails, json_of, lines_of, refuses, summary_of
from tests.sites.channel import SILENCE, faults_of
from tests.sites.test_deployment import OPTIONS, Channel, run
from tfp_bfl.files.arrays import to_bytes
from tfp_bfl.sites.deployment.attendance import Attendance, Submission
from tfp_bfl.sites.deployment.channel import BEGIN, DESCRIBE, ROUND, SCORE, Answer, Counted, Refusal
from tfp_bfl.sites.deployment.demo import HOSPITALS
from tfp_bfl.sites.deployment.jobs import make_job
from tfp_bfl.sites.deployment.party_file import FILE
from tfp_bfl.sites.deployment.server import Carrier, largest_weight
from tfp_bfl.sites.deployment.site import Site

pytestmark = pytest.mark.cpu_seconds(60)  # each test has sites that build a model


def test_lies_about_data_and_scores_are_left_out(hospitals):
    lies = {(SCORE, "south"): to_bytes({"count": np.float64(3)})}
    described = json.loads(Site(hospitals / "west" / "local").describe())
    channel = Channel(hospitals, lies)
    no_number = json.dumps({**described, "num_test": "many"}).encode()
    wrong = dict.fromkeys([b'{"num_examples": -3}', no_number, b"[1]"], "west's data does not have the form")
    for lie, reason in {**wrong, b"[" * 100_000: "is not JSON", b"no JSON": "is not JSON"}.items():
        lies[DESCRIBE, "west"] = lie
        fails(rf"2 sites take part, but the quorum is 3 \(west: .*{reason}", run, hospitals, channel, quorum=3)
    # The other sites continue without it.
    done = run(hospitals, channel, options={**OPTIONS, "rounds": 1})
    summary = summary_of(done)
    assert set(summary["parties"]) == {"north"} and summary["num_clients"] == 2
    assert "Without west: The description of west's data is not JSON." in summary["warnings"]


def test_the_reason_of_a_site_that_refuses_a_run_is_recorded(hospitals):
    (hospitals / "west" / "local" / FILE).write_text("data: patients.csv\nlabel: diagnosis\nmax_rounds: 1\n")
    done = run(hospitals, Channel(hospitals))
    reason = "Its file allows at most 1 rounds, not 2."
    assert faults_of(done) == [{"2": reason}] * 2
    assert json_of(done / "parties.json")["west"]["refused"] == reason
    assert f"Without west: {reason}" in summary_of(done)["warnings"]
    assert reason in (done / "report.html").read_text()


def test_a_run_without_a_site_does_not_ask_it(hospitals):
    channel = Channel(hospitals)
    done = run(hospitals, channel, without=["south"])
    assert {name for _, name, _ in channel.sent} == {"north", "west"}
    assert summary_of(done)["num_clients"] == 2
    (done / "summary.json").unlink()
    refuses("west took part when the run began", run, hospitals, channel, without=["south", "west"])


def test_the_reported_size_of_a_site_can_be_bounded(hospitals):
    """For its weight and for the pooled columns; outlying sites are reported."""
    channel = Channel(hospitals)
    described = json.loads(channel.sites["west"].describe())
    number = 2_000_000_000
    far_off = [{**x, "rows": number, "filled": number, "mean": x["mean"] + 1e3} for x in described["table"]]
    boast = {**described, "num_examples": number, "table": far_off}
    channel.lies[DESCRIBE, "west"] = json.dumps(boast).encode()
    found = {}
    for most in (None, 100):
        # Columns a thousand off would take the default rate away.
        options = {**OPTIONS, "algorithm": "variational", "rounds": 1, "learning_rate": 1e-4}
        done = run(hospitals, channel, f"most {most}".replace(" ", "_"), options, max_examples=most)
        begun = [json.loads(x) for task, who, x in channel.sent if (task, who) == (BEGIN, "north")][-1]
        found[most] = summary_of(done), begun["schema"]["columns"][0][1]
    (believed, far), (bounded, near) = found.values()
    assert any("west reports 2,000,000,000 examples, more than 10 times" in line for line in believed["warnings"])
    assert "west reports 2,000,000,000 examples and is weighted as 100." in bounded["warnings"]
    truth = described["table"][0]["mean"]
    assert far - truth == pytest.approx(1e3, rel=0.01) and near - truth == pytest.approx(333, rel=0.05)
    # Honest sites that have more count as the bound, and are at no fault by it.
    assert bounded["num_faulty"] == 0 and bounded["num_examples"] == 300


def test_a_site_that_missed_the_beginning_is_in_the_next_round(hospitals):
    done = run(hospitals, Channel(hospitals, {(BEGIN, "west", 0): SILENCE}))
    assert faults_of(done) == [{"2": "It takes part in no run."}, {}]
    assert not any("Without" in line for line in summary_of(done)["warnings"])


def test_who_is_silent_is_named_when_its_time_is_up_and_scores_say_over_whom_they_are(hospitals, monkeypatch):
    noted, silent = [], {(ROUND, "west", 1): SILENCE}
    monkeypatch.setattr("tfp_bfl.app.one_run.run_folder.Reporter.note", lambda self, text: noted.append(text))
    done = run(hospitals, Channel(hospitals, silent), options={**OPTIONS, "rounds": 3})
    assert [row["num_scored"] for row in lines_of(done / "metrics.jsonl")] == [3, 2, 3]
    assert noted == [
        "west did not answer in time: rounds continue without it until it answers again",
        "the scores are over the test data of north and south, without west",
        "west answers again",
        "the scores are over the test data of north, south and west again",
    ]
    assert not any("scores are over" in line for line in summary_of(done)["warnings"])
    # A description, the beginning, three rounds and three scores; of one site a round and its scores less.
    assert [own["answers"] for own in summary_of(done)["traffic"].values()] == [8, 8, 6]
    assert "kB from the site" in (done / "report.html").read_text()


@pytest.mark.deep(after="test_attendance.py")
def test_with_masks_sites_bound_their_sizes_themselves(hospitals):
    from tests.certificates import certify

    certify(hospitals, HOSPITALS)
    options = {**OPTIONS, "rounds": 1}
    done = run(hospitals, Channel(hospitals), options=options, secure_sums=True, max_examples=100)
    summary = summary_of(done)
    assert summary["num_examples"] == 100 * len(HOSPITALS) and summary["num_faulty"] == 0


@pytest.mark.parametrize(
    ("options", "weight"),
    [({"weighting": "equal"}, 1.0), ({"algorithm": "bayesian_admm"}, 1.0), ({"weighting": "train_size"}, 2000.0)],
)
def test_masked_numbers_are_rounded_by_the_largest_weight(options, weight):
    """By the largest site's size, equal weights would be rounded to nothing beside a very large site."""
    assert largest_weight(make_job({"model": "mlp", **options}, 3), np.array([10, 2000])) == weight


def test_messages_and_seconds_of_each_site_are_counted():
    class Two:
        def ask(self, task, what):
            answer = Answer(b"12345")
            answer.seconds = 1.5
            yield "north", answer
            yield "south", Refusal("no")

    counted = Counted(Two())
    for _ in range(2):
        assert len(list(counted.ask("round", {"north": b"123", "south": b"1"}))) == 2
    assert counted.traffic == {
        "north": {"answers": 2, "sent_bytes": 6, "received_bytes": 10, "seconds": 3.0},
        "south": {"answers": 0, "sent_bytes": 2, "received_bytes": 0, "seconds": 0.0},
    }
    assert counted.lines()[0] == "north: 2 answers, 0 kB to it and 0 kB from it, 3.0 s of computation there"


MESSAGE = {"round": np.zeros([], np.int32)}
NAMES = ("east", "north", "south", "west")


class Away:
    """Sites that answer in rounds that `away` does not name, and the deadlines that were waited for."""

    def __init__(self, away):
        self.away, self.round, self.asked, self.deadlines = away, 0, [], 0

    def ask(self, task, what):
        self.asked.append(set(what))
        gone = {name for name in what if self.round in self.away.get(name, ())}
        self.deadlines += bool(gone)
        yield from ((name, to_bytes(MESSAGE)) for name in what if name not in gone)


def carrier_of(channel, note, quorum=1):
    run = Submission("a", None, channel, quorum, types.SimpleNamespace(note=note))
    return Carrier(run, Attendance({name: {} for name in NAMES}, {}), dict.fromkeys(NAMES, b""))


def carried(away, rounds, quorum=1):
    """The channel, the numbers that answered in each round, and the messages about them."""
    channel, reported, answered = Away(away), [], []
    carrier = carrier_of(channel, reported.append, quorum)
    for number in range(rounds):
        channel.round = number
        replies = dict(carrier.ask(range(len(NAMES)), MESSAGE))
        answered.append({NAMES[k] for k, reply in replies.items() if not isinstance(reply, str)})
    return channel, answered, reported


def test_silent_sites_are_waited_for_together_and_not_in_every_round_until_they_answer_again():
    channel, answered, reported = carried({"south": range(40), "west": range(40)}, 40)
    asked = [number for number, names in enumerate(channel.asked) if "west" in names]
    # Two rounds in a row, then after 2, 4, 8 and 16 rounds without it.
    assert asked == [0, 1, 4, 9, 18, 35] and channel.deadlines == len(asked)
    assert all(names == {"east", "north"} for names in answered)
    assert reported == [
        f"{name} did not answer in time: rounds continue without it until it answers again"
        for name in ("south", "west")
    ]
    channel, answered, reported = carried({"west": range(3)}, 8)
    assert ["west" in names for names in answered] == [False] * 4 + [True] * 4
    assert reported[-1] == "west answers again" and channel.deadlines == 2
    channel, answered, _ = carried({"west": [1, 3]}, 5)
    assert ["west" in names for names in answered] == [True, False, True, False, True]
    assert all(names == set(NAMES) for names in channel.asked)
    channel = Away({"west": range(9)})
    carrier = carrier_of(channel, print)
    list(carrier.ask(range(len(NAMES)), MESSAGE))
    assert carrier.silent == {"west"} and channel.deadlines == 1


@pytest.mark.parametrize("quorum", [3, 4])
def test_a_site_that_the_quorum_needs_is_asked(quorum):
    channel, _, _ = carried({"west": range(6)}, 6, quorum)
    assert ("west" in channel.asked[2]) == (quorum == 4)
