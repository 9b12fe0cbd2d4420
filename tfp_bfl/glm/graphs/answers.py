"""The answers of a client to the server's questions in TensorFlow (`glm.federation.answer`)."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfp_bfl.glm.effects import Layout
from tfp_bfl.glm.federation import Question
from tfp_bfl.glm.fixed_point import BOUND, PART_BITS, PARTS, POINT
from tfp_bfl.glm.graphs import cox, effects, families
from tfp_bfl.glm.graphs.families import pack
from tfp_bfl.glm.rows import Rows


def _sums(rows: Rows, family: str, question: Question) -> tf.Tensor:
    return tf.concat([families.sums(rows, point, family) for point in tf.unstack(question.points)], 0)


def _layout(rows: Rows, family: str, question: Question) -> Layout:
    return Layout(rows.design.shape[1], question.columns, family == "gaussian")


def _effects(rows: Rows, family: str, question: Question) -> tf.Tensor:
    how = family, _layout(rows, family, question), question.nodes
    return tf.concat([effects.sums(rows, point, *how) for point in tf.unstack(question.points)], 0)


def _restricted(rows: Rows, family: str, question: Question) -> tf.Tensor:
    sums = _effects(rows, family, question._replace(points=question.points[:1]))
    return pack(sums, effects.precisions(rows, question.points, _layout(rows, family, question)))


def _columns(rows: Rows, family: str, question: Question) -> tf.Tensor:
    return pack(tf.reduce_sum(rows.design, 0), families.counts(rows, family)[0])


def _risk(rows: Rows, question: Question) -> cox.RiskSums:
    centred = cox.centred(rows, question.centre)
    times = question.times if question.kind == "risk" else cox.event_times(rows)
    return cox.risk_sums(centred, question.points[0], times)


# As `glm.federation.KINDS`: kind of a question -> (rows, family, question) -> the answer of one client [n].
KINDS: dict[str, Callable[[Rows, str, Question], tf.Tensor]] = {
    "first": lambda rows, family, question: families.first_sums(rows, family),
    "sums": _sums,
    "effects": _effects,
    "restricted": _restricted,
    "columns": _columns,
    "risk": lambda rows, family, question: cox.packed(_risk(rows, question)),
    "stratum": lambda rows, family, question: cox.partial_sums(_risk(rows, question)),
    "trend": lambda rows, family, question: cox.trend(_risk(rows, question)),
}


def answer(rows: Rows, family: str, question: Question) -> tf.Tensor:
    """Return the answer of one client to a question: sums over its rows [n], float64.

    Args:
      rows: of the client, as tensors.
      family: the name of the outcome's distribution.
      question: of the server; its points, centre and times are tensors.
    """
    return KINDS[question.kind](rows, family, question)


def encode(values: tf.Tensor) -> tf.Tensor:
    """Return numbers in fixed point, as `glm.fixed_point.encode` does [n + 1, 3], int64.

    A number of float64 is q = q_0 + q_1 2^48 + q_2 2^96 without rounding, since each part has at most 48 bits.

    Args:
      values: [n].
    """
    fits = tf.abs(values) < BOUND
    beyond = tf.reduce_sum(tf.cast(~fits, tf.float64))
    every = tf.concat([tf.where(fits, values, tf.zeros_like(values)), beyond[tf.newaxis]], 0)
    whole, parts = tf.math.rint(every * 2.0**POINT), []
    for _ in range(PARTS):
        above = tf.floor(whole / 2.0**PART_BITS)
        parts.append(tf.cast(whole - above * 2.0**PART_BITS, tf.int64))
        whole = above
    return tf.stack(parts, 1)
