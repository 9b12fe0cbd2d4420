"""Named arrays of a model in any framework, as the weights of a round and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

Arrays = Mapping[str, np.ndarray]
_MOST_EXAMPLES = 2**31 - 1


class Names(NamedTuple):
    """The names and shapes of a model's arrays.

    Fields:
      posterior: name -> shape of the weights with mean and variance.
      point: name -> shape of the others.
    """

    posterior: dict[str, tuple[int, ...]]
    point: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, mean: Arrays, variance: Arrays | float, point: Arrays) -> tuple[Names, ModelWeights]:
        """Return the names and the weights of a server's first arrays; arguments as of `Server`.

        Raises:
          InvalidArgument: no arrays; means and variances that do not fit; an array that is not of finite floats.
        """
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
        shapes = lambda arrays: {name: np.shape(x) for name, x in arrays.items()}
        names = cls(shapes(mean), shapes(point))
        named = {"mean": mean, "variance": variance, "point": point}
        weights = names.weights({f"{kind}/{name}": x for kind, each in named.items() for name, x in each.items()})
        for name, x in zip(names.posterior, weights.posterior.variance):
            if not (x > 0).all():
                raise InvalidArgument(f"The variance of {shown(name)} must be above zero everywhere.")
        return names, weights

    def weights(self, arrays: object) -> ModelWeights:
        """Return named arrays as weights, float32; the sender need not be trusted.

        Raises:
          InvalidArgument: a name is missing or unknown, or an array has another shape, or is not of finite floats.
        """
        if not isinstance(arrays, Mapping):
            raise InvalidArgument(f"{shown(arrays)} is no mapping from names to arrays.")
        shapes = {f"{kind}/{name}": shape for kind, each in self._kinds() for name, shape in each.items()}
        for names, what in (
            (shapes.keys() - arrays.keys(), "miss"),
            (arrays.keys() - shapes.keys(), "have no place for"),
        ):
            if names:
                raise InvalidArgument(f"The arrays {what} {shown(min(names, key=str))}.")
        mean, variance, point = (
            tuple(_checked(f"{kind}/{name}", arrays[f"{kind}/{name}"], shape) for name, shape in each.items())
            for kind, each in self._kinds()
        )
        return ModelWeights(MeanField(mean, variance), point, MeanField((), ()))

    def arrays(self, weights: ModelWeights) -> dict[str, np.ndarray]:
        """Return weights as named arrays."""
        values = *weights.posterior, weights.point
        return {
            f"{kind}/{name}": np.asarray(x)
            for (kind, each), leaves in zip(self._kinds(), values)
            for name, x in zip(each, leaves)
        }

    def _kinds(self) -> tuple[tuple[str, dict[str, tuple[int, ...]]], ...]:
        return ("mean", self.posterior), ("variance", self.posterior), ("point", self.point)


def whole_number(value: object) -> int:
    """Check a number of examples, and return it as an int.

    Raises:
      InvalidArgument: it is no whole number, or outside 0 to 2^31 - 1.
    """
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, (int, np.integer))
        or not 0 <= value <= _MOST_EXAMPLES
    ):
        raise InvalidArgument(f"num_examples is {shown(value)}, but must be a whole number of examples.")
    return int(value)


def _checked(name: str, value: object, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is {shown(value)}, but must be an array of floats.") from None
    if array.dtype.kind != "f":
        raise InvalidArgument(f"{name} is of type {array.dtype}, but must be of floats.")
    if array.shape != shape:
        raise InvalidArgument(f"{name} has shape {list(array.shape)}, but must have {list(shape)}.")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise InvalidArgument(f"{name} is not finite.")
    return array
