"""Engines that run a process's rounds: TFF's workers, a Ray cluster, or this process."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.errors import InvalidArgument, check_count, lookup
from tfp_bfl.faces import engine
from tfp_bfl.federated.local import Accepts
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.machine import num_cores


class Engine(Protocol):
    """Engine that carries a round's messages between its functions, without computation.

    Attributes:
      concurrent_calls: how many datasets of clients are worked through at once.
      accepts: what stands for the data of a part of a round's clients: "datasets"; "rows", which are `data.ClientRows`
        of clients in memory, and datasets of others; "examples", a `clients.Share`, of an engine with
        `expect(sizes)`, which is called with the sizes of all clients before the first round; "references", a
        `data.Reference`.
    """

    accepts: Accepts
    concurrent_calls: int

    def initialize(self) -> ServerState:
        """Return the state before the first round, of arrays."""

    def next(self, state: ServerState, datasets: Sequence[Any]) -> Any:
        """Return the `state` after one more round over the datasets' clients, and its `metrics`, of arrays.

        The datasets are what the clients' `shards` gave. Also `left_out`, of an engine that knows clients by number:
        clients without an answer, or with an invalid one, with the reason. After a ComputationError of a client's work
        another round may do without it; after a WorkerError what runs the round is gone.
        """

    def replace_dead_workers(self) -> int:
        """Start anew what is gone; return how many of them, 0 if that is no use."""


MakeEngine = Callable[[BayesianProcess, Any], contextlib.AbstractContextManager[Engine]]


def _here(name: str) -> MakeEngine:
    """Return what makes an engine of this process."""

    @contextlib.contextmanager
    def make(process: BayesianProcess, runtime: object) -> Iterator[Engine]:
        if runtime is not None:
            raise InvalidArgument(f"runtime holds workers of the engine tff or ray, and this is {name}: leave one out.")
        yield getattr(process, name)

    return make


def _carried(name: str) -> MakeEngine:
    return lambda process, runtime: engine(name).running(process, runtime)


# Engines that are attributes of a process.
_HERE = ("local", "compiled")
# A new engine is one more entry here.
ENGINES: dict[str, MakeEngine] = {
    "tff": _carried("tff"),
    **{name: _here(name) for name in _HERE},
    "ray": _carried("ray"),
}


def default_engine() -> str:
    """Return "tff" where TensorFlow Federated is installed, "local" elsewhere."""
    return "tff" if engine("tff").is_installed() else "local"


def check_engine(name: str | None) -> str:
    """Return the name of an engine, the default's for None, whose package must be installed."""
    name = default_engine() if name is None else name
    lookup(ENGINES, name, "engine")
    if name not in _HERE:
        engine(name).check_installed()
    return name


def share_cores(num_clients: int) -> None:
    """Split the cores among the clients that are worked through at once: operations of small models are faster so.

    Without effect once TensorFlow has computed anything in this process, or where TF_NUM_INTRAOP_THREADS is set.
    """
    check_count(num_clients, "num_clients")
    cores = num_cores()
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # It has started.
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // min(cores, num_clients)))
