"""The weights of a Keras model and posteriors over them: vectors, functional calls, the messages of a round."""

from tfp_bfl.weights.change import (
    by_part,
    change_norm,
    coordinates,
    root_mean_square_change,
)
from tfp_bfl.weights.exchange import (
    Anchor,
    ClientCurvature,
    ClientPosterior,
    ClientResult,
    Compact,
    LinearTerm,
    Population,
    Pruned,
    RoundSize,
    ScaledGradient,
    ServerMessage,
    TrainingMetrics,
)
from tfp_bfl.weights.flat import FlatWeights
from tfp_bfl.weights.functional_call import batch_moments, batch_normalized_call, functional_call
from tfp_bfl.weights.head import mean_and_log_variance, split_head
from tfp_bfl.weights.model_checks import check_form, check_layers, check_logits
from tfp_bfl.weights.model_weights import (
    ModelWeights,
    assign_weights,
    get_weights,
    layout,
    min_stddev,
    prior,
)
from tfp_bfl.weights.posterior_model import (
    MemberSampling,
    WeightSampling,
    ensemble_model,
    num_members,
    predictive_model,
    predictive_spec,
    predictive_weights,
    scaling_bytes,
    weight_sampling,
)
from tfp_bfl.weights.seeded import seeded

__all__ = [
    "Anchor",
    "ClientCurvature",
    "ClientPosterior",
    "ClientResult",
    "Compact",
    "FlatWeights",
    "LinearTerm",
    "MemberSampling",
    "ModelWeights",
    "Population",
    "Pruned",
    "RoundSize",
    "ScaledGradient",
    "ServerMessage",
    "TrainingMetrics",
    "WeightSampling",
    "assign_weights",
    "batch_moments",
    "batch_normalized_call",
    "by_part",
    "change_norm",
    "check_form",
    "check_layers",
    "check_logits",
    "coordinates",
    "ensemble_model",
    "functional_call",
    "get_weights",
    "layout",
    "mean_and_log_variance",
    "min_stddev",
    "num_members",
    "predictive_model",
    "predictive_spec",
    "predictive_weights",
    "prior",
    "root_mean_square_change",
    "scaling_bytes",
    "seeded",
    "split_head",
    "weight_sampling",
]
