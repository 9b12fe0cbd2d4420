"""Bounds of a site on the weights of messages: the first ones follow from the job, later ones are near the last ones.

    ||w_r - w_s|| <= (r - s) max(||w_s||, 10 m),   m: the largest distance that the site itself moved the weights

for the last message s < r that the site answered. A server that chooses weights freely can make a neuron fire for one
example, and read the example from its gradient. The bounds delay this by a round and do not prevent it: noise does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.arrays import Arrays, digest_of, to_arrays

if TYPE_CHECKING:  # It imports TensorFlow, which refusals do not wait for.
    from tfp_bfl.sites.party import Versions

# Different messages of one round that a site answers: a round that failed is repeated with other weights at most twice.
MOST_MESSAGES = 3
_MOST_STEP = 10.0
# Of the first weights, between computers.
_ROUNDING = 1e-4
_CENTRES = ("weights/posterior/mean", "weights/posterior/values", "weights/point")
_RECORD = ("digest", "messages", "moved")


class Steps:
    """The weights of a run's messages, as a site checks them before its work.

    Args:
      first: weights before the first round, of the process that the site builds.
      store: store of the last messages.
    """

    def __init__(self, first: object, store: Versions):
        self._first, self._store = _centres(to_arrays({"weights": first})), store

    def check(self, done: int, message: Arrays) -> None:
        """Check the message of a round, and record it.

        Raises:
          InvalidArgument: the weights are not those of the job, or too far from the last ones, or the message is the
            fourth one of its round.
        """
        weights, digest = _centres(message), np.frombuffer(bytes.fromhex(digest_of(message)), np.uint8)
        last = next((version for version in range(done, -1, -1) if version in self._store), None)
        known = {} if last is None else dict(self._store[last])
        messages = int(known["messages"]) if last == done else 0
        if last == done and np.array_equal(known["digest"], digest):
            return
        if messages >= MOST_MESSAGES:
            raise InvalidArgument(f"It has answered {messages} messages of round {done + 1}, the most of one round.")
        if done == 0:
            far = [name for name, x in self._first.items() if _is_far(weights[name], x)]
            if far:
                raise InvalidArgument(
                    f"The first weights are not those of the job ({far[0]}): they follow from its seed."
                )
        else:
            earlier = {name: x for name, x in known.items() if name not in _RECORD} or self._first
            moved, rounds = float(known.get("moved", 0.0)), max(done - (last or 0), 1)
            distance, most = _distance(weights, earlier), rounds * max(_norm(earlier), _MOST_STEP * moved)
            if distance > most:
                raise InvalidArgument(
                    f"The weights are {distance:.3g} from those of the last message, and the bound is {most:.3g}: "
                    "their norm, or ten times the largest step of this site, in each round."
                )
        record = {"digest": digest, "messages": np.array(messages + 1), "moved": known.get("moved", np.zeros(()))}
        self._store[done] = {**weights, **record}

    def moved(self, done: int, message: Arrays, weights: object) -> None:
        """Record how far the site moved the weights of a round."""
        own = _centres(to_arrays({"weights": weights}))
        if own:
            record = dict(self._store[done])
            distance = _distance(own, _centres(message))
            self._store[done] = {**record, "moved": np.array(max(distance, float(record["moved"])))}


def _centres(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return means and point weights, by their names."""
    return {name: np.asarray(arrays[name]) for name in sorted(arrays) if name.startswith(_CENTRES)}


def _is_far(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.max(np.abs(x - y), initial=0.0) > _ROUNDING * (1 + np.max(np.abs(y), initial=0.0)))


def _norm(weights: Arrays) -> float:
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in weights.values())))


def _distance(a: Arrays, b: Arrays) -> float:
    return _norm({name: a[name].astype(np.float64) - b[name] for name in b if name in a})
