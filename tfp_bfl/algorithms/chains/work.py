"""Clients that send a compressed, unbiased gradient of their potential: one step of a Langevin chain a round."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.chains.client_settings import AnyCompressor, ClientSettings, PerClient, client_settings
from tfp_bfl.contracts import (
    DYNAMIC,
    GRADIENT,
    PADDED,
    SCALED_GRADIENT,
    ClientWork,
    Coding,
    Needs,
    Work,
)
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_count, lookup, shown
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import flatten
from tfp_bfl.tensors import Scalar, is_traced_for_xla
from tfp_bfl.training.batches import without_initial_values
from tfp_bfl.training.likelihoods import Likelihood
from tfp_bfl.training.potential import TOLERANCE, Mode, Potential, check_independent, check_mode
from tfp_bfl.weights import ClientResult, Compact, ModelWeights, ServerMessage, TrainingMetrics

ESTIMATORS = {
    "plain": "of a batch: QLSD, QLSD#",
    "fixed_point": "of a batch, less that at the mode: QLSD*",
    "anchored": "of a batch, less that at the last anchor, and the whole gradient there: QLSD++",
}


class Kept(NamedTuple):
    """The memory of a client between rounds; () where it has none.

    Fields:
      memory: eta [D], of what it has sent.
      gradient: of its whole potential at the last anchor that it has met [D].
      number: of that anchor, int32; -1 before the first.
    """

    memory: Any
    gradient: Any
    number: Any


def stochastic_gradient(
    model_fn: Callable[[], keras.Model],
    *,
    estimator: str = "plain",
    batch_size: int | float | None = None,
    compressor: PerClient[AnyCompressor] = "none",
    per_tensor: bool = False,
    memory_rate: PerClient[float] | None = None,
    participation: PerClient[float] = 1.0,
    fixed_point: Mode | None = None,
    likelihood: str | Likelihood = "categorical",
    count_bits: bool = True,
) -> ClientWork[Any]:
    """Return client work that sends g = C(H - eta), with H the gradient of its potential U_i = sum_j u_j, estimated:

    "plain":        H = (N_i / n) sum_(j in S) grad u_j(w)
    "fixed_point":  H = (N_i / n) sum_(j in S) (grad u_j(w) - grad u_j(w*))
    "anchored":     H = (N_i / n) sum_(j in S) (grad u_j(w) - grad u_j(zeta)) + grad U_i(zeta)
    memory:         eta <- eta + rate g

    S are n of its N_i examples, drawn without replacement. C is a compressor (`tfp_bfl.compression`); what the client
    and the server use is what the message says. With a participation below 1 each client tosses a coin of its own in
    each round, and one that stays out sends nothing.

    A client meets the anchor zeta when it first takes part after a refresh, and then computes the gradient of all its
    examples once. The result reports, of those who take part, `upload_bits` as the code has them, `upload_bound` of the
    literature, and `download_bits`: 32 a weight, twice that with an anchor that is new to the client.

    `compressor`, `participation` and `memory_rate` are one value, or a sequence with one for each client in the order
    of their numbers. With a sequence of the last two the server gets the sums of g_i / p_i and of alpha_i g_i.

    Args:
      model_fn: builds a Keras model of point weights without BatchNorm and dropout, or `models.density`; or such a
        model.
      estimator: one of `ESTIMATORS`.
      batch_size: n, or a share of the client's examples below 1; None for all of them. More than N_i count as N_i.
      compressor: C, or its name: "quantiser:LEVELS", "sparsifier:SHARE" or "none"; or one for each client.
      per_tensor: C takes each tensor of the model for itself.
      memory_rate: of the client's memory, at most 1 / (1 + omega), or one for each client; None for no memory.
      participation: the probability that a client takes part, above 0 and at most 1, or one for each client.
      fixed_point: w*, the mode, as `find_mode` gives it of all clients' examples; for "fixed_point". Drivers of
        simulations look whether it is; sites' data they do not see.
      likelihood: "categorical", "gaussian:STDDEV", "heteroscedastic" or "density".
      count_bits: report `upload_bits`, which XLA can't.

    It sends a `GRADIENT` [D], or a `SCALED_GRADIENT`. Source: Vono et al. 2022 (arXiv:2106.00797), algorithms 1 and 2.
    """
    model_fn = as_model_fn(model_fn)
    lookup(ESTIMATORS, estimator, "estimator")
    potential = Potential(model_fn(), likelihood)
    check_independent(potential.model)
    settings = client_settings(potential, compressor, per_tensor, participation, memory_rate)
    check_batch_size(batch_size)
    mode = _checked_mode(fixed_point, potential, estimator, likelihood)
    anchored, remembers = estimator == "anchored", memory_rate is not None

    def first(weights: ModelWeights, share: Scalar) -> Kept:
        del weights, share
        zeros, nothing = tf.zeros([potential.size]), cast(Any, ())
        eta = zeros if remembers else nothing
        return Kept(eta, zeros, tf.constant(-1)) if anchored else Kept(eta, nothing, nothing)

    def build() -> Work[Any]:
        with tf.variable_creator_scope(without_initial_values):
            potential = Potential(model_fn(), likelihood)

        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[Any]:
            client = number_of(examples)
            own = settings.of(client)
            of_batch, of_noise, of_coin = (tf.random.experimental.stateless_fold_in(seed, i) for i in range(3))
            number, batch = _batch(examples, batch_size, of_batch)
            value, h = potential.total(flatten(message.weights.point), *batch)
            memory, fresh = message.memory, tf.constant(False)
            if anchored:
                memory, fresh = _met(message, potential, examples)
                h += memory.gradient - potential.total(flatten(message.extra.point), *batch)[1]
            elif mode is not None:
                h -= potential.total(tf.constant(mode), *batch)[1]
            takes_part = tf.random.stateless_uniform([], of_coin) < own.participation
            remainder = h - memory.memory if remembers else h
            sent, counts = _message(settings, client, remainder, takes_part, of_noise, count_bits)
            g = own.compressor.decompress(sent.code)
            if remembers:
                memory = memory._replace(memory=memory.memory + own.memory_rate * g)
            if anchored and not settings.everyone:
                memory = tf.nest.map_structure(lambda x, y: tf.where(takes_part, x, y), memory, message.memory)
            counts["download_bits"] = tf.where(takes_part, tf.where(fresh, 64.0, 32.0) * potential.size, 0.0)
            mean = value / tf.cast(tf.maximum(number, 1), tf.float32)
            metrics = TrainingMetrics(mean, tf.constant(0.0), -mean)
            return ClientResult(settings.estimate(g, client), number, metrics, counts, memory=memory, sent=sent)

        return tf.function(work, autograph=False)

    check = fixed_point and (lambda clients: check_mode(fixed_point, Potential(model_fn(), likelihood), clients))
    needs = Needs(settings.num_clients, checks=(check,) if check else ())
    keeps = first if anchored or remembers else None
    sends, shapes = SCALED_GRADIENT if settings.is_scaled else GRADIENT, DYNAMIC if count_bits else PADDED
    return ClientWork(build, sends, keeps, shapes, coding=_coding(settings, potential.size), needs=needs)


def _met(message: ServerMessage, potential: Potential, examples: ClientExamples) -> tuple[Kept, tf.Tensor]:
    """Return a client's memory with its whole gradient at the message's anchor, and whether the anchor is new to it."""
    memory, zeta, number = message.memory, flatten(message.extra.point), message.extra.number
    fresh = tf.not_equal(memory.number, number)
    every = examples.features, examples.labels, tf.cast(examples.client >= 0, tf.float32)
    whole = tf.cond(fresh, lambda: potential.total(zeta, *every)[1], lambda: memory.gradient)
    return memory._replace(gradient=whole, number=number), fresh


def _batch(
    examples: ClientExamples, batch_size: int | float | None, seed: tf.Tensor
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Return a client's number of examples, and the features, labels and counts of a batch (`draw_batch`)."""
    is_present = examples.client >= 0
    number = tf.math.count_nonzero(is_present, dtype=tf.int32)
    rows, counts = draw_batch(is_present, number, batch_size, seed)
    return number, (tf.gather(examples.features, rows), tf.gather(examples.labels, rows), counts)


