"""Mean shift in one dimension, for many coordinates at once.

Letters: C coordinates, S clients, Q points that are shifted in each coordinate.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# Numbers in a block of points x clients: 4 MB of float32, which caches hold.
BLOCK = 2**20
# Nodes of the table that stands for a Gaussian kernel's sums, and the fewest of its intervals in a bandwidth: a cubic
# between two nodes is then right to 3 / 384 / 8^4 = 2e-6 of the kernels near it.
NODES = 256
INTERVALS_IN_A_BANDWIDTH = 8

Bandwidth = Callable[[tf.Tensor], tf.Tensor]
Step = Callable[[tf.Tensor], "tuple[tf.Tensor, tf.Tensor]"]


class ScaledClients(NamedTuple):
    """The clients' values, brought to [-1, 1] so that sums keep their digits whatever the weights' size and spread.

    Fields:
      values: [C, S], float64, ascending from -1 to 1; all 0 where the clients agree.
      weights: [C, S], float64, above zero, the largest 1: each multiplies its client's kernel.
      factors: [C, S], float64: each multiplies its client's bandwidth; None if all have the same.
    """

    values: tf.Tensor
    weights: tf.Tensor
    factors: tf.Tensor | None = None


class Rest(NamedTuple):
    """The fixed points of mean shift: [C, Q] each."""

    points: tf.Tensor
    moving: tf.Tensor
    empty: tf.Tensor


def in_blocks(
    function: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]],
    size: tf.Tensor,
    width: tf.Tensor | int,
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Return function(start, stop) of one range of at most `width` after another, joined along the results'
    first axis.
    """
    num_blocks = tf.maximum(1, (size + width - 1) // width)
    arrays = [tf.TensorArray(dtype, num_blocks, infer_shape=False) for dtype in dtypes]

    def body(i: tf.Tensor, arrays: list[tf.TensorArray]) -> Any:
        results = function(i * width, tf.minimum((i + 1) * width, size))
        return i + 1, [array.write(i, result) for array, result in zip(arrays, results)]

    _, arrays = tf.while_loop(lambda i, arrays: i < num_blocks, body, [0, arrays], parallel_iterations=1)
    return [array.concat() for array in arrays]


def iterate(step: Step, start: tf.Tensor, moving: tf.Tensor, tolerance: tf.Tensor, max_iterations: int) -> Rest:
    """x <- step(x) for every point until it moves by less than `tolerance` or no client is near.

    Args:
      step: x [C, Q] -> the next x and whether no client is near, [C, Q] each.
      start: [C, Q].
      moving: [C, Q], False for points that stay.
      tolerance: [C, 1].
    """

    def body(i: tf.Tensor, x: tf.Tensor, moving: tf.Tensor, empty: tf.Tensor) -> tuple[tf.Tensor, ...]:
        new, none_near = step(x)
        empty |= moving & none_near
        moving &= ~none_near
        new = tf.where(moving, new, x)
        results = new, moving & (tf.abs(new - x) >= tolerance), empty
        return i + 1, *(tf.ensure_shape(part, start.shape) for part in results)

    moving = tf.ensure_shape(moving, start.shape)
    _, *rest = tf.while_loop(
        lambda i, x, moving, empty: (i < max_iterations) & tf.reduce_any(moving),
        body,
        (0, start, moving, tf.zeros_like(moving)),
        parallel_iterations=1,
    )
    return Rest(*rest)


def by_pairs(clients: ScaledClients, bandwidth: Bandwidth, gaussian: bool, dtype: tf.DType) -> Step:
    """Return the step that visits all pairs of points and clients: for any bandwidth, one a client included; sums in
    `dtype`.

        x <- sum_i w_i K(u_i) / h_i^2 / sum_i K(u_i) / h_i^2,  u_i = (x - w_i) / h_i

    Without the factor it would climb no density where bandwidths differ (Comaniciu et al. 2001).
    """
    values, weights, factors = clients
    if factors is not None:
        weights = weights / tf.square(factors)

    def of_block(start: tf.Tensor, stop: tf.Tensor, x: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x, h = x[start:stop, :, tf.newaxis], h[start:stop, :, tf.newaxis]
        h = h if factors is None else h * factors[start:stop, tf.newaxis]
        # Distances in float64: beside a far client the others lie close together.
        distance = tf.cast(values[start:stop, tf.newaxis] - x, dtype)
        square = tf.square(tf.math.divide_no_nan(distance, tf.cast(h, dtype)))
        if gaussian:
            kernel = tf.exp(0.5 * (tf.reduce_min(square, -1, keepdims=True) - square))
        else:
            kernel = tf.nn.relu(1 - square)
        kernel *= tf.cast(weights[start:stop, tf.newaxis], dtype)
        total = tf.reduce_sum(kernel, -1)
        move = tf.math.divide_no_nan(tf.reduce_sum(kernel * distance, -1), total)
        return x[..., 0] + tf.cast(move, tf.float64), total <= 0

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        h = tf.broadcast_to(bandwidth(x), tf.shape(x))
        num_rows, num_points = tf.shape(x)[0], tf.shape(x)[1]
        width = tf.maximum(1, BLOCK // (num_points * tf.shape(values)[1]))
        block = lambda start, stop: of_block(start, stop, x, h)
        new, empty = in_blocks(block, num_rows, width, [tf.float64, tf.bool])
        return tf.where(h > 0, new, x), empty & (h > 0)

    return step


class Windows:
    """Sums over the clients within h of a point, from sums over the first so many clients.

    With P_k(i) = sum_{j < i} w_j^k, the clients in a window are those from `first` to `last`, and any polynomial in
    w summed over them is a difference of two P: S log S for a sort, log S for each point and step, not S.
    """

    def __init__(self, clients: ScaledClients):
        z, weights = clients.values, clients.weights
        self.values = z
        first, second = weights * z, weights * z * z
        sums = [tf.pad(tf.cumsum(x, -1), [[0, 0], [1, 0]]) for x in (weights, first, second, second * z)]
        # A row also has the client after and the one before: those at the ends of the window.
        ends = [tf.pad(z, [[0, 0], [0, 1]]), tf.pad(z, [[0, 0], [1, 0]])]
        self.table = tf.reshape(tf.stack([*sums, *ends], -1), [-1, 6])
        self.rows = tf.range(tf.shape(z)[0])[:, tf.newaxis] * (tf.shape(z)[1] + 1)

    def sums(self, x: tf.Tensor, h: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return sums over the clients with |w - x| < h: of (w - x)^k for k < 4, their number, smallest and
        largest value.
        """
        first = tf.searchsorted(self.values, x - h, "right")
        last = tf.searchsorted(self.values, x + h, "left")
        low, high = (tf.gather(self.table, self.rows + i) for i in (first, last))
        p0, p1, p2, p3 = tf.unstack((high - low)[..., :4], axis=-1)
        central = [p0, p1 - x * p0, p2 - x * (2 * p1 - x * p0), p3 - x * (3 * p2 - x * (3 * p1 - x * p0))]
        return central, last - first, low[..., 4], high[..., 5]


def by_windows(clients: ScaledClients, bandwidth: Bandwidth) -> Step:
    """Return the step of the Epanechnikov kernel with the same bandwidth for all clients: by sums over windows,
    float64.

    sum_i K(u_i) (w_i - x) / sum_i K(u_i) = (h^2 s_1 - s_3) / (h^2 s_0 - s_2),  s_k = sum_{|w_i - x| < h} (w_i - x)^k
    """
    windows = Windows(clients)

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        h = tf.broadcast_to(bandwidth(x), tf.shape(x))
        (s0, s1, s2, s3), count, smallest, largest = windows.sums(x, h)
        new = x + tf.math.divide_no_nan(h**2 * s1 - s3, h**2 * s0 - s2)
        # The mean lies between the clients of the window: rounding can't take a narrow window's out of it.
        return tf.where(h > 0, tf.minimum(tf.maximum(new, smallest), largest), x), (count <= 0) & (h > 0)

    return step


def table_serves(h: tf.Tensor, num_shifts: tf.Tensor) -> tf.Tensor:
    """Return for which bandwidths [C] `by_table` is right, and cheaper than `by_pairs` for that many shifts
    of points.
    """
    return (h >= INTERVALS_IN_A_BANDWIDTH * 2 / (NODES - 1)) & (num_shifts >= 4 * NODES)


def by_table(clients: ScaledClients, h: tf.Tensor) -> Step:
    """Return the step of the Gaussian kernel by tables of its sums over [-1, 1], cubic between nodes, float32.

    sum_i K(u_i) and sum_i w_i K(u_i) are smooth on the scale of h, so that NODES values and slopes of each stand for
    them wherever the points go. For points that started at clients: the sum at such a point never falls below its
    client's own weight, so that the error of 2e-6 is relative too.

    Args:
      clients: without factors.
      h: [C], each at least INTERVALS_IN_A_BANDWIDTH intervals between nodes.
    """
    interval = 2.0 / (NODES - 1)
    nodes = tf.linspace(tf.constant(-1.0), 1.0, NODES)
    values, weights, h = (tf.cast(x, tf.float32) for x in (clients.values, clients.weights, h))
    num_rows, num_clients = tf.shape(values)[0], tf.shape(values)[1]

    def of_block(start: tf.Tensor, stop: tf.Tensor) -> list[tf.Tensor]:
        z, w, inverse = values[start:stop], weights[start:stop], 1 / h[start:stop, tf.newaxis, tf.newaxis]
        scaled = (z * inverse[..., 0])[:, tf.newaxis]
        kernel = tf.exp(-0.5 * tf.math.squared_difference(nodes[:, tf.newaxis] * inverse, scaled))
        moments = tf.matmul(kernel, tf.stack([w, w * z, w * z * z], -1))
        value, above = moments[..., :2], moments[..., 1:]
        slope = interval * inverse**2 * (above - nodes[:, tf.newaxis] * value)
        rise = value[:, 1:] - value[:, :-1]
        square = 3 * rise - 2 * slope[:, :-1] - slope[:, 1:]
        cube = slope[:, :-1] + slope[:, 1:] - 2 * rise
        return [tf.reshape(tf.concat([value[:, :-1], slope[:, :-1], square, cube], -1), [-1, 8])]

    width = tf.maximum(1, BLOCK // (NODES * num_clients))
    table = tf.ensure_shape(in_blocks(of_block, num_rows, width, [tf.float32])[0], [None, 8])
    rows = tf.range(num_rows)[:, tf.newaxis] * (NODES - 1)

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        place = tf.cast((x + 1) / interval, tf.float32)
        index = tf.clip_by_value(tf.cast(place, tf.int32), 0, NODES - 2)
        t = (place - tf.cast(index, tf.float32))[..., tf.newaxis]
        c = tf.gather(table, rows + index)
        total, first = tf.unstack(c[..., :2] + t * (c[..., 2:4] + t * (c[..., 4:6] + t * c[..., 6:])), 2, -1)
        new = tf.cast(tf.clip_by_value(first / total, -1.0, 1.0), tf.float64)
        return new, tf.zeros_like(x, tf.bool)

    return step
