"""Bounds of a site on the messages of rounds: the first one follows from the job, later ones are near the last one.

    ||w_r - w_s|| <= (r - s) max(||w_s||, 10 m),   m: the largest distance that the site itself moved the weights

for the last message s < r that the site answered. What the server sends beside the weights, such as the control variate
of SCAFFOLD, has the same bound with m as the largest norm that the site itself sent for it; earlier weights, such as
an anchor, are those of the last message or within the bound on the weights. A server that chooses these numbers freely
can make a neuron fire for one example, and read the example from its gradient. The bounds delay this by a round and do
not prevent it: noise does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.arrays import Arrays, ByRound, digest_of, to_arrays

if TYPE_CHECKING:  # It imports TensorFlow, which refusals do not wait for.
    from tfp_bfl.federated.process import BayesianProcess

# Different messages of one round that a site answers: a round that failed is repeated with other weights at most twice.
MOST_MESSAGES = 3
_MOST_STEP = 10.0
# Of the first weights, between computers.
_ROUNDING = 1e-4
_CENTRES = ("weights/posterior/mean", "weights/posterior/values", "weights/point")
_VECTORS = "extra"


class SentWeights:
    """The content of a run's messages, as a site checks it before its work, and the `store` of the last ones.

    A sum over `num_sites` sites can exceed the site's own part by that number.
    """

    def __init__(self, process: BayesianProcess, store: ByRound[dict[str, np.ndarray]], num_sites: int = 1):
        message = process.round.broadcast(process.round.initialize()._replace(noise=())).message
        self._extra, self._first = message.extra, _chosen(to_arrays(message), ("weights/", _VECTORS))
        self._has_own_vectors = bool(_chosen(self._first, _VECTORS)) and not self._are_weights(self._first)
        self._factor = _MOST_STEP * (num_sites if process.client_work.sends != "weights" else 1)
        self._store = store

    def check(self, done: int, message: Arrays, measure: Callable[[Any], Any] | None = None) -> None:
        """Check the message of the round after `done` rounds, and record it.

        `measure`: (vectors beside the weights) -> the site's result with them; called with those of the job where the
        site answers for the first time in a later round.
        """
        digest = np.frombuffer(bytes.fromhex(digest_of(message)), np.uint8)
        last = next((version for version in range(done, -1, -1) if version in self._store), None)
        known = {} if last is None else dict(self._store[last])
        messages = int(known["messages"]) if last == done else 0
        if last == done and np.array_equal(known["digest"], digest):
            return
        if messages >= MOST_MESSAGES:
            raise InvalidArgument(f"It has answered {messages} messages of round {done + 1}, the most of one round.")
        largest = {name: float(known.get(name, 0.0)) for name in ("moved", "sent")}
        if done and not known and measure is not None and self._has_own_vectors:
            largest["sent"] = _norm(self._own_vectors(measure(self._extra)))
        sent = _chosen(message, (*_CENTRES, _VECTORS))
        if done:
            self._check_near(sent, known or self._first, largest, max(done - (last or 0), 1))
        for name, x in self._first.items() if not done else ():
            if _is_far(np.asarray(message[name]), x):
                what = "vectors beside the weights" if name.startswith(_VECTORS) else "weights"
                raise InvalidArgument(f"The first {what} are not those of the job ({name}): they follow from its seed.")
        record = {"digest": digest, "messages": np.array(messages + 1)}
        self._store[done] = {**sent, **record, **{name: np.array(x) for name, x in largest.items()}}

    def _check_near(self, sent: Arrays, earlier: Arrays, largest: dict[str, float], rounds: int) -> None:
        weights, vectors = _chosen(sent, _CENTRES), _chosen(sent, _VECTORS)
        last, last_vectors = _chosen(earlier, _CENTRES), _chosen(earlier, _VECTORS)
        most = rounds * max(_norm(last), _MOST_STEP * largest["moved"])
        _check_distance("weights", _distance(weights, last), most, "ten times the largest step of this site")
        if not self._are_weights(sent):
            of_vectors = rounds * max(_norm(last_vectors), self._factor * largest["sent"])
            distance, step = _distance(vectors, last_vectors), f"{self._factor:g} times the largest one of this site"
            _check_distance("vectors beside the weights", distance, of_vectors, step)
        elif any(_is_far(vectors[name], x) for name, x in last_vectors.items()):
            distance = _distance(vectors, dict(zip(vectors, last.values())))
            _check_distance("weights of an earlier round", distance, most, "ten times the largest step")

    def moved(self, done: int, message: Arrays, result: Any) -> None:
        """Record how far the site moved the weights of a round, and the norm of what it sends beside them."""
        own, record = _chosen(to_arrays({"weights": result.weights}), _CENTRES), dict(self._store[done])
        found = {"moved": _distance(own, _chosen(message, _CENTRES)), "sent": _norm(self._own_vectors(result))}
        self._store[done] = {**record, **{name: np.array(max(x, float(record[name]))) for name, x in found.items()}}

    @staticmethod
    def _own_vectors(result: Any) -> Arrays:
        weights = to_arrays({"weights": result.weights})
        beside = {} if _chosen(weights, _CENTRES) else weights
        return _chosen({**to_arrays({"extra": result.extra}), **beside}, "")

    @staticmethod
    def _are_weights(arrays: Arrays) -> bool:
        """Return whether the vectors are weights of the model, such as an anchor."""
        shapes = [[x.shape for x in _chosen(arrays, prefix).values()] for prefix in (_CENTRES, _VECTORS)]
        return shapes[0] == shapes[1]


def _chosen(arrays: Arrays, prefixes: str | tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the arrays of floats whose names begin with one of the prefixes, by their names."""
    found = {name: np.asarray(arrays[name]) for name in sorted(arrays) if name.startswith(prefixes)}
    return {name: x for name, x in found.items() if np.issubdtype(x.dtype, np.floating)}


def _check_distance(what: str, distance: float, most: float, step: str) -> None:
    if distance > most:
        raise InvalidArgument(
            f"The {what} are {distance:.3g} from those of the last message, and the bound is {most:.3g}: their norm, "
            f"or {step}, in each round."
        )


def _is_far(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.max(np.abs(x - y), initial=0.0) > _ROUNDING * (1 + np.max(np.abs(y), initial=0.0)))


def _norm(weights: Arrays) -> float:
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in weights.values())))


def _distance(a: Arrays, b: Arrays) -> float:
    return _norm({name: a[name].astype(np.float64) - b[name] for name in b if name in a})
