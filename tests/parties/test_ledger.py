"""A party that bounds what all runs together tell of one of its examples."""

import json
import sys

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.parties.test_deployment import Channel, hospitals, run  # noqa: F401  (a fixture)
from tfp_bfl.errors import Error, InvalidArgument, MissingDependency
from tfp_bfl.files.arrays import arrays_of
from tfp_bfl.parties.deployment.channel import BEGIN, ROUND
from tfp_bfl.parties.deployment.ledger import Ledger
from tfp_bfl.parties.deployment.site import FILE, Site
from tfp_bfl.privacy import Steps, composed_epsilon, example_steps

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.cpu_seconds(60)

OPTIONS = {"model": "mlp", "rounds": 2, "local_epochs": 2, "example_clip_norm": 1.0, "example_noise": 2.0}
TOLD = Steps(2.0, 0.25, 8)
MESSAGE = {"round": np.int32(0), "x": np.ones(3, np.float32)}


def ledger(folder, run="first", told=TOLD, rounds=2, limit=9.0):
    return Ledger(folder, run, told, rounds, limit, 1e-5)


def test_runs_add_up_until_the_limit(tmp_path):
    one = composed_epsilon([TOLD._replace(number=16)])
    ledger(tmp_path, limit=1.2 * one)
    with pytest.raises(InvalidArgument, match=rf"allows epsilon .* over all runs, which would be .* after {one:.3g}"):
        ledger(tmp_path, "second", limit=1.2 * one)
    assert [path.name for path in tmp_path.iterdir()] == ["first.json"]
    # The same run, begun again, tells nothing more.
    ledger(tmp_path, limit=1.2 * one)
    ledger(tmp_path, "second", limit=2 * one)


def test_a_run_of_the_same_name_is_the_same_run(tmp_path):
    ledger(tmp_path)
    with pytest.raises(InvalidArgument, match="It has taken part in another run of the name first"):
        ledger(tmp_path, rounds=1)


def test_a_round_has_one_message(tmp_path):
    found = ledger(tmp_path)
    found.charge(MESSAGE)
    ledger(tmp_path).charge(MESSAGE)
    with pytest.raises(InvalidArgument, match="It has answered another message of round 1"):
        ledger(tmp_path).charge({**MESSAGE, "x": np.zeros(3, np.float32)})
    for number in (2, -1):
        with pytest.raises(InvalidArgument, match="It has agreed to 2 rounds, and round"):
            found.charge({**MESSAGE, "round": np.int32(number)})


def test_without_noise_there_is_no_bound(tmp_path):
    with pytest.raises(InvalidArgument, match="would be without a bound with this one"):
        ledger(tmp_path, told=TOLD._replace(noise_multiplier=0.0))


@pytest.mark.parametrize("text", ["", "[]", '{"told": [1, 2]}', '{"told": [1, 0.5, 3], "rounds": "x", "messages": {}}'])
def test_a_ledger_that_cant_be_read_ends_it(tmp_path, text):
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"old\.json of its ledger can't be read"):
        ledger(tmp_path)


def bound(folder, epsilon):
    file = folder / "west" / "local" / FILE
    file.write_text(file.read_text() + f"max_example_epsilon: {epsilon}\n")


def test_a_party_with_a_bound_takes_part_in_runs_that_keep_it(hospitals):  # noqa: F811
    bound(hospitals, 3.0)
    with pytest.raises(Error, match=r"quorum is 3 .*west: Its file allows only runs that hide examples: submit with"):
        run(hospitals, Channel(hospitals), "open", {"model": "mlp", "rounds": 1}, quorum=3)
    channel = Channel(hospitals)
    done = run(hospitals, channel, "first", OPTIONS, quorum=3)
    summary = json.loads((done / "summary.json").read_text())
    assert summary["num_clients"] == 3
    fewest = min(told["num_examples"] for told in json.loads((done / "parties.json").read_text()).values())
    steps = example_steps(2.0, fewest, batch_size=32, epochs=4)
    assert summary["example_epsilon"] == composed_epsilon([steps]) and summary["delta"] == 1e-5
    assert bfl.export.read_info(done / "saved_model").metrics["example_epsilon"] == summary["example_epsilon"]
    ledger_file = hospitals / "west" / "local" / "ledger" / "first.json"
    assert len(json.loads(ledger_file.read_text())["messages"]) == 2
    # Whoever asks again with another message, from the party's start on, is refused.
    told = {task: content for task, name, content in channel.sent if name == "west"}
    site = Site(hospitals / "west" / "local")
    site.begin(told[BEGIN].decode())
    message = arrays_of(told[ROUND], "message", 2**30)
    site.answer(message)
    other = {name: np.asarray(x + 1, x.dtype) if x.dtype == np.float32 else x for name, x in message.items()}
    with pytest.raises(InvalidArgument, match="It has answered another message of round 2"):
        site.answer(other)
    with pytest.raises(Error, match=r"west: Its file allows epsilon 3 for an example over all runs"):
        run(hospitals, Channel(hospitals), "second", {**OPTIONS, "rounds": 9}, quorum=3)


def test_what_counts_is_missed_when_the_party_starts_and_not_in_a_round(hospitals, monkeypatch):  # noqa: F811
    bound(hospitals, 3.0)
    file = hospitals / "west" / "local" / FILE
    file.write_text(file.read_text() + "delta: 1.0e-7\n")
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingDependency, match="dp-accounting, which is not installed"):
        Site(hospitals / "west" / "local")
