"""Clients who were never in training, fitted to what has been learnt of the others."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import PERSONAL, ServerState
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import fold
from tfp_bfl.models import ModelWeights, Parameters, ServerMessage

# No round has this number: the noise is that of no client in training.
_NEWCOMER = -4


def fit_newcomer(
    process: BayesianProcess, state: ServerState, examples: ClientExamples, *, rounds: int = 20, seed: int = 0
) -> ModelWeights:
    """The weights for a client that was never in training, by a row of its own: an embedding fitted to its examples.

    e <- e - rate (d l / d e)^T (l - l'),   rate = ||l - l'||^2 / ||(d l / d e)^T (l - l')||^2

    from the mean of all rows on, with l' the logits after the client's work from l = h(e); the weights and what all
    clients share of h stay. Without it (`BayesianProcess.personal_weights`) a newcomer has the mean of all rows.

    Args:
      process: whose clients have rows, such as `algorithms.meta_vd`.
      state: of a run.
      examples: the newcomer's, to fit to.
      rounds: steps of e.
      seed: of the client's work.

    Raises:
      InvalidArgument: clients without rows of their own, no examples, or fewer than one round.

    Source: Jeon et al. 2023 (arXiv:2510.20225), whose step of e_m this is, alone.
    """
    check_count(rounds, "rounds")
    step, weights = tf.nest.map_structure(tf.convert_to_tensor, (state.step, state.weights))
    parameters = getattr(step, "parameters", None)
    if process.client_work.sends != PERSONAL or (isinstance(parameters, Parameters) and parameters.rows == ()):
        raise InvalidArgument(
            "A newcomer's row is of a process whose clients have rows, such as algorithms.meta_vd with a hypernetwork: "
            "use personal_weights(state, client) for any other."
        )
    if not len(examples.labels):
        raise InvalidArgument("There are no examples to fit a newcomer to: it has personal_weights(state, client).")
    number = parameters.rows.shape[0]
    same = lambda row: parameters._replace(rows=tf.repeat(row[tf.newaxis], number, 0))
    own = ClientExamples(np.full(len(examples.labels), number, np.int32), examples.features, examples.labels)
    own, work = tf.nest.map_structure(tf.convert_to_tensor, own), process.client_work.build()

    @tf.function(autograph=False)
    def moved(row: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        message = ServerMessage(weights, tf.convert_to_tensor(state.round), same(row), (), state.federation)
        sent = work(message, own, key).weights
        return row - sent.row * tf.math.divide_no_nan(sent.moved, tf.reduce_sum(tf.square(sent.row)))

    row = tf.reduce_mean(parameters.rows, 0)
    for i in range(rounds):
        row = moved(row, fold(seed, i, _NEWCOMER))
    return process.server_step.personal(step._replace(parameters=same(row)), weights, number)  # type: ignore[misc]
