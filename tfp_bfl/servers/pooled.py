"""Steps from pooled weights: taken as they are, by an optimizer, or with the clients' variance for predictions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import GAUSSIAN, WEIGHTS, ServerStep
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.posterior import MeanField
from tfp_bfl.servers.optimizers import Optimizer, ServerOptimizer
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import ClientGaussian, Given


def replace() -> ServerStep:
    """w <- pooled: federated averaging's step (McMahan et al. 2017), for any rule."""

    def step(state: tuple, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor) -> tuple[tuple, ModelWeights]:
        del weights, seed
        return state, pooled

    return ServerStep(lambda weights: (), step, name="replace")


def optimize(optimizer: ServerOptimizer | None) -> ServerStep:
    """w <- optimizer(w, w - pooled): the pooled change, negated, as a gradient of means and point weights.

    Plain SGD of rate 1 is `replace`. Variances and BatchNorm's statistics are taken as they were pooled.

    Args:
      optimizer: with `initialize(specs)` and `next(state, weights, gradients)`: of `servers.server_optimizer`, or of
        `tff.learning.optimizers`; None for `replace`.

    Source: Reddi et al. 2021 (arXiv:2003.00295), algorithm 1 (FedOpt).
    """
    if optimizer is None:
        return replace()
    if not (hasattr(optimizer, "initialize") and hasattr(optimizer, "next")):
        raise InvalidArgument(
            "optimizer must have initialize and next, as servers.server_optimizer('adam') has, but is "
            f"{shown(optimizer)}."
        )

    def initialize(weights: ModelWeights) -> TensorTree:
        state = optimizer.initialize(tf.nest.map_structure(tf.TensorSpec.from_tensor, _trained(weights)))
        return tf.nest.map_structure(tf.convert_to_tensor, state)

    def step(
        state: TensorTree, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor
    ) -> tuple[TensorTree, ModelWeights]:
        del seed
        gradient = tf.nest.map_structure(tf.subtract, _trained(weights), _trained(pooled))
        state, (means, point) = optimizer.next(state, _trained(weights), gradient)
        return state, pooled._replace(posterior=pooled.posterior._replace(mean=means), point=point)

    return ServerStep(initialize, step, name=f"optimize ({in_words(optimizer)})")


def _trained(weights: ModelWeights) -> tuple[Any, Any]:
    return weights.posterior.mean, weights.point


def in_words(optimizer: ServerOptimizer) -> str:
    """Return the optimizer's name and learning rate; those of TensorFlow Federated store it in their first state."""
    if isinstance(optimizer, Optimizer):
        given = optimizer.learning_rate
        stated = getattr(given, "settings", {"learning_rate": 1.0, "schedule": "custom"})
        by_rounds = "{learning_rate:g}, schedule {schedule}".format(**stated)
        return f"{optimizer.name}, learning rate {by_rounds if callable(given) else format(given, 'g')}"
    name = type(optimizer).__name__.strip("_").lower()
    state = optimizer.initialize(tf.TensorSpec([]))
    rate = state.get("learning_rate") if isinstance(state, Mapping) else None
    return name if rate is None else f"{name}, learning rate {float(rate):g}"


class SpreadState(NamedTuple):
    """The state: that of the step, and the variance over the clients of each point weight."""

    step: Any
    variance: Any


def keep_gaussian(step: ServerStep | None = None) -> ServerStep[ClientGaussian]:
    """w <- step(w) with the pooled mean; predictions draw from N(w, variance over the clients).

    Args:
      step: `replace()`, the default, or `optimize(...)`.

    Returns:
      A step over what `tfp_bfl.rules.client_gaussian` gives. Before the first round the weights themselves predict.

    Source: Thorgeirsson & Gauterin 2020 (FedAG).
    """
    inner = check_step(replace() if step is None else step, "step")

    def initialize(weights: ModelWeights) -> SpreadState:
        check_point_weights(weights, "FedAG")
        return SpreadState(inner.initialize(weights), tf.nest.map_structure(tf.zeros_like, weights.point))

    def advance(
        state: SpreadState, weights: ModelWeights, pooled: ClientGaussian, seed: tf.Tensor
    ) -> tuple[SpreadState, ModelWeights]:
        if len(pooled.posterior.mean) != len(weights.point):
            raise InvalidArgument("FedAG's server takes what rules.client_gaussian() gives: use it with that rule.")
        points = weights._replace(point=pooled.posterior.mean, moments=pooled.moments)
        own, moved = inner.next(state.step, weights, points, seed)
        return SpreadState(own, pooled.posterior.variance), moved

    def predictive(state: SpreadState, weights: ModelWeights) -> ModelWeights:
        return weights._replace(posterior=MeanField(weights.point, state.variance), point=())

    send = lambda state, weights: inner.send(state.step, weights)
    return ServerStep(initialize, advance, predictive, send, takes=GAUSSIAN, name=after("keep_gaussian", inner))


def check_point_weights(weights: ModelWeights, what: str) -> None:
    """Raise InvalidArgument for a model with variational layers."""
    if tf.nest.flatten(weights.posterior):
        raise InvalidArgument(
            f"{what} finds a posterior over point weights, and this model's layers have one of their own: build it "
            "with kind 'deterministic' or 'mc_dropout'."
        )


def check_step(step: ServerStep[Given], name: str, any_rule: bool = False) -> ServerStep[Given]:
    """Return `step`, if it is a server step: one that starts from pooled weights unless `any_rule`."""
    if not isinstance(step, ServerStep):
        given = getattr(step, "__name__", step)
        raise InvalidArgument(f"{name} must be a ServerStep, such as servers.replace(), not {shown(given)}.")
    if step.takes != WEIGHTS and not any_rule:
        raise InvalidArgument(
            f"{name} must go on from a model's weights, as servers.replace() and servers.optimize(...) do, but "
            f"{step.name} takes a {step.takes}."
        )
    return step


def after(name: str, step: ServerStep[Given]) -> str:
    """Return the name of a step that another one begins."""
    return name if step.name == "replace" else f"{name} after {step.name}"
