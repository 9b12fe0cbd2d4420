"""The kernel posterior of FedKP: each weight's mode of a kernel density over the clients' values.

Letters: S clients, D weights, C weights of a block, Q points that are shifted for each weight.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.kernel import bandwidths, mean_shift
from tfp_bfl.algorithms.kernel.mean_shift import Rest, ScaledClients
from tfp_bfl.contracts import ModelGatherRule, Pooled, Traits
from tfp_bfl.errors import InvalidArgument, check_count, check_number, lookup
from tfp_bfl.posterior import MeanField, mixtures
from tfp_bfl.rules.aggregate import checked_weights
from tfp_bfl.rules.rule import each
from tfp_bfl.tensors import Array
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.change import AnyWeights

STARTS = ("mean", "clients")
KERNELS = ("epanechnikov", "gaussian")
BANDWIDTHS = (*bandwidths.BANDWIDTHS, bandwidths.ADAPTIVE)
WEIGHTINGS = ("kernels", "bandwidths")
TOLERANCE = 1e-6
# Values in one block, of which some twenty copies in float64 are held at a time.
BLOCK = 2**18


class KernelModes(NamedTuple):
    """The modes and what happened on the way to them.

    Fields:
      mode: [D].
      num_zero_spread: weights on which all clients agree; they stay.
      num_zero_bandwidths: other weights of bandwidth zero, such as where half of the clients agree; they stay.
      num_empty_windows: weights with a point that had no client within the bandwidth; it keeps its last value.
      num_unconverged: weights with a point that still moved after the last iteration.
      num_fallbacks: weights with the bandwidth of another weight: `bandwidths.plug_in`, `cross_validated`, `adaptive`.
    """

    mode: Any
    num_zero_spread: Any
    num_zero_bandwidths: Any
    num_empty_windows: Any
    num_unconverged: Any
    num_fallbacks: Any


class KernelOptions(NamedTuple):
    """Options of the search for modes.

    Fields:
      start: "mean" shifts the clients' mean (FedKP); "clients" shifts every client's value, against the clients where
        they were, and averages where they arrive (clustered FedKP).
      kernel: "epanechnikov" or "gaussian".
      bandwidth: how h is found from a weight's S values: "silverman", "silverman_wide", "scott", "plug_in",
        "cross_validated" or "adaptive", as the functions of these names in
        `tfp_bfl.algorithms.kernel.bandwidths` state. "adaptive" is found anew at every
        x, and in a graph with fewer than five clients it is Scott's.
      scale: multiplies h.
      max_iterations: at most.
      weighting: what else the clients' weights n_i do. "kernels": sum_i n_i w_i K(u_i) / sum_i n_i K(u_i), so that a
        client with n_i = 2 is two. "bandwidths": h_i = h (1 / n_i) / mean_j(1 / n_j), so that clients with more
        examples have narrower kernels: sum_i w_i K(u_i) / h_i^2 over sum_i K(u_i) / h_i^2.
    """

    start: str = "mean"
    kernel: str = "epanechnikov"
    bandwidth: str = "silverman"
    scale: float = 1.0
    max_iterations: int = 20
    weighting: str = WEIGHTINGS[0]


def kernel_mode(values: Array, *options: object, weights: Array | None = None, **named_options: object) -> tf.Tensor:
    """Return a mode of the kernel density over S clients' values, for every weight alone, by mean shift.

    x <- sum_i w_i K(u_i) / sum_i K(u_i),  u_i = (x - w_i) / h

    until x moves by less than 1e-6, `max_iterations` times at most. K(u) = 3/4 (1 - u^2) for `|u| < 1` (Epanechnikov),
    or exp(-u^2 / 2) (Gaussian). As h grows the mode becomes the clients' mean: that of federated averaging. (A step by
    K climbs the density of K's shadow, Cheng 1995: for a Gaussian that is itself; for Epanechnikov's it is the biweight
    density, of (1 - u^2)^2, and this is its mode.)

    Weights on which all clients agree, or of bandwidth zero, stay at their start, and so does a point without a
    client within h, such as a mean between two groups. `kernel_modes` counts these. The order of the clients does not
    matter to the last bit.

    Sums are taken about the middle of the clients' range, in float64 for Epanechnikov's kernel; for the Gaussian one in
    float32 unless the values are float64. Memory beyond the values is some 200 MB whatever D. The work is S log S a
    weight with Epanechnikov's kernel; with the Gaussian one it is S for the start at the mean, S^2 at most otherwise.

    Args:
      values: [S, D], floating.
      options, named_options: the fields of `KernelOptions`: start, kernel, bandwidth, scale, max_iterations and
        weighting, of which only the last has to be named.
      weights: [S], such as the clients' numbers of examples n_i, of any scale; None for none. They weigh the mean that
        shifting starts from and the one of what arrives. Bandwidths are found without them.

    Returns:
      [D], in the type of the values.

    Source: Johansson & Gullbrandson 2022, algorithms 9 (mean) and 10 (clients).
    """
    return kernel_modes(values, *options, weights=weights, **named_options).mode


def kernel_modes(values: Array, *options: Any, weights: Array | None = None, **named_options: Any) -> KernelModes:
    """Return `kernel_mode` with counts of what happened on the way."""
    for name in named_options:
        lookup(KernelOptions._field_defaults, name, "option of the kernel")
    checked = _check_options(KernelOptions(*options, **named_options))
    return _run(checked, *_check_values(values, weights, checked.bandwidth))


def kernel_posterior(
    start: str = "mean",
    kernel: str = "epanechnikov",
    bandwidth: str = "silverman",
    scale: float = 1.0,
    max_iterations: int = 20,
    weighting: str | None = None,
) -> ModelGatherRule[ModelWeights, ModelWeights]:
    """Return the rule that gives every weight the mode of a kernel density over the clients' values: `kernel_mode`.

    For a stack of `MeanField`s or of whole models' `ModelWeights`. Point weights and the means of posteriors are
    modes; the posteriors' variances are the clients' mean. BatchNorm's moving statistics are moments of the mixture of
    the clients' data, weighted as the round weighs the clients, as in `whole_model`.

    The server's memory is clients x weights. Its metrics are `kernel_modes`' counts over all weights.

    `simulate` refuses cohorts of fewer than five clients for the adaptive bandwidth. Where fewer are left in a round,
    as the others stayed away or were faulty, it is Scott's, and every weight with a spread counts in num_fallbacks.

    Args:
      start, kernel, bandwidth, scale, max_iterations: as `KernelOptions`.
      weighting: what the clients' weights in the round, such as their numbers of examples, do: "kernels" or
        "bandwidths", as `KernelOptions`; None for nothing, as FedKP has it.

    Source: Johansson & Gullbrandson 2022, algorithms 9 and 10.
    """
    options = _check_options(KernelOptions(start, kernel, bandwidth, scale, max_iterations, weighting or WEIGHTINGS[0]))

    def pool(stacked: AnyWeights, importance: tf.Tensor, anchor: AnyWeights) -> Pooled[ModelWeights]:
        posterior, point = (stacked.posterior, stacked.point) if isinstance(stacked, ModelWeights) else (stacked, ())
        means = (posterior.mean, point)
        leaves = tf.nest.flatten(means)
        shapes = [leaf.shape[1:] for leaf in leaves]
        # All leaves [K, ...] in one row [K, D]: one graph for any number of layers.
        row = lambda leaf: tf.reshape(leaf, [tf.shape(leaf)[0], leaf.shape[1:].num_elements()])
        flat = tf.ensure_shape(tf.concat(list(map(row, leaves)), 1), [leaves[0].shape[0], None])
        modes = _run(options, *_check_values(flat, None if weighting is None else importance, bandwidth))
        counts = dict(zip(modes._fields[1:], modes[1:]))
        parts = tf.split(modes.mode, [shape.num_elements() for shape in shapes])
        mean, point = tf.nest.pack_sequence_as(means, [tf.reshape(x, shape) for x, shape in zip(parts, shapes)])
        shares = tf.ones_like(importance) if weighting is None else importance
        shares /= tf.reduce_sum(shares)
        variance = each(lambda v: tf.tensordot(tf.cast(shares, v.dtype), v, 1), posterior.variance)
        pooled = MeanField(mean, variance)
        if not isinstance(stacked, ModelWeights):
            return Pooled(cast(Any, pooled), counts)
        return Pooled(ModelWeights(pooled, point, mixtures.mixture(stacked.moments, importance)), counts)

    min_clients = bandwidths.NEIGHBOURS if bandwidth == bandwidths.ADAPTIVE else 1
    return ModelGatherRule(pool, f"kernel posterior ({bandwidth})", Traits(min_clients=min_clients))


def _run(options: KernelOptions, values: tf.Tensor, weights: tf.Tensor | None) -> KernelModes:
    run = _traced(options) if tf.executing_eagerly() else functools.partial(_modes, options)
    return run(values, weights)


@functools.cache
def _traced(options: KernelOptions) -> Callable[..., KernelModes]:
    """Return the search for modes as one graph for any number of clients and weights."""

    @functools.cache
    def graph(dtype: tf.DType, weighted: bool) -> Callable[..., KernelModes]:
        signature = [tf.TensorSpec([None, None], dtype)] + [tf.TensorSpec([None], tf.float64)] * weighted
        run = lambda values, weights=None: _modes(options, values, weights)
        return tf.function(run, autograph=False).get_concrete_function(*signature)

    def run(values: tf.Tensor, weights: tf.Tensor | None) -> KernelModes:
        return graph(values.dtype, weights is not None)(*([values] if weights is None else [values, weights]))

    return run


def _modes(options: KernelOptions, values: tf.Tensor, weights: tf.Tensor | None) -> KernelModes:
    num_clients, num_weights = tf.unstack(tf.shape(values))
    counts = [tf.bool] * (len(KernelModes._fields) - 1)

    def of_block(start: tf.Tensor, stop: tf.Tensor) -> list[tf.Tensor]:
        mode, *flags = _of_rows(options, tf.transpose(values[:, start:stop]), weights)
        return [tf.cast(mode, values.dtype), *flags]

    width = tf.maximum(1, BLOCK // num_clients)
    mode, *flags = mean_shift.in_blocks(of_block, num_weights, width, [values.dtype, *counts])
    mode = tf.ensure_shape(mode, [values.shape[1]])
    return KernelModes(mode, *(tf.math.count_nonzero(flag, dtype=tf.int32) for flag in flags))


def _ordered(
    options: KernelOptions, rows: tf.Tensor, weights: tf.Tensor | None
) -> tuple[ScaledClients, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the clients in [-1, 1], their shares in means [C, S], and where they were: middle, half range [C, 1]."""
    ones = tf.ones_like(rows)
    if weights is None:
        rows, sizes = tf.sort(rows, -1), ones
    else:
        order = tf.argsort(rows, -1)
        rows = tf.gather(rows, order, axis=1, batch_dims=1)
        sizes = tf.gather(weights / tf.reduce_max(weights), order)
    low, high = rows[:, :1], rows[:, -1:]
    # Halves first: the sum of two large values may overflow.
    middle, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
    places = tf.math.divide_no_nan(rows - middle, half)
    if weights is not None and options.weighting == "bandwidths":
        clients = ScaledClients(places, ones, (1 / sizes) / tf.reduce_mean(1 / sizes, -1, keepdims=True))
    else:
        clients = ScaledClients(places, sizes)
    return clients, sizes / tf.reduce_sum(sizes, -1, keepdims=True), middle, half


