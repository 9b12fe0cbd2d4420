"""The server of clients of any framework: a round over named NumPy arrays, and its state in a folder.

Arrays that are bad raise `InvalidArgument`.
"""

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from tfp_bfl import rules, servers
from tfp_bfl import weighting as weightings
from tfp_bfl.algorithms.fitting import check_fit, defended_rule
from tfp_bfl.contracts import AnyRule, ClientWork, ServerState, ServerStep
from tfp_bfl.data import ClientExamples
from tfp_bfl.data.names import canonical, natural
from tfp_bfl.errors import Error, InvalidArgument, check_count, check_number, lookup, shown
from tfp_bfl.federated.description import settings_of
from tfp_bfl.federated.faults import FAULTS, LIMITS, Limits, spoilt
from tfp_bfl.federated.local import as_arrays
from tfp_bfl.federated.round import Contribution, Round, make_round, types_of
from tfp_bfl.files import Path
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.posterior import MeanField
from tfp_bfl.sites.arrays import Arrays, digest_of, from_arrays, to_arrays
from tfp_bfl.sites.schema import outstanding
from tfp_bfl.weights import ClientResult, ModelWeights, Population, TrainingMetrics

logger = logging.getLogger(__name__)
WEIGHTINGS = ("equal", "train_size")
_MOST_EXAMPLES = 2**31 - 1
# Files of a folder: the newest, and one before it in case that it is damaged.
_KEPT = 2
# What a round reports of training, of which this server knows nothing.
_OF_TRAINING = ("nll", "kl", "tempered_elbo", "num_faulty", "clients")


class Answer(NamedTuple):
    """The answer of a client.

    Fields:
      client: name of the client.
      num_examples: number of its training examples, N_k.
      arrays: its "mean/NAME", "variance/NAME" and "point/NAME", for the names of the server's arrays.
    """

    client: str
    num_examples: int
    arrays: Arrays


class _Names:
    """The names and shapes of a server's first arrays, which are checked and become its first `weights`."""

    def __init__(self, mean: Arrays, variance: Arrays | float, point: Arrays):
        if not isinstance(variance, Mapping):
            value = check_number(variance, "variance")
            variance = {name: np.full(np.shape(x), value, np.float32) for name, x in mean.items()}
        if not (mean or point):
            raise InvalidArgument("A server needs arrays: give mean with variance, or point.")
        if mean.keys() != variance.keys():
            name = min(mean.keys() ^ variance.keys())
            raise InvalidArgument(
                f"mean and variance must have the same names, but {shown(name)} is in one of them only."
            )
        self._spec = {
            kind: {name: tf.TensorSpec(np.shape(x), tf.float32) for name, x in each.items()}
            for kind, each in {"mean": mean, "variance": mean, "point": point}.items()
        }
        given = {"mean": mean, "variance": variance, "point": point}
        self.first = self.weights({f"{kind}/{name}": x for kind, each in given.items() for name, x in each.items()})
        for name, x in zip(self._spec["mean"], self.first.posterior.variance):
            if not (x > 0).all():
                raise InvalidArgument(f"The variance of {shown(name)} must be above zero everywhere.")

    def weights(self, arrays: object) -> ModelWeights:
        """Return named arrays of floats as weights, float32; the sender need not be trusted."""
        if isinstance(arrays, Mapping):
            arrays = {name: _floats(name, x) for name, x in arrays.items()}
        found = from_arrays(arrays, self._spec)
        mean, variance, point = (tuple(found[kind][name] for name in each) for kind, each in self._spec.items())
        return ModelWeights(MeanField(mean, variance), point, MeanField((), ()))

    def arrays(self, weights: ModelWeights) -> dict[str, np.ndarray]:
        """Return weights as named arrays."""
        values = zip(self._spec.items(), (*weights.posterior, weights.point))
        return {f"{kind}/{name}": np.asarray(x) for (kind, each), own in values for name, x in zip(each, own)}


