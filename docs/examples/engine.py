"""An engine: it carries the messages of a round between the server and the clients, and computes nothing itself."""

import contextlib
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl


class Output(NamedTuple):
    state: Any
    metrics: Any


def arrays(structure):
    return tf.nest.map_structure(np.asarray, structure)


class OneByOne:
    """Run the clients of a round one after another in this process, and count the bytes of the messages to them."""

    accepts = "datasets"  # what stands for the data of the clients of a round
    concurrent_calls = 1  # into how many datasets the clients of a round are divided

    def __init__(self, process):
        self._round = process.round
        self._client = self._round.build_client()  # the client's variables and its function
        self.num_bytes = 0

    def initialize(self):
        return arrays(self._round.initialize())

    def next(self, state, datasets):
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        message = self._round.broadcast(state)
        contributions = []
        for examples in (examples for dataset in datasets for examples in dataset):  # each element is one client
            self.num_bytes += sum(x.nbytes for x in tf.nest.flatten(arrays(message)))
            contributions.append(self._client(message, examples))
        total = functools.reduce(self._round.add, contributions)  # any order and any grouping of the sum
        return Output(*map(arrays, self._round.conclude(state, total)))

    def replace_dead_workers(self):
        return 0  # there are no workers


@contextlib.contextmanager
def one_by_one(process, runtime):  # what `simulate` calls; `runtime` is that of its options, or None
    engine = OneByOne(process)
    yield engine
    print(f"{engine.num_bytes / 1e3:.1f} kB sent to the clients")


if __name__ == "__main__":
    train = bfl.data.load("breast_cancer")
    clients = train.partition(bfl.data.iid(num_clients=3), seed=0)
    process = bfl.algorithms.variational(lambda: bfl.models.mlp("flipout", (30,), 2, hidden=(8,), seed=0))
    mine, local = (bfl.simulate(process, clients, rounds=2, engine=name).state for name in (one_by_one, "local"))
    pairs = zip(tf.nest.flatten(mine.weights), tf.nest.flatten(local.weights))
    print(f"largest difference from the engine local: {max(np.abs(a - b).max() for a, b in pairs):.0e}")