def number_of(examples: ClientExamples) -> tf.Tensor:
    """Return the number of the client that has these examples, 0 for none."""
    return tf.maximum(tf.reduce_max(tf.concat([[-1], examples.client], 0)), 0)


def _message(
    settings: ClientSettings,
    client: tf.Tensor,
    remainder: tf.Tensor,
    takes_part: tf.Tensor,
    seed: tf.Tensor,
    count_bits: bool,
) -> tuple[Compact, dict[str, tf.Tensor]]:
    """Return a client's compressed message and its counts, zeros for a client that does not take part."""
    own = settings.of(client)
    of_number = 32.0 if settings.is_scaled else 0.0  # The message then holds the client's number.
    code = own.compressor.compress(remainder, seed)
    where_present = lambda x: tf.where(takes_part, x, tf.zeros_like(x))
    code = tf.nest.map_structure(where_present, code)
    counts = {"participants": tf.constant(1), "upload_bound": tf.convert_to_tensor(own.bound + of_number)}
    if count_bits:
        counts["upload_bits"] = tf.cast(own.compressor.num_bits(code), tf.float32) + of_number
    return Compact(code, client if settings.is_scaled else ()), tf.nest.map_structure(where_present, counts)


def _coding(settings: ClientSettings, size: int) -> Coding:
    shared = settings.shared
    return Coding(
        lambda message, sent: settings.estimate(shared.decompress(sent.code), sent.rest),
        lambda message, code: shared.encode(code),
        lambda message, code: shared.decode(code, size),
    )


