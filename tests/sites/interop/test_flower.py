"""The strategy for Flower, where Flower is installed (`make flower`); the program of the page where PyTorch is too."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import refuses
from tests.sites.interop.kill import kill_when

flwr = pytest.importorskip("flwr", reason="Flower is not installed")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

PROGRAM = Path(__file__).resolve().parents[3] / "docs/examples/flower/server.py"
FIRST = {"w": np.zeros(3)}


@pytest.fixture(autouse=True)
def identity():
    """What a program of Flower has before its first message."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def strategy(folder=None, **options):
    server = bfl.interop.Server(FIRST, 1.0, rule="log_linear_pool", folder=folder)
    return bfl.interop.flower_strategy(
        server, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0, **options
    )


def reply(message, node, mean, variance=0.5, examples=10, **metrics):
    """The answer of a client to a message of the strategy."""
    arrays = ArrayRecord({"mean/w": Array(np.full(3, mean)), "variance/w": Array(np.full(3, variance))})
    record = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": examples, **metrics})})
    return Message(record, reply_to=message)


class Grid:
    """Nodes whose clients answer with their number as their mean; node 3 answers with a negative variance."""

    def __init__(self, nodes=(1, 2)):
        self.nodes, self.rounds = nodes, []

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, timeout):
        answers = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.rounds.append(message.content["config"]["server-round"])
            answers.append(reply(message, node, float(node), -1.0 if node == 3 else 0.5, examples=10 * node))
        return answers


def test_rounds_are_those_of_the_server():
    """Means 1 and 2 of 10 and 20 examples, of equal precision, and a client that is left out."""
    result = strategy().start(Grid((1, 2, 3)), num_rounds=2)
    np.testing.assert_allclose(result.arrays["mean/w"].numpy(), np.full(3, 5 / 3), rtol=1e-6)
    np.testing.assert_allclose(result.arrays["variance/w"].numpy(), np.full(3, 0.5), rtol=1e-6)
    assert result.train_metrics_clientapp[2]["num_clients"] == 2


def test_a_run_goes_on_from_the_folder(tmp_path):
    strategy(tmp_path).start(Grid(), num_rounds=2)
    grid = Grid()
    strategy(tmp_path).start(grid, num_rounds=3)
    assert grid.rounds == [3, 3]
    done = strategy(tmp_path).start(grid, num_rounds=3)
    assert grid.rounds == [3, 3]
    np.testing.assert_allclose(done.arrays["mean/w"].numpy(), np.full(3, 5 / 3), rtol=1e-6)


def test_a_round_without_a_valid_reply_leaves_the_arrays(caplog):
    pooling = strategy()
    assert pooling.aggregate_train(1, []) == (None, None)
    result = pooling.start(Grid((3,)), num_rounds=1)
    assert len(result.arrays) == 0 and pooling.server.round == 0
    assert "No client has a valid answer in round 1 (" in caplog.text and "variance zero or below" in caplog.text


def test_replies_with_an_error_or_without_a_number_are_left_out(caplog):
    pooling = strategy(client_key="partition-id")
    [*messages] = pooling.configure_train(1, pooling._record(), ConfigRecord(), Grid((1, 2, 5)))
    good = reply(messages[0], 1, 4.0, **{"partition-id": 7})
    broken = Message(Error(code=0, reason="no memory"), reply_to=messages[1])
    arrays = ArrayRecord({"mean/w": Array(np.ones(3)), "variance/w": Array(np.ones(3))})
    silent = Message(RecordDict({"arrays": arrays}), reply_to=messages[2])
    record, metrics = pooling.aggregate_train(1, [good, broken, silent])
    np.testing.assert_allclose(record["mean/w"].numpy(), np.full(3, 4.0))
    assert metrics["num_clients"] == 1 and metrics["num_examples"] == 10
    assert "num_examples is -1, but must be a whole number of examples." in caplog.text


def test_nodes_that_state_the_same_client_and_broken_replies_are_left_out(caplog):
    pooling = strategy(client_key="partition-id")
    [*messages] = pooling.configure_train(1, pooling._record(), ConfigRecord(), Grid((1, 2, 3, 4)))
    stating = [reply(m, 1, 4.0, **{"partition-id": name}) for m, name in zip(messages, (7, 7, 8, 9))]
    stating[3].content["arrays"]["mean/w"].data = b"no array"
    record, metrics = pooling.aggregate_train(1, stating)
    assert metrics["num_clients"] == 1
    np.testing.assert_allclose(record["mean/w"].numpy(), np.full(3, 4.0))
    assert "2 nodes state that they are client 7: all are left out." in caplog.text
    assert "The reply of node 4 can't be read: " in caplog.text


def test_first_arrays_are_those_of_the_server():
    refuses("leave initial_arrays out", strategy().start, Grid(), ArrayRecord(), 1)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_program_of_the_page_goes_on_after_a_kill_to_the_same_bits(tmp_path):
    command = lambda folder, rounds: [sys.executable, str(PROGRAM), str(tmp_path / folder), str(rounds)]
    subprocess.run(command("whole", 6), check=True, capture_output=True, timeout=600)
    kill_when(tmp_path / "killed/round_2.npz", command("killed", 6))
    ended = subprocess.run(command("killed", 6), check=True, capture_output=True, text=True, timeout=600)
    assert "to 6: accuracy 0." in ended.stdout and "of the means alone: " in ended.stdout
    assert "rounds 1 to" not in ended.stdout
    whole, other = (np.load(tmp_path / folder / "round_6.npz") for folder in ("whole", "killed"))
    assert sorted(whole) == sorted(other)
    for name in whole:
        np.testing.assert_array_equal(whole[name], other[name])