def _floats(name: str, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is {shown(value)}, but must be an array of floats.") from None
    if array.dtype.kind != "f":
        raise InvalidArgument(f"{name} is of type {array.dtype}, but must be of floats.")
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


class Server:
    """A server that pools means and variances of clients, which may be trained in any framework.

    q <- step(q, rule(q_1, ..., q_K)),   q_k = N(mean_k, diag(variance_k))

    One call of `next` is one round. Sums are added in the order of the clients' names, so that the result does not
    depend on the order of arrival.

    Args:
      mean: name -> means of the weights with a posterior, any shape.
      variance: name -> their variances, of the same shapes; or a number for all.
      point: name -> weights without a posterior, such as biases: averaged by the clients' weights. Statistics of
        BatchNorm may be among them. None for none.
      rule: of `tfp_bfl.rules`, or its name. "log_linear_pool" fits clients by natural gradients,
        "mean_precision_average" means by SGD; "distributed_weight_consolidation" is the server of partitioned
        variational inference, whose clients send q with their new factor in the place of the old one.
      server_step: of `tfp_bfl.servers`; None for `servers.replace()`. `factors.step.dual(...)` with rule
        "log_linear_pool" and weighting "equal" is Bayesian ADMM's.
      weighting: "train_size" or "equal".
      robust: a robust aggregator, such as "trimmed:0.2" or "median" (`rules.parse_robust`).
      num_clients: K, of all clients of the federation, which `factors.step.dual` needs; None for the most that were in
        a round.
      folder: the folder where the state is written after each round and from which a new server resumes, of one server
        at a time; None for memory alone.
      seed: of a server step or rule with noise.
      min_stddev: smallest standard deviation. A client below half of it is faulty; the pool comes up to it.
      max_magnitude: a client that sends a mean, standard deviation or point weight beyond this is faulty.
      max_change_norm: a client whose weights moved further than this is faulty; None for any distance.
      min_examples: a client with fewer is faulty.
      max_examples: with "train_size" no client weighs more than with so many, whatever it states; None for no bound.

    Example:
      >>> import numpy as np
      >>> server = bfl.interop.Server({"w": np.zeros(2)}, 1.0, rule="log_linear_pool")
      >>> answers = [
      ...     bfl.interop.Answer(name, 10, {"mean/w": np.full(2, mean), "variance/w": np.full(2, 0.5)})
      ...     for name, mean in (("a", 1.0), ("b", 3.0))
      ... ]
      >>> server.next(answers)["num_clients"]
      2
      >>> server.arrays["mean/w"], server.arrays["variance/w"]
      (array([2., 2.], dtype=float32), array([0.5, 0.5], dtype=float32))
    """

    def __init__(
        self,
        mean: Arrays,
        variance: Arrays | float,
        point: Arrays | None = None,
        *,
        rule: AnyRule = "log_linear_pool",
        server_step: ServerStep | None = None,
        weighting: str = "train_size",
        robust: str | None = None,
        num_clients: int | None = None,
        folder: Path | None = None,
        seed: int = 0,
        min_stddev: float = 1e-5,
        max_magnitude: float = LIMITS.max_magnitude,
        max_change_norm: float | None = None,
        min_examples: int = 1,
        max_examples: int | None = None,
    ):
        lookup(dict.fromkeys(WEIGHTINGS), weighting, "weighting")
        self._names = _Names(mean, variance, point or {})
        limits = Limits(max_magnitude, max_change_norm, min_examples, min_stddev).checked()
        self._step = servers.replace() if server_step is None else server_step
        whole = rules.whole_model(rule)
        if whole.randomise is not None:
            raise InvalidArgument(
                f"The rule {whole.name!r} hides clients by noise of a secret, which this server does not have: give a "
                "rule without noise."
            )
        work: ClientWork = ClientWork(_elsewhere)
        check_fit(work, whole, self._step)
        self._round = make_round(
            self._names.first,
            client_work=work,
            weigh=weightings.WEIGHTINGS[weighting],
            rule=defended_rule(whole, work, weighting, robust, None, None),
            server_step=self._step,
            element_spec=ClientExamples(*[tf.TensorSpec([None], tf.int32)] * 3),
            seed=seed,
            limits=limits,
        )
        traced = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        self._conclude, self._add, self._take = map(traced, (self._round.conclude, self._round.add, self._taken))
        known = Population().num_clients if num_clients is None else check_count(num_clients, "num_clients")
        state = as_arrays(self._round.initialize())
        state = state._replace(federation=state.federation._replace(num_clients=np.int32(known)))
        self._by_size = weighting == "train_size"
        self._max_examples = None if max_examples is None else check_count(max_examples, "max_examples")
        self._suspects = whole.name, self._step.name, max_magnitude
        words = settings_of(rule=whole, step=self._step, limits=limits)
        settings = whole.name, self._step.name, words, weighting, robust, known, seed, self._max_examples
        self._store = None if folder is None else _Store(folder, self._round, state, settings)
        self._state: ServerState = (self._store and self._store.newest()) or state

    @property
    def state(self) -> ServerState:
        """State after the last round, a `contracts.ServerState`."""
        return self._state

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return int(self.state.round)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Weights that clients are sent: "mean/NAME", "variance/NAME" and "point/NAME", float32."""
        return self._names.arrays(self.state.weights)

    @property
    def predictive(self) -> dict[str, np.ndarray]:
        """Weights that predict (`contracts.ServerStep.predictive`), named as `arrays`."""
        return self._names.arrays(as_arrays(self._step.predictive(self.state.step, self.state.weights)))

    def next(self, answers: Iterable[Answer]) -> dict[str, Any]:
        """Pool the answers of a round, and take the server's step.

        Args:
          answers: of the clients of the round, in any order. Those with a fault are left out.

        Returns:
          "round"; "num_clients" that were pooled; "num_examples" of these; "faulty", client -> reason; "change",
          client -> root mean square change of its weights; "warnings", of clients that state far more examples than
          the others, by which they are weighted; "stddev_median" and what rule and step report besides.

        Raises:
          Error: no answer is valid, or the next weights are not finite. The state is that of the round before.
        """
        given = _by_client(answers)
        clients, state = list(given), tf.nest.map_structure(tf.convert_to_tensor, self.state)
        total, faulty = None, dict[str, str]()
        for number, (name, answer) in enumerate(given.items()):
            try:
                weights, size = self._names.weights(answer.arrays), answer.num_examples
                is_whole = isinstance(size, (int, np.integer)) and not isinstance(size, (bool, np.bool_))
                if not (is_whole and 0 <= size <= _MOST_EXAMPLES):
                    raise InvalidArgument(f"num_examples is {shown(size)}, but must be a whole number of examples.")
            except InvalidArgument as error:
                faulty[name] = str(error)
                continue
            size = min(int(size), self._max_examples or _MOST_EXAMPLES)
            one = self._take(state, tf.nest.map_structure(tf.constant, weights), tf.constant(size), tf.constant(number))
            total = one if total is None else self._add(total, one)
        if total is None:
            self._refuse(faulty)
        after, metrics = self._conclude(state, total)
        after, metrics = as_arrays(after), as_arrays(metrics)
        report, change = metrics["clients"], {}
        for number, fault, size in zip(report["client"], report["fault"], report["change"]):
            if fault:
                faulty[clients[number]] = FAULTS[fault]
            else:
                change[clients[number]] = float(size)
        if not change:
            self._refuse(faulty)
        if wrong := spoilt(after, *self._suspects):
            raise Error(f"{wrong}; the state is unchanged.")
        if self._store is not None:
            self._store.write(after)
        self._state = after
        numbers = {name: x.item() for name, x in metrics.items() if name not in _OF_TRAINING}
        counted = {**numbers, "num_clients": len(change), "faulty": faulty, "change": change}
        by_size = self._by_size and self._max_examples is None
        large = outstanding({name: int(given[name].num_examples) for name in change}) if by_size else {}
        warnings = [f"{sentence} Nobody can verify this number; max_examples bounds it." for sentence in large.values()]
        return {"round": self.round, **counted, "warnings": warnings}

    def next_or_warn(self, answers: Iterable[Answer], warn: Callable[[str], object]) -> dict[str, Any] | None:
        """Run `next`, and warn of clients that are left out; None for a round that left the server as it is."""
        try:
            metrics = self.next(answers)
        except Error as error:
            warn(str(error))
            return None
        for client, reason in metrics["faulty"].items():
            warn(f"The answer of client {client} is left out: {reason}")
        return metrics

    def _taken(self, state: ServerState, weights: ModelWeights, size: tf.Tensor, number: tf.Tensor) -> Contribution:
        nothing = TrainingMetrics(tf.constant(0.0), tf.constant(0.0), tf.constant(0.0), tf.constant(0))
        message = self._round.broadcast(state).message
        return self._round.take(message, ClientResult(weights, size, nothing), number, size)

    def _refuse(self, faulty: dict[str, str]) -> NoReturn:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in faulty.items())
        raise Error(f"No client has a valid answer in round {self.round + 1} ({reasons}). The state is unchanged.")


def _by_client(answers: Iterable[Answer]) -> dict[str, Answer]:
    given: dict[str, Answer] = {}
    for answer in answers:
        if not isinstance(answer.client, str) or not (name := canonical(answer.client)):
            raise InvalidArgument(f"A client is named {shown(answer.client)}, but its name must be text.")
        if name in given:
            raise InvalidArgument(f"The client {shown(name)} answers twice in one round: give one answer of it.")
        given[name] = answer
    if not given:
        raise InvalidArgument("A round needs the answer of at least one client.")
    return {name: given[name] for name in sorted(given, key=natural)}


def _elsewhere() -> NoReturn:
    raise InvalidArgument("The clients of an interop.Server work in programs of their own.")


class _Store:
    """Files `round_N.npz` in a folder, each the state after round N.

    Two servers of one folder must have the `first` state, arrays, and the `settings` in common.
    """

    def __init__(self, folder: Path, round: Round, first: ServerState, settings: Sequence[Any]):
        self._folder, self._spec = pathlib.Path(folder), types_of(round.initialize)
        words = digest_of(to_arrays(first)), *map(repr, settings)
        self._digest = np.frombuffer(hashlib.sha256("\n".join(words).encode()).digest(), np.uint8)
        self._seen = self._mark()

    def write(self, state: ServerState) -> None:
        """Write the state after a round; the file is there whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._folder, os.O_RDONLY)
        with contextlib.ExitStack() as lock:
            lock.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self._mark() != self._seen:
                raise Error(
                    f"Another server has written a round to {self._folder} since this one read it: end one of the two, "
                    "and start the other anew to resume from that round. The state is unchanged."
                )
            arrays = {**to_arrays(state), "settings": self._digest}
            write_arrays(self._folder / f"round_{int(state.round)}.npz", arrays)
            for path in self._files()[_KEPT:]:
                path.unlink(missing_ok=True)
            self._seen = self._mark()

    def _mark(self) -> tuple[str, int, int] | None:
        """Return what identifies the newest file: each write makes a new one."""
        for path in self._files()[:1]:
            stat = path.stat()
            return path.name, stat.st_ino, stat.st_mtime_ns
        return None

    def newest(self) -> ServerState | None:
        """Return the newest state that can be read; None where there is no file."""
        damage = None
        for path in self._files():
            try:
                arrays = read_arrays(path, "state", path.stat().st_size)
                if np.array_equal(arrays.pop("settings"), self._digest):
                    state: ServerState = from_arrays(arrays, self._spec)
                    return state
            except (InvalidArgument, KeyError) as error:
                damage = damage or error
                logger.warning("%s is left out: %s", path, error)
                continue
            raise InvalidArgument(
                f"{self._folder} holds rounds of a server with other first arrays, rule or options: give another one."
            )
        if damage is not None:
            raise InvalidArgument(f"No file of {self._folder} can be read: {damage}") from damage
        return None

    def _files(self) -> list[pathlib.Path]:
        """Return the files, the newest first."""
        numbered = ((re.fullmatch(r"round_(\d+)\.npz", path.name), path) for path in self._folder.glob("round_*.npz"))
        found = [(int(match[1]), path) for match, path in numbered if match]
        return [path for _, path in sorted(found, reverse=True)]
