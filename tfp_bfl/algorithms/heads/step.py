"""The server of an exact head: from sums of the clients to the weights of the last layer and their posterior."""

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
from tfp_bfl.algorithms.heads.sums import (
    NUM_SENT,
    ClassSums,
    HeadMessage,
    HeadSums,
    empty_sums,
    first_message,
    repaired,
)
from tfp_bfl.contracts import HEAD_SUMS, Needs, ServerStep, total_of
from tfp_bfl.posterior.kronecker import upper
from tfp_bfl.servers.pooled import check_point_weights
from tfp_bfl.weights import ModelWeights

# Newton step of softmax in posterior standard deviations, root mean square over the weights.
LARGEST_STEP = 0.1
_GAMMA = "draws from a gamma distribution, as the head gaussian makes"


class HeadState(NamedTuple):
    """The state: sums over all clients, and what is sent next.

    Fields:
      rounds: done, int32.
      features: of the first round.
      losses: of the held-back rows in the last round, by temperature, and their number [62].
      message: the next `HeadMessage`.
      search: of "softmax" (`softmax.Search`); () for other heads.
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
        empty = empty_sums(width - 1, classes)
        features = empty.features._replace(gram=upper(empty.features.gram))
        state = HeadState(tf.constant(0), features, empty.losses, message)
        return state._replace(search=softmax.empty(width, classes)) if iterates else state

    def advance(
        state: HeadState, weights: ModelWeights, pooled: HeadSums, seed: tf.Tensor
    ) -> tuple[HeadState, ModelWeights]:
        new = tf.nest.map_structure(lambda x: scale * x, pooled)
        state = tf.cond(
            tf.equal(state.rounds, 0),
            lambda: _begun(settings, state, new, seed),
            lambda: _advanced(settings, state, new, seed),
        )
        mean = tf.cast(state.message.weights, tf.float32)
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
                f"The softmax head was {float(state.search.distance):.2g} posterior standard deviations from its mode "
                f"before the last step (root mean square over the weights; at most {LARGEST_STEP:g} serve): run more "
                "rounds, each with all clients."
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
        needs=Needs(notice=notice, closed_form=True, not_compiled=_GAMMA if settings.head == "gaussian" else ""),
    )


def _begun(settings: HeadSettings, state: HeadState, new: HeadSums, seed: tf.Tensor) -> HeadState:
    """Return the state with the sums of the first round, and the head or the first step of softmax."""
    features = repaired(new.features, settings.clip_norm) if settings.is_noisy else new.features
    state = state._replace(features=features)
    if settings.head == "softmax":
        state = state._replace(search=softmax.begin(state.search, features, settings.stddev))
    return _with_message(state, settings, seed)


def _advanced(settings: HeadSettings, state: HeadState, new: HeadSums, seed: tf.Tensor) -> HeadState:
    """Return the state after a step of softmax; of other heads only the losses are new."""
    state = state._replace(losses=new.losses)
    if settings.head != "softmax":
        return state
    search = softmax.advance(state.search, new.gradient, new.fisher, settings.stddev)
    return _with_message(state._replace(search=search), settings, seed)


def _with_message(state: HeadState, settings: HeadSettings, seed: tf.Tensor) -> HeadState:
    found = fitted(state, settings, NUM_SENT)
    return state._replace(message=HeadMessage(found.mean, sent(found.posterior, seed)))


def fitted(state: HeadState, settings: HeadSettings, num_draws: int = NUM_DRAWS) -> Fitted:
    """Return the head of a state."""
    if settings.head == "softmax":
        search = state.search
        return fit_softmax(search.basis, search.mode, search.fisher, search.precision)
    return fit(state.features, settings, num_draws)


def temperature_of(state: HeadState, settings: HeadSettings) -> float:
    """Return the softmax temperature: as given, or that of the held-back rows."""
    given = settings.temperature
    return fitted_temperature(np.asarray(state.losses)) if given is None else given
