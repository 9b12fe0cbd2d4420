"""The work that is timed: the same clients for the library and for its peers."""

from __future__ import annotations

import numpy as np
from peers import arguments
from peers.arguments import Clock, peak_mb
from sides import Side

import tfp_bfl as bfl

DATASETS = {"lenet": "fashion_mnist", "resnet20": "cifar10"}


def make_clients(model: str, num_clients: int, examples: int, unequal: bool = False) -> bfl.data.Clients:
    """Return clients one after another from the train split, from its start again at its end, with as many examples
    each.

    With `unequal` client k = 1..K has about 2 k / (K + 1) times as many instead, in whole batches of 32, and all
    together the same number.
    """
    source = bfl.data.load(DATASETS[model], split="train")
    rows = np.arange(num_clients * examples) % source.num_examples
    shares = np.cumsum(np.arange(1, num_clients + 1) if unequal else np.ones(num_clients))
    unit = 32 if unequal else 1
    ends = unit * np.round(shares[:-1] / shares[-1] * len(rows) / unit).astype(int)
    return bfl.data.Clients(source, np.split(rows, ends))


def read_clients(path: str, model: str) -> bfl.data.Clients:
    """Return the clients in a file that the peers read too, so that no side spends memory on another dataset.

    Raises:
      ValueError: the file is absent, or does not hold clients that the model can learn from.
    """
    held = arguments.read(path, model)
    names = tuple(map(str, range(arguments.NUM_CLASSES)))
    source = bfl.data.Source(DATASETS[model], "train", held.features, held.labels, names)
    return bfl.data.Clients(source, np.split(np.arange(len(held.labels)), np.cumsum(held.sizes)[:-1]))


def make_process(model: str, side: Side, clients: bfl.data.Clients, batch_size: int = 32):
    """Return the process of a side: one local epoch, averaged by the number of examples."""

    def model_fn():
        shape = clients.source.element_shape
        return bfl.models.MODELS[model](kind=side.kind, input_shape=shape, precision=side.precision)

    options = {"element_spec": clients.element_spec, "batch_size": batch_size, **side.training()}
    return bfl.algorithms.variational(model_fn, side.rule, "train_size", local_epochs=1, **options)


class Rounds(Clock):
    """Callback `on_round` of `bfl.simulate`: records CPU seconds of each round and the processes' peak memory."""

    peak = 0.0

    def __call__(self, row: dict) -> None:
        self.lap()
        self.peak = peak_mb()

    def cpu_of_a_round(self) -> float | None:
        """Return median, without the first round, which compiles, and the last, after which the model is built anew."""
        return float(np.median(self.cpu_seconds[1:-1])) if len(self.cpu_seconds) > 2 else None


def simulate(process, clients, rounds: int, engine: str = "tff", workers: int = 1, **options):
    """Return the result of `bfl.simulate`, its `Rounds`, and the workers' peak memory in MB (without workers None)."""
    seen = Rounds()
    if engine != "tff":
        result = bfl.simulate(process, clients, rounds=rounds, engine=engine, on_round=seen, **options)
        return result, seen, None
    with bfl.engines.tff.local_workers(workers) as runtime:
        result = bfl.simulate(process, clients, rounds=rounds, runtime=runtime, on_round=seen, **options)
        return result, seen, sum(worker.peak_memory_bytes() for worker in runtime.workers) / 1e6