def _of_rows(options: KernelOptions, rows: tf.Tensor, weights: tf.Tensor | None) -> tuple[tf.Tensor, ...]:
    """Return the modes of rows [C, S], and which of them each count of `KernelModes` counts, [C] each."""
    exact = rows.dtype == tf.float64
    clients, shares, middle, half = _ordered(options, tf.cast(rows, tf.float64), weights)
    points = clients.values
    if options.start == "mean":
        points = tf.reduce_sum(shares * points, -1, keepdims=True)
    if options.bandwidth == bandwidths.ADAPTIVE:
        local = bandwidths.adaptive(clients.values)
        bandwidth = lambda x: options.scale * local(x)
        fallback = tf.fill(tf.shape(middle)[:1], tf.shape(rows)[1] < bandwidths.NEIGHBOURS)
    else:
        h, fallback = bandwidths.BANDWIDTHS[options.bandwidth](clients.values, options.kernel == "gaussian")
        h = options.scale * h[:, tf.newaxis]
        bandwidth = lambda x: h
    agree = half <= 0
    zero = tf.broadcast_to(bandwidth(points) <= 0, tf.shape(points)) & ~agree
    tolerance = tf.math.divide_no_nan(tf.constant(TOLERANCE, tf.float64), half)
    rest = _shift(options, clients, bandwidth, points, ~zero & ~agree, tolerance, exact)
    mode = rest.points[:, 0] if options.start == "mean" else tf.reduce_sum(shares * rest.points, -1)
    flags = (agree, zero, rest.empty, rest.moving, fallback[:, tf.newaxis] & ~agree)
    return middle[:, 0] + half[:, 0] * mode, *(tf.reduce_any(flag, -1) for flag in flags)


