"""Variances of a model's weights, for each client of a federation, from parameters that the server learns."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, check_count, check_number, lookup
from tfp_bfl.keywords import show
from tfp_bfl.layers.variational_dropout import LOGIT_RANGES, MIN_VARIANCE, PARAMETRIZATIONS, checked_range
from tfp_bfl.tensors import Scalar
from tfp_bfl.weights.model_weights import layout

RANGES = {
    "smooth": "middle + side tanh(raw / side), side the distance to the end of the range: it never loses its gradient",
    "clamped": "middle + raw, cut at the range's ends, where it has none; as published",
}


# Weights without noise have the lowest log variance of the range: -12 is a standard deviation of .0025.
MOST_SILENT = -12.0
# Weights by which `check_threshold` judges where all start.
_SOME = 10_000


class Parameters(NamedTuple):
    """The parameters that the server learns.

    Fields:
      shared: of all clients, tensors.
      rows: of each client, [M, ...]; () for none.
      middle: the constant initial logits [D]; () if they are one number for all weights.
    """

    shared: tuple[tf.Tensor, ...]
    rows: Any
    middle: Any = ()


class LogitGradient(NamedTuple):
    """A client's change of its logits, pulled back to the parameters that gave them: extra statistics of its result.

    Fields:
      shared: (d l / d psi)^T (l - l'), tensors.
      rows: (d l / d e)^T (l - l') in the client's row, zeros in all others [M, ...]; () for parameters without rows.
      present: 1 in the client's row, 0 in all others [M].
      moved: ||l - l'||^2, a scalar.
    """

    shared: Any
    rows: Any
    present: Any
    moved: Any


class PersonalVariances(NamedTuple):
    """Logits l [D] of all variational weights for each of M clients, and what they are of.

    "log_variance": sigma^2 = exp(l),   "log_alpha": sigma^2 = max(exp(l) theta^2, 1e-8)

    By log alpha a client for whom theta comes near 0 has a precision there without bound, and draws the pool to zero.

    Fields:
      initialize: (D, seed) -> `Parameters`, arrays.
      logits: (shared, a client's row, middle) -> l, within `logit_range`.
      name: as users spell it.
      num_clients: M; clients from that number on were never in training, and have the mean of all rows.
      parametrization: of the layers, one of `layers.variational_dropout.PARAMETRIZATIONS`.
      logit_range: the lowest and the highest logit.
      initial_alpha: alpha of the start by log variance, relative to the weights of each layer (`start`); None for a
        start at one number.
      learned: False for noise that stays as it starts.
    """

    initialize: Callable[[int, int], Parameters]
    logits: Callable[..., tf.Tensor]
    name: str
    num_clients: int
    parametrization: str = "log_variance"
    logit_range: tuple[float, float] = LOGIT_RANGES["log_variance"]
    initial_alpha: float | None = None
    learned: bool = True

    def start(self, means: Sequence[tf.Tensor], seed: int) -> Parameters:
        """Return the parameters before the first round.

        With `initial_alpha`, sigma^2 = alpha mean_k theta_k^2 over the weights of each layer.

        Args:
          means: theta of each layer, before training. In eager mode a start outside `logit_range` is refused.
        """
        sizes = [mean.shape.num_elements() for mean in means]
        parameters = self.initialize(sum(sizes), seed)
        if self.initial_alpha is None:
            return parameters
        middle = tf.concat([tf.fill([size], x) for size, x in zip(sizes, self.starts(means))], 0)
        return parameters._replace(middle=middle)

    def starts(self, means: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the logit at which each layer starts, with `initial_alpha`; no layer without."""
        if self.initial_alpha is None:
            return []
        low, high = self.logit_range
        each = [tf.math.log(self.initial_alpha * tf.reduce_mean(tf.square(mean))) for mean in means]
        known = [x for x in map(tf.get_static_value, each) if x is not None]
        if not all(low < x < high for x in known):
            raise InvalidArgument(
                f"Relative to the layers' weights the variances would start at logits from {min(known):.3g} to "
                f"{max(known):.3g}, outside the range from {low:g} to {high:g}: give another initial_rate, or in a "
                "program another logit_range."
            )
        return each

    def check_threshold(self, threshold: float | None) -> None:
        """Raise InvalidArgument for a pruning threshold that is no dropout rate, that no rate can exceed, or that the
        rates of all weights exceed from the start.
        """
        if threshold is None:
            return
        if check_number(threshold, "threshold") >= 1:
            raise InvalidArgument(f"threshold is {threshold:g}, but must be above 0 and below 1: it is a dropout rate.")
        if self.parametrization != "log_alpha":
            if self.logit_range[0] > MOST_SILENT:
                raise InvalidArgument(
                    f"The range of log variances begins at {self.logit_range[0]:g}, with which pruned weights would "
                    f"have noise: let it begin at {MOST_SILENT:g} or below, or leave the pruning threshold out."
                )
            return
        start = self.initialize(_SOME, 0)
        first = np.asarray(self.logits(start.shared, self.row(start, 0), start.middle))
        rate = lambda logit: 1 / (1 + math.exp(-logit))
        most = self.logit_range[1] if self.learned else float(first.max())
        highest = rate(most)
        if highest <= threshold:
            of_all = "log alpha up to" if self.learned else "constant log alpha of"
            raise InvalidArgument(
                f"The pruning threshold is {threshold:g}, but {of_all} {most:.3g} gives dropout rates up to "
                f"{highest:.3g}, so that no weight would be pruned: give a lower threshold, or in a program another "
                "logit_range."
            )
        least = rate(float(first.min()))
        if least > threshold:
            raise InvalidArgument(
                f"The pruning threshold is {threshold:g}, but weights start at dropout rates from {least:.3g} on, so "
                "that all would be pruned and none trained: give a higher threshold, or a lower initial_rate."
            )

    def check_layers(self, model: keras.Model) -> None:
        """Raise InvalidArgument for a model without Gaussian weights, or with other logits or another range of them."""
        if not layout(model).variational:
            raise InvalidArgument(
                "The model has point weights, and the clients' variances are of Gaussian weights: build it with kind "
                "'variational_dropout'."
            )
        wanted = self.parametrization, self.logit_range
        for layer in model._flatten_layers():
            given = getattr(layer, "parametrization", wanted[0]), getattr(layer, "logit_range", wanted[1])
            if given != wanted:
                raise InvalidArgument(
                    f"The logits of the layer {layer.name!r} are {given[0]} from {given[1][0]:g} to {given[1][1]:g}, "
                    f"and the clients' variances are {wanted[0]} from {wanted[1][0]:g} to {wanted[1][1]:g}: give both "
                    "the same parametrization and logit_range."
                )

    def row(self, parameters: Parameters, client: Scalar) -> Any:
        """Return the client's row, or the mean of all for one that was never in training."""
        if isinstance(parameters.rows, tuple):
            return ()
        known = tf.gather(parameters.rows, tf.minimum(client, self.num_clients - 1))
        return tf.where(client < self.num_clients, known, tf.reduce_mean(parameters.rows, 0))

    def of_client(self, parameters: Parameters, client: Scalar, mean: tf.Tensor) -> tf.Tensor:
        """Return sigma^2 [D] of a client, known or never seen, from the means of its weights [D]."""
        row = self.row(parameters, client)
        return self.variance(self.logits(parameters.shared, row, parameters.middle), mean)

    def variance(self, logits: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        """Return sigma^2 [D] of l."""
        return tf.exp(2 * PARAMETRIZATIONS[self.parametrization].log_stddev(logits, mean))

    def inverse(self, variance: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        """Return l [D] of sigma^2, within `logit_range`."""
        logits = PARAMETRIZATIONS[self.parametrization].inverse(0.5 * tf.math.log(variance), mean)
        return tf.clip_by_value(logits, *self.logit_range)

    def change(self, before: tuple[tf.Tensor, tf.Tensor], after: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Return l - l' [D] of a training from and to (sigma^2, mean).

        Training knows variances alone. By log alpha those of weights near 0 are the floor, whatever l is: l is then the
        logit that the variance stands for, and the change is 0 where training ends at the floor.
        """
        change = self.inverse(*before) - self.inverse(*after)
        if self.parametrization != "log_alpha":
            return change
        return tf.where(after[0] > MIN_VARIANCE * (1 + 1e-5), change, 0.0)  # A hair more, for rounding.


class Logits(NamedTuple):
    """Start and range of the clients' logits: what all sources of variances take.

    Fields:
      middle: the logits at the start; None for the middle of the range: log variance -8.5 is a standard deviation of
        .014, log alpha -2 a dropout rate of .12.
      ranged: one of `RANGES`.
      parametrization: of the layers, one of `layers.variational_dropout.PARAMETRIZATIONS`.
      logit_range: the lowest and the highest logit, those of the layers; None for -17 to 0, and by log alpha for -8 to
        4.
      initial_rate: dropout rate p at the start, in the place of `middle`: alpha = p / (1 - p), and by log variance
        sigma^2 = alpha mean theta^2 over the initial weights of each layer: p is the rate of a weight of
        root-mean-square size, and the median rate is higher.
    """

    middle: float | None = None
    ranged: str = "smooth"
    parametrization: str = "log_variance"
    logit_range: tuple[float, float] | None = None
    initial_rate: float | None = None

    def source(
        self, name: str, num_clients: int, initialize: Callable[[int, int], Parameters], raw: Callable[[Any, Any], Any]
    ) -> PersonalVariances:
        """Return the variances by logits that are raw(shared, a client's row) within this range."""
        check_count(num_clients, "num_clients")
        lookup(RANGES, self.ranged, "range of variances")
        (low, high), middle, rate = (
            checked_range(self.parametrization, self.logit_range),
            self.middle,
            self.initial_rate,
        )
        settings: dict[str, Any] = {"parametrization": self.parametrization, "logit_range": (low, high)}
        if rate is not None:
            if middle is not None:
                raise InvalidArgument("initial_rate and middle both say where the logits start: give one of them.")
            if check_number(rate, "initial_rate") >= 1:
                raise InvalidArgument(f"initial_rate is {rate:g}, but must be above 0 and below 1.")
            alpha = rate / (1 - rate)
            if self.parametrization == "log_variance":
                settings["initial_alpha"] = alpha
            else:
                middle = math.log(alpha)
        at = (low + high) / 2 if middle is None else middle
        if not low < at < high:
            what = "middle" if rate is None else f"The start of initial_rate {rate:g}"
            raise InvalidArgument(f"{what} is {at:g}, but must be above {low:g} and below {high:g}.")

        def within(raw: Any, middle: Any) -> tf.Tensor:
            raw = tf.convert_to_tensor(raw)
            start = at if isinstance(middle, tuple) else tf.cast(middle, raw.dtype)
            if self.ranged == "clamped":
                return tf.clip_by_value(start + raw, low, high)
            above, below = high - start, start - low
            # A number, by which graphs divide otherwise than by a tensor.
            if isinstance(start, float) and above == below:
                return start + above * tf.tanh(raw / above)
            side = tf.where(raw > 0, tf.cast(above, raw.dtype), tf.cast(below, raw.dtype))
            return start + side * tf.tanh(raw / side)

        logits = lambda shared, row, middle=(): within(raw(shared, row), middle)
        return PersonalVariances(initialize, logits, name, num_clients, **settings)


def hypernetwork(
    num_clients: int,
    embedding_size: int | None = None,
    hidden: Sequence[int] = (200, 200, 200),
    **logits: Any,
) -> PersonalVariances:
    """Give each client logits l = h(e_m): a perceptron h of the client's trained embedding e_m.

    h has leaky rectifiers of slope 0.1, weights by Glorot & Bengio's normal law and biases N(0, 1e-3^2), so that all
    clients begin at about `middle`; e_m ~ N(0, I). It has the width of its last hidden layer times as many weights as
    the layers that it serves, and stays on the server.

    Args:
      num_clients: M, who have embeddings.
      embedding_size: E; None for floor(1 + M / 4).
      hidden: widths of its hidden layers.
      **logits: of `Logits`.

    Source: Jeon et al. 2023 (arXiv:2510.20225), section 3; sizes and start by the authors' program.
    """
    default = 1 + check_count(num_clients, "num_clients") // 4
    size = default if embedding_size is None else check_count(embedding_size, "embedding_size")
    widths = [check_count(width, "A width of hidden") for width in hidden]

    def initialize(num_weights: int, seed: int) -> Parameters:
        rng = np.random.default_rng([seed, 0x68797065])
        leaves: list[np.ndarray] = []
        for rows, columns in zip([size, *widths], [*widths, num_weights]):
            leaves.append(rng.normal(scale=np.sqrt(2 / (rows + columns)), size=(rows, columns)).astype(np.float32))
            leaves.append(rng.normal(scale=1e-3, size=columns).astype(np.float32))
        return Parameters(tuple(leaves), rng.normal(size=(num_clients, size)).astype(np.float32))

    def raw(shared: tuple[tf.Tensor, ...], row: tf.Tensor) -> tf.Tensor:
        x = row[tf.newaxis]
        for number in range(0, len(shared), 2):
            x = tf.matmul(x, shared[number]) + shared[number + 1]
            x = tf.nn.leaky_relu(x, 0.1) if number + 2 < len(shared) else x
        return x[0]

    return Logits(**logits).source("hypernetwork", num_clients, initialize, raw)


def free_variances(num_clients: int, **logits: Any) -> PersonalVariances:
    """Give each client a free vector l [D], without a hypernetwork ("ensemble VD"); other arguments: of `Logits`."""
    zeros = lambda num_weights, seed: Parameters((), np.zeros((num_clients, num_weights), np.float32))
    return Logits(**logits).source("free_variances", num_clients, zeros, lambda shared, row: row)


def common_variances(num_clients: int, **logits: Any) -> PersonalVariances:
    """Give all clients one vector l [D], which the server learns ("VD"); other arguments: of `Logits`."""
    zeros = lambda num_weights, seed: Parameters((np.zeros(num_weights, np.float32),), ())
    return Logits(**logits).source("common_variances", num_clients, zeros, lambda shared, row: shared[0])


def constant_variances(num_clients: int, **logits: Any) -> PersonalVariances:
    """Give all clients the same noise, which stays as it starts: Gaussian dropout at a constant rate.

    Clients that train it need `logit_rate=0`, as `algorithms.meta_vd` gives them. Other arguments: of `Logits`.
    """
    source = common_variances(num_clients, **logits)
    if Logits(**logits).ranged != "smooth":
        raise InvalidArgument("ranged restricts learned logits, and constant_variances learns none: leave it out.")
    of = lambda shared, row, middle=(): tf.stop_gradient(source.logits(shared, row, middle))
    return source._replace(logits=of, name="constant_variances", learned=False)


# A new source of variances is one function here and one line in this table.
PERSONAL_VARIANCES: dict[str, Callable[..., PersonalVariances]] = {
    source.__name__: source for source in (hypernetwork, free_variances, common_variances, constant_variances)
}
for source in PERSONAL_VARIANCES.values():
    show(source, inspect.signature(Logits).parameters.values())


def kept_weights(mean: tf.Tensor, variance: tf.Tensor, threshold: float | None) -> tf.Tensor:
    """Return 1 for weights with a dropout rate p = alpha / (1 + alpha), alpha = sigma^2 / mean^2, of at most a
    threshold, else 0: [D].

    p = sigma^2 / (mean^2 + sigma^2), so that a mean of 0 is above any threshold; all are kept if it is None.
    """
    if threshold is None:
        return tf.ones_like(mean)
    return tf.cast(variance <= threshold * (tf.square(mean) + variance), mean.dtype)
