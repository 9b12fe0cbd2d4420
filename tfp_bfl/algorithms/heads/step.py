"""The server of an exact head: from sums of the clients to the weights of the last layer and their posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.heads import softmax
from tfp_bfl.algorithms.heads.classes import NUM_DRAWS
from tfp_bfl.algorithms.heads.posterior import (
    Fitted,
    HeadSettings,
    at_temperature,
    fit,
    fit_softmax,
    fitted_temperature,
    sent,
)
from tfp_bfl.algorithms.heads.sums import ClassSums, HeadMessage, HeadSums, empty_sums, first_message, repaired
from tfp_bfl.algorithms.laplace.evidence import fitted_precision
from tfp_bfl.contracts import HEAD_SUMS, Needs, ServerStep, total_of
from tfp_bfl.posterior.kronecker import upper
from tfp_bfl.servers.pooled import check_point_weights
from tfp_bfl.weights import ModelWeights

# Remaining step of softmax in posterior standard deviations, root mean square over the weights.
LARGEST_STEP = 0.1
# The first prior precision of softmax by the number of examples: that of standardised features.
_FIRST_PRECISION = 0.01
# Steps before the prior is fitted.
_STEPS_WITH_FIRST = 3


class Search(NamedTuple):
    """The state of the search for the mode of softmax regression.

    Fields:
      basis: of the weights V [F + 1, C] (`softmax.Basis`).
      mode, ahead: V after the last step, and V from which the next one goes, by Nesterov's momentum.
      momentum: Nesterov's t.
      precision: 1 / t^2 of the prior.
      fisher: sum of the Fisher information at the weights of the last step [C, C].
      distance: length of the last step in posterior standard deviations, root mean square over the weights.
    """

    basis: softmax.Basis
    mode: Any
    ahead: Any
    momentum: Any
    precision: Any
    fisher: Any
    distance: Any


class HeadState(NamedTuple):
    """The state: sums over all clients, and what is sent next.

    Fields:
      rounds: done, int32.
      features: of the first round.
      losses: of the held-back rows in the last round, by temperature, and their number [62].
      message: the next `HeadMessage`.
      search: of "softmax"; () for other heads.
    """

    rounds: Any
    features: ClassSums
    losses: Any
    message: HeadMessage
    search: Any = ()


def head(settings: HeadSettings, scale: float = 1.0) -> ServerStep[HeadSums]:
    """Compute a head of `posterior.HEADS` from the sums of the clients of the first round.

    Args:
      scale: by which sums of secure aggregation are multiplied: its largest weight.
    """
    iterates = settings.head == "softmax"

    def initialize(weights: ModelWeights) -> HeadState:
        check_point_weights(weights, "An exact head")
        message = first_message(weights)
        width, classes = message.weights.shape
        empty, zeros = empty_sums(width - 1, classes), lambda *shape: tf.zeros(shape, tf.float64)
        features = empty.features._replace(gram=upper(empty.features.gram))
        state = HeadState(tf.constant(0), features, empty.losses, message)
        if not iterates:
            return state
        basis, v, one = softmax.Basis(zeros(width, width), zeros(width)), zeros(width, classes), tf.ones([], tf.float64)
        return state._replace(search=Search(basis, v, v, one, one, zeros(classes, classes), zeros()))

    def advance(
        state: HeadState, weights: ModelWeights, pooled: HeadSums, seed: tf.Tensor
    ) -> tuple[HeadState, ModelWeights]:
        new = tf.nest.map_structure(lambda x: scale * x, pooled)
        state = tf.cond(
            tf.equal(state.rounds, 0),
            lambda: _begun(settings, state, new, seed),
            lambda: _advanced(settings, state, new, seed),
        )
        mean = state.search.basis.vectors @ state.search.mode if iterates else state.message.weights
        mean = tf.cast(mean, tf.float32)
        state = state._replace(rounds=state.rounds + 1)
        return state, weights._replace(point=(*weights.point[:-2], mean[:-1], mean[-1]))

    def predictive(state: HeadState, weights: ModelWeights) -> ModelWeights:
        if int(state.rounds) == 0:
            return weights
        q = at_temperature(fitted(state, settings).posterior, temperature_of(state, settings))
        return weights._replace(posterior=q, point=tuple(weights.point[:-2]))

    def notice(state: HeadState, weights: ModelWeights) -> str | None:
        del weights
        if iterates and int(state.rounds) and float(state.search.distance) > LARGEST_STEP:
            return (
                f"The last step of the softmax head has {float(state.search.distance):.2g} posterior standard "
                f"deviations (root mean square over the weights; at most {LARGEST_STEP:g} serve): run more rounds, "
                "each with all clients."
            )
        if settings.temperature is None and settings.clip_norm is None and int(state.rounds) < 2:
            return "The softmax temperature is 1: a second round fits it to rows that clients hold back."
        return None

    return ServerStep(
        initialize,
        advance,
        predictive,
        send=lambda state, weights: state.message,
        takes=total_of(HEAD_SUMS),
        name=f"{settings.head} head",
        needs=Needs(notice=notice),
    )


def _begun(settings: HeadSettings, state: HeadState, new: HeadSums, seed: tf.Tensor) -> HeadState:
    """Return the state with the sums of the first round: the head itself, or the basis of softmax at weights 0."""
    features = repaired(new.features, settings.clip_norm) if settings.is_noisy else new.features
    state = state._replace(features=features)
    if settings.head != "softmax":
        found = fit(features, settings)
        return state._replace(message=HeadMessage(found.mean, sent(found.posterior, seed)))
    precision = _FIRST_PRECISION * tf.reduce_sum(features.counts)
    if settings.stddev is not None:
        precision = tf.constant(settings.stddev**-2.0, tf.float64)
    search = state.search._replace(basis=softmax.basis_of(features), precision=precision)
    return state._replace(search=search, message=HeadMessage(*map(tf.zeros_like, state.message)))


def _advanced(settings: HeadSettings, state: HeadState, new: HeadSums, seed: tf.Tensor) -> HeadState:
    """Return the state after a step of softmax; of other heads only the losses are new."""
    state = state._replace(losses=new.losses)
    if settings.head != "softmax":
        return state
    search = state.search
    if settings.stddev is None:
        _, curvatures = softmax.shared_curvature(search.basis, new.fisher)
        precision = fitted_precision(curvatures, tf.reduce_sum(tf.square(search.ahead)))
        search = search._replace(precision=tf.where(state.rounds > _STEPS_WITH_FIRST, precision, search.precision))
    search = _stepped(search, new)
    found = fit_softmax(search.basis, search.mode, search.fisher, search.precision)
    message = HeadMessage(search.basis.vectors @ search.ahead, sent(found.posterior, seed))
    return state._replace(search=search, message=message)


def _stepped(search: Search, new: HeadSums) -> Search:
    """Return the search after a step of Boehning's bound with Nesterov's momentum."""
    basis, ahead, precision = search.basis, search.ahead, search.precision
    mode = softmax.descend(basis, ahead, new.gradient, precision)
    moved, back = mode - search.mode, ahead - mode
    # A step against the momentum starts it anew (O'Donoghue and Candes 2015, arXiv:1204.3982).
    turns = tf.reduce_sum(back * (basis.values / 2 + precision)[:, tf.newaxis] * moved) > 0
    momentum = tf.where(turns, tf.ones_like(search.momentum), search.momentum)
    following = (1 + tf.sqrt(1 + 4 * tf.square(momentum))) / 2
    columns, curvatures = softmax.shared_curvature(basis, new.fisher)
    lengths = tf.square(back @ columns) * (curvatures + precision)
    return Search(
        basis,
        mode,
        mode + (momentum - 1) / following * moved,
        following,
        precision,
        new.fisher,
        tf.sqrt(tf.reduce_mean(lengths)),
    )


def fitted(state: HeadState, settings: HeadSettings) -> Fitted:
    """Return the head of a state, outside any graph."""
    if settings.head == "softmax":
        search = state.search
        return fit_softmax(search.basis, search.mode, search.fisher, search.precision)
    return fit(state.features, settings, NUM_DRAWS)


def temperature_of(state: HeadState, settings: HeadSettings) -> float:
    """Return the softmax temperature: as given, or that of the held-back rows."""
    given = settings.temperature
    return fitted_temperature(np.asarray(state.losses)) if given is None else given
