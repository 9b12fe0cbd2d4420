"""Rules over clients whose variances are their own."""

from __future__ import annotations

from typing import Any, NamedTuple, Union

import tensorflow as tf

from tfp_bfl.contracts import PERSONAL, PERSONAL_POOL, WEIGHTS, GatherRule, ModelRule, Rule
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.models import ModelWeights, PersonalResult
from tfp_bfl.rules.rule import add, each
from tfp_bfl.rules.whole_model import whole_model


class _Statistics(NamedTuple):
    weights: Any
    shared: Any  # sum_k w_k gradient_k
    rows: Any  # the same, each in its client's row [M, ...]
    present: Any  # [M]
    moved: Any  # sum_k w_k ||change_k||^2
    total: Any  # sum_k w_k


class PersonalPool(NamedTuple):
    """What `servers.personal` takes.

    Fields:
      weights: pooled `ModelWeights`.
      shared, rows: sum_k b_k gradient_k of the parameters of the variances.
      present: which rows are of clients in the round, 1 or 0 [M].
      moved: sum_k b_k ||change_k||^2 of the logits.
    """

    weights: ModelWeights
    shared: Any
    rows: Any
    present: Any
    moved: Any


def personal(num_clients: int, rule: Union[Rule, str] = "log_linear_pool") -> ModelRule:
    """`rule` for the weights, and the clients' gradients of what gives their variances, by weight:

    theta = sum_k r_k theta_k,   r_k = w_k / sigma_k^2 / sum_j w_j / sigma_j^2     (the mean of the log-linear pool)
    gradient = sum_k b_k gradient_k,   b_k = w_k / sum_j w_j

    A weight without any precision, as all clients pruned it, stays as the server has it. A round reports how far
    training moved the clients' logits, `logit_change`: sqrt(sum_k b_k ||l_k - l'_k||^2).

    Args:
      num_clients: M, who have rows.
      rule: for the weights; "naive_weighted_average" leaves the precisions out.

    Raises:
      InvalidArgument: a rule that needs all clients' posteriors at once.

    Source: Jeon et al. 2023 (arXiv:2510.20225), section 3; without its factor 1 / K: shares r_k add to 1.
    """
    of_weights = whole_model(rule)
    if isinstance(of_weights, GatherRule) or of_weights.takes != WEIGHTS:
        raise InvalidArgument(f"personal takes a rule such as 'log_linear_pool', not {of_weights.name!r}.")

    def summarise(local: PersonalResult, anchor: ModelWeights, weight: tf.Tensor) -> _Statistics:
        weights = ModelWeights(local.posterior, local.point, local.moments)
        mine = tf.one_hot(local.client, num_clients)
        in_rows = each(lambda x: tf.tensordot(mine, weight * x, 0), local.row)
        shared = each(lambda x: weight * x, local.shared)
        moved = weight * local.moved
        return _Statistics(of_weights.summarise(weights, anchor, weight), shared, in_rows, mine, moved, weight)

    def merge(a: _Statistics, b: _Statistics) -> _Statistics:
        return _Statistics(of_weights.merge(a.weights, b.weights), *add(tuple(a)[1:], tuple(b)[1:]))

    def pool(total: _Statistics, anchor: ModelWeights) -> PersonalPool:
        mean = lambda x: tf.math.divide_no_nan(x, total.total)
        pooled = of_weights.pool(total.weights, anchor)
        return PersonalPool(pooled, each(mean, total.shared), each(mean, total.rows), total.present, mean(total.moved))

    def metrics(total: _Statistics, anchor: ModelWeights) -> dict[str, tf.Tensor]:
        return {"logit_change": tf.sqrt(tf.math.divide_no_nan(total.moved, total.total))}

    name = f"personal {of_weights.name}"
    return ModelRule(summarise, merge, pool, name=name, metrics=metrics, takes=PERSONAL, gives=PERSONAL_POOL)