def _shift(
    options: KernelOptions,
    clients: ScaledClients,
    bandwidth: Callable[[tf.Tensor], tf.Tensor],
    points: tf.Tensor,
    moving: tf.Tensor,
    tolerance: tf.Tensor,
    exact: bool,
) -> Rest:
    """Return the mean shift of points [C, Q], by the cheapest step that serves the kernel."""
    gaussian, same_for_all = options.kernel == "gaussian", clients.factors is None
    of_rows = points, moving, tolerance
    if same_for_all and not gaussian:
        return mean_shift.iterate(mean_shift.by_windows(clients, bandwidth), *of_rows, options.max_iterations)
    dtype = tf.float64 if exact or not gaussian else tf.float32
    tabulates = same_for_all and not exact and options.start == "clients" and options.bandwidth != bandwidths.ADAPTIVE
    if not tabulates:
        step = mean_shift.by_pairs(clients, bandwidth, gaussian, dtype)
        return mean_shift.iterate(step, *of_rows, options.max_iterations)
    h = bandwidth(points)
    served = mean_shift.table_serves(h[:, 0], tf.shape(points)[1] * options.max_iterations)

    def part(index: tf.Tensor, step_of: Callable[[ScaledClients, tf.Tensor], mean_shift.Step]) -> Rest:
        pick = functools.partial(tf.gather, indices=index)
        step = step_of(ScaledClients(pick(clients.values), pick(clients.weights)), pick(h))
        return mean_shift.iterate(step, pick(points), pick(moving), pick(tolerance), options.max_iterations)

    indices = [tf.where(chosen)[:, 0] for chosen in (served, ~served)]
    rests = [
        part(indices[0], lambda own, own_h: mean_shift.by_table(own, own_h[:, 0])),
        part(indices[1], lambda own, own_h: mean_shift.by_pairs(own, lambda x: own_h, gaussian, dtype)),
    ]
    order = tf.argsort(tf.concat(indices, 0))
    return Rest(*(tf.gather(tf.concat(parts, 0), order) for parts in zip(*rests)))


