"""Checks of models and of compositions by server steps."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.contracts import WEIGHTS, ServerStep
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import Given


def check_point_weights(weights: ModelWeights, what: str) -> None:
    """Raise InvalidArgument for a model with variational layers."""
    if tf.nest.flatten(weights.posterior):
        raise InvalidArgument(
            f"{what} finds a posterior over point weights, and this model's layers have one of their own: build it "
            "with kind 'deterministic' or 'mc_dropout'."
        )


def check_step(step: ServerStep[Given], name: str, any_rule: bool = False) -> ServerStep[Given]:
    """Return `step`, if it is a server step: one that starts from pooled weights unless `any_rule`.

    Raises:
      InvalidArgument: it is none; the message calls it by `name`.
    """
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
