"""Sums over risk sets in TensorFlow (`glm.cox`)."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.glm.cox import ROUNDING, Moments, RiskSums
from tfp_bfl.glm.graphs.families import pack
from tfp_bfl.glm.rows import Rows


def event_times(rows: Rows) -> tf.Tensor:
    """Return the distinct times at which a client has events, in ascending order [m]."""
    return tf.unique(tf.sort(tf.boolean_mask(rows.outcome[:, 0], _has_event(rows)))).y


def union(times: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Return the distinct times of two clients, in ascending order."""
    return tf.unique(tf.sort(tf.concat([times, others], 0))).y


def centred(rows: Rows, centre: tf.Tensor) -> Rows:
    """Return rows with the means of all clients [p] subtracted, as `glm.cox.centred` does."""
    x = rows.design - centre
    return rows._replace(design=tf.where(tf.abs(x) > ROUNDING * tf.abs(centre), x, tf.zeros_like(x)))


def risk_sums(rows: Rows, coefficients: tf.Tensor, times: tf.Tensor) -> RiskSums:
    """Return one client's sums over risk sets, as `glm.cox.risk_sums` does.

    Args:
      rows: of the client, as tensors.
      coefficients: [p].
      times: of events, in ascending order [m].
    """
    x, time, event = rows.design, rows.outcome[:, 0], _has_event(rows)
    eta = tf.linalg.matvec(x, coefficients) + rows.offset
    hazard = tf.exp(tf.clip_by_value(eta, tf.constant(-700.0, tf.float64), tf.constant(700.0, tf.float64)))
    outer = x[:, :, tf.newaxis] * x[:, tf.newaxis]
    weighted = hazard, hazard[:, tf.newaxis] * x, hazard[:, tf.newaxis, tf.newaxis] * outer
    count = tf.size(times) if times.shape[0] is None else times.shape[0]
    # A row is at risk at times[0] to times[last - 1].
    last = tf.searchsorted(times, time, side="right")
    where = tf.searchsorted(times, tf.boolean_mask(time, event))

    def from_last(values: tf.Tensor) -> tf.Tensor:
        by_last = tf.math.unsorted_segment_sum(values, last, count + 1)
        return tf.cumsum(by_last, 0, reverse=True)[1:]

    def at_events(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(tf.boolean_mask(values, event), where, count)

    ones, risk, tied = tf.ones_like(time), tuple(map(from_last, weighted)), tuple(map(at_events, weighted))
    of_events = at_events(ones), at_events(eta), at_events(x)
    return RiskSums(tf.cast(tf.size(time), tf.float64), from_last(ones), *of_events, risk, tied)


def packed(sums: RiskSums) -> tf.Tensor:
    """Return all sums over risk sets in one tensor."""
    return pack(sums.num_rows, *sums[1:5], *sums.risk, *sums.tied)


def partial_sums(sums: RiskSums) -> tf.Tensor:
    """Return the packed sums of `glm.cox.partial_sums`."""
    of = _moments(sums)
    score = tf.reduce_sum(sums.features - of.mean, 0)
    value, variance = tf.reduce_sum(of.log_likelihood), tf.reduce_sum(of.variance, 0)
    return pack(sums.num_rows, tf.reduce_sum(sums.num_events), value, score, variance)


def trend(sums: RiskSums) -> tf.Tensor:
    """Return the packed sums of `glm.cox.trend`."""
    of, events = _moments(sums), sums.num_events
    g = (tf.cumsum(events) - events) / tf.maximum(tf.reduce_sum(events), 1.0)
    residual = sums.features - of.mean
    variances = [tf.einsum("t,tij->ij", weight, of.variance) for weight in (tf.ones_like(g), g, g**2)]
    scores = tf.reduce_sum(residual, 0), tf.linalg.matvec(residual, g, transpose_a=True)
    return pack(tf.reduce_sum(events), tf.reduce_sum(g * events), *scores, *variances)


def _has_event(rows: Rows) -> tf.Tensor:
    return tf.equal(rows.outcome[:, 1], 1.0)  # TFF traces graphs of TensorFlow 1, where == compares objects.


def _moments(sums: RiskSums) -> Moments:
    """Return the parts of the partial likelihood of each time of events, as `glm.cox.moments` does."""

    def add(number: tf.Tensor, log_likelihood: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> list[tf.Tensor]:
        is_live = sums.num_events > number
        share = number / tf.where(is_live, sums.num_events, tf.ones_like(sums.num_events))
        s0, s1, s2 = (s - _at(share, s) * d for s, d in zip(sums.risk, sums.tied))
        s0 = tf.where(is_live, s0, tf.ones_like(s0))
        centre = s1 / _at(s0, s1)
        spread = s2 / _at(s0, s2) - centre[:, :, tf.newaxis] * centre[:, tf.newaxis]
        live = lambda values: tf.where(_at(is_live, values), values, tf.zeros_like(values))
        return [number + 1, log_likelihood - live(tf.math.log(s0)), mean + live(centre), variance + live(spread)]

    most = tf.reduce_max(tf.concat([sums.num_events, tf.zeros(1, tf.float64)], 0))
    begin = [tf.constant(0.0, tf.float64), sums.predictor, tf.zeros_like(sums.features), tf.zeros_like(sums.risk[2])]
    return Moments(*tf.while_loop(lambda number, *rest: number < most, add, begin)[1:])


def _at(values: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Return values [m] with further axes of size 1, as many as others [m, ...] have."""
    return values[(..., *[tf.newaxis] * (len(others.shape) - 1))]
