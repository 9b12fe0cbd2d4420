"""Pairs of client step and rule that are stationary at the posterior, and warnings for the others.

A round with weights W_k of the rule and displacements d_k of the clients' means leaves the mean where it is if
sum_k W_k d_k = 0. With g_k client k's gradient per example, b_k its share of the weights, P_k its precision and n the
effective number of examples, the target is sum_k b_k g_k = 0:

    step              d_k                  W_k = b_k               W_k = b_k P_k
    SGD, momentum     -rate g_k            the target              sum_k b_k P_k g_k = 0
    natural           -rate n g_k / P_k    sum_k b_k g_k / P_k = 0 the target
    Adam and others   -rate g_k / |g_k|    neither                 neither

to first order in the rate, for clients of equally many local steps. A client of more steps counts more, in proportion,
as in federated averaging (Wang et al. 2020, arXiv:2007.07481). A likelihood with a learned variance bounds the norm of
g_k in SGD (`Likelihood.max_gradient_norm`): while a client's gradient is longer, its displacement is too short.
`tests/test_fixed_points.py` measures each pair.
"""

from collections.abc import Callable

from tfp_bfl import keras, models, rules
from tfp_bfl.contracts import AnyRule
from tfp_bfl.training.inference import DEFAULT_INFERENCE
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, Optimizer, is_linear
from tfp_bfl.weights import layout

# The weights of a rule's mean, for rules that may be repeated over rounds.
PLAIN_MEAN = ("mean_precision_average", "naive_weighted_average", "linear_pool")
PRECISION_WEIGHTED = ("log_linear_pool", "distributed_weight_consolidation")
NATURAL = ("natural", "ivon")
DEFAULT_RULE = "mean_precision_average"


def default_rule(inference: str | None) -> str:
    """Return the rule under which an inference is stationary at the posterior; None for the default inference."""
    return "log_linear_pool" if inference in NATURAL else DEFAULT_RULE


def notices_of(
    model_fn: keras.Model | Callable[[], keras.Model],
    rule: AnyRule,
    optimizer: Optimizer | None,
    inference: str | None,
) -> tuple[str, ...]:
    """Return the notices of a process: the warning of its client step and rule, if there is one.

    Args:
      model_fn: of the process; without Gaussian weights every rule averages by weight.
      rule: or its name.
      optimizer: of the clients; None for the default.
      inference: one of `training.INFERENCES`; None for the default.
    """
    name, optimizer = rules.whole_model(rule).name, optimizer or DEFAULT_OPTIMIZER
    of_gaussian = fixed_point_warning(name, optimizer, inference or DEFAULT_INFERENCE)
    of_point = fixed_point_warning(name, optimizer)
    # To build a model takes some tenths of a second.
    is_same = of_gaussian == of_point
    warning = of_point if is_same or not layout(models.as_model_fn(model_fn)()).variational else of_gaussian
    return (warning,) if warning else ()


def fixed_point_warning(rule: str, optimizer: Optimizer, inference: str | None = None) -> str | None:
    """Return a warning if rounds of a rule and a client step are not stationary at the posterior, else None.

    Args:
      rule: its name; nothing is known of a custom one.
      optimizer: of the means, or of point weights.
      inference: one of `training.INFERENCES`; None for a model of point weights only, which every rule averages.
    """
    natural = inference in NATURAL
    if not natural and not is_linear(optimizer):
        return (
            f"The optimizer {_name(optimizer)} divides each gradient by its size on the client, so that rounds of "
            "clients who differ do not converge to the minimum of their mean loss: use optimizer 'momentum' or 'sgd'."
        )
    if inference is None:
        return None
    if natural and rule in PLAIN_MEAN:
        return (
            f"Inference {inference!r} divides gradients by the client's own precision, and the rule {rule!r} averages "
            "means without regard to it, so that rounds do not converge to the posterior: use rule 'log_linear_pool', "
            "or inference 'curvature'."
        )
    if not natural and rule in PRECISION_WEIGHTED:
        return (
            f"The rule {rule!r} weights means by precision, and inference {inference!r} moves them by plain gradients, "
            f"so that rounds do not converge to the posterior: use rule {DEFAULT_RULE!r}, or inference 'natural'."
        )
    return None


def _name(optimizer: Optimizer) -> str:
    return repr(optimizer) if isinstance(optimizer, str) else type(optimizer()).__name__