def draw_batch(
    is_present: tf.Tensor, number: tf.Tensor, batch_size: int | float | None, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draw n rows without replacement from those with `is_present` [N]; return them and N_i / n for each, 0 beyond n.

    By a sort of random keys; where XLA compiles it by Floyd's algorithm, which takes n draws and not N: the rows that
    are there must then be the first. Shapes depend on N and `batch_size` alone, so that examples may be padded with
    rows that are not there.
    """
    size = is_present.shape[0] if is_present.shape[0] is not None else tf.shape(is_present)[0]
    if batch_size is None:
        return tf.range(size), tf.cast(is_present, tf.float32)
    if isinstance(batch_size, int):
        most = min(batch_size, size) if isinstance(size, int) else tf.minimum(batch_size, size)
        drawn = tf.minimum(batch_size, number)
    else:
        of = lambda n: tf.cast(tf.math.ceil(batch_size * tf.cast(n, tf.float32) - 1e-3), tf.int32)
        most = int(np.ceil(batch_size * size)) if isinstance(size, int) else of(size)
        drawn = tf.maximum(of(number), 1)
    if is_traced_for_xla():
        rows = tf.minimum(_subset(number, drawn, most, seed), size - 1)
    else:
        keys = tf.where(is_present, tf.random.stateless_uniform(tf.shape(is_present), seed), 2.0)
        rows = tf.argsort(keys)[:most]
    scale = tf.cast(number, tf.float32) / tf.cast(tf.maximum(drawn, 1), tf.float32)
    return rows, tf.where(tf.range(tf.shape(rows)[0]) < drawn, scale, 0.0)


def _subset(number: tf.Tensor, drawn: tf.Tensor, most: Scalar, seed: tf.Tensor) -> tf.Tensor:
    """Return integers below `number` [most], of which the first `drawn` are a uniform subset (Floyd's algorithm).

    The k-th is uniform over 0 to number - drawn + k or, where it has been drawn already, that last one itself.

    Source: Bentley and Floyd 1987, "A sample of brilliance".
    """
    last = number - drawn + tf.range(most)
    share = tf.random.stateless_uniform([most], seed)
    first = tf.minimum(tf.cast(share * tf.cast(last + 1, tf.float32), tf.int32), last)

    def add(k: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.where(tf.reduce_any(tf.equal(rows, first[k])), last[k], first[k])
        return k + 1, tf.where(tf.equal(tf.range(most), k), row, rows)

    return tf.while_loop(lambda k, _: k < most, add, (tf.constant(0), tf.fill([most], -1)), parallel_iterations=1)[1]


def check_batch_size(batch_size: int | float | None) -> None:
    """Raise InvalidArgument for what is neither a number of examples, nor a share of them, nor None."""
    if isinstance(batch_size, float) and not 0 < batch_size < 1:
        raise InvalidArgument(f"batch_size is {shown(batch_size)}, but must be an integer, or a share between 0 and 1.")
    if batch_size is not None and not isinstance(batch_size, float):
        check_count(batch_size, "batch_size")


def _checked_mode(
    mode: Mode | None, potential: Potential, estimator: str, likelihood: str | Likelihood
) -> np.ndarray | None:
    if (mode is None) != (estimator != "fixed_point"):
        raise InvalidArgument(
            "The estimator 'fixed_point' needs a fixed_point: take training.find_mode(...)."
            if mode is None
            else f"The estimator {estimator!r} takes no fixed_point: leave it out, or use 'fixed_point'."
        )
    if mode is None:
        return None
    if not isinstance(mode, Mode):
        raise InvalidArgument(f"fixed_point is {shown(mode)}, but must be a Mode, as training.find_mode(...) gives.")
    shapes, expected = [tuple(np.shape(x)) for x in mode.point], [tuple(v.shape) for v in potential.leaves]
    if shapes != expected:
        raise InvalidArgument(f"fixed_point has leaves {shapes}, but the model's weights are {expected}.")
    if mode.likelihood != likelihood:
        raise InvalidArgument(
            f"fixed_point is the mode with the likelihood {shown(mode.likelihood)}, but the clients have "
            f"{shown(likelihood)}: take training.find_mode(...) with theirs."
        )
    if not mode.error <= TOLERANCE:
        raise InvalidArgument(
            f"fixed_point is {mode.error:.2g} standard deviations from the mode, by which the chain would be off, and "
            f"at most {TOLERANCE:g} serve: take training.find_mode(...), or the estimator 'anchored'."
        )
    return np.concatenate([np.ravel(np.float32(x)) for x in mode.point])