def _check_options(options: KernelOptions) -> KernelOptions:
    for names, name, what in (
        (STARTS, options.start, "start"),
        (KERNELS, options.kernel, "kernel"),
        (BANDWIDTHS, options.bandwidth, "bandwidth"),
        (WEIGHTINGS, options.weighting, "weighting by data size"),
    ):
        lookup(dict.fromkeys(names), name, what)
    check_count(options.max_iterations, "max_iterations")
    try:
        return options._replace(scale=check_number(options.scale, "scale"))
    except InvalidArgument as error:
        raise InvalidArgument(f"{str(error)[:-1]}: a bandwidth of zero finds no mode.") from None


def _check_values(values: Array, weights: Any, bandwidth: str) -> tuple[tf.Tensor, tf.Tensor | None]:
    try:
        values = tf.convert_to_tensor(values)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("values must be numbers of shape [S, D], a row a client.") from error
    if not values.dtype.is_floating:
        raise InvalidArgument(f"values must be floating-point numbers, but are {values.dtype.name}.")
    if values.shape.rank != 2 or 0 in values.shape:
        raise InvalidArgument(
            f"values must be [S, D] with at least one client and one weight, but have shape {values.shape}."
        )
    num_clients = values.shape[0]
    if bandwidth == bandwidths.ADAPTIVE and num_clients is not None and num_clients < bandwidths.NEIGHBOURS:
        raise InvalidArgument(
            f"The adaptive bandwidth needs at least {bandwidths.NEIGHBOURS} clients, but there are {num_clients}: "
            "choose another, such as 'silverman'."
        )
    if tf.executing_eagerly():
        sound = tf.reduce_all(tf.math.is_finite(values), 1).numpy()
        if not sound.all():
            raise InvalidArgument(
                f"Every value must be finite; it is not so for the clients at {np.flatnonzero(~sound).tolist()}."
            )
    return values, None if weights is None else checked_weights(weights, num_clients, tf.float64)
