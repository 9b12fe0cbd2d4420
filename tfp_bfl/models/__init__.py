"""Keras model builders, each in four kinds; and, for this release, the names of `tfp_bfl.weights`.

A new model is one file of this folder and one entry in `MODELS`.
"""

from typing import Callable

import tensorflow as tf

from tfp_bfl.models.conv_net import conv_net
from tfp_bfl.models.density import density
from tfp_bfl.models.kinds import KINDS, PRECISIONS
from tfp_bfl.models.lenet import lenet
from tfp_bfl.models.mlp import mlp
from tfp_bfl.models.model_fn import as_model_fn
from tfp_bfl.models.precision import in_bfloat16
from tfp_bfl.models.resnet import resnet20
from tfp_bfl.weights import (
    PERSONAL_VARIANCES,
    Anchor,
    ClientCurvature,
    ClientPosterior,
    ClientResult,
    Compact,
    Federation,
    FlatWeights,
    LinearTerm,
    LogitGradient,
    MemberSampling,
    ModelWeights,
    Parameters,
    PersonalVariances,
    Pruned,
    ServerMessage,
    TrainingMetrics,
    WeightSampling,
    assign_weights,
    batch_moments,
    batch_normalized_call,
    by_part,
    change_norm,
    check_form,
    check_layers,
    check_logits,
    coordinates,
    ensemble_model,
    from_coordinates,
    functional_call,
    get_weights,
    kept_weights,
    layout,
    mean_and_log_variance,
    min_stddev,
    num_members,
    predictive_model,
    predictive_spec,
    predictive_weights,
    prior,
    root_mean_square_change,
    seeded,
    split_head,
    weight_sampling,
)

MODELS: dict[str, Callable[..., tf.keras.Model]] = {
    builder.__name__: builder for builder in (lenet, resnet20, mlp, conv_net)
}

__all__ = [
    "KINDS",
    "MODELS",
    "PERSONAL_VARIANCES",
    "PRECISIONS",
    "Anchor",
    "ClientCurvature",
    "ClientPosterior",
    "ClientResult",
    "Compact",
    "Federation",
    "FlatWeights",
    "LinearTerm",
    "LogitGradient",
    "MemberSampling",
    "ModelWeights",
    "Parameters",
    "PersonalVariances",
    "Pruned",
    "ServerMessage",
    "TrainingMetrics",
    "WeightSampling",
    "as_model_fn",
    "assign_weights",
    "batch_moments",
    "batch_normalized_call",
    "by_part",
    "change_norm",
    "check_form",
    "check_layers",
    "check_logits",
    "coordinates",
    "density",
    "ensemble_model",
    "from_coordinates",
    "functional_call",
    "get_weights",
    "in_bfloat16",
    "kept_weights",
    "layout",
    "mean_and_log_variance",
    "min_stddev",
    "num_members",
    "predictive_model",
    "predictive_spec",
    "predictive_weights",
    "prior",
    "root_mean_square_change",
    "seeded",
    "split_head",
    "weight_sampling",
    *MODELS,
]
