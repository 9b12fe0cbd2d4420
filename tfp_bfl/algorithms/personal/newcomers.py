"""Personal models of clients that were not in training, fitted to the parameters of the other clients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.data import ClientExamples, Clients
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import fold
from tfp_bfl.weights import ModelWeights, ServerMessage

# No round has this number: the noise is that of no client in training.
_NEWCOMER = -4


def fit_newcomers(
    process: BayesianProcess, state: ServerState, clients: Clients, *, rounds: int = 20, seed: int = 0
) -> list[ModelWeights]:
    """Return the weights for clients that were never in training, by rows of their own: embeddings fitted to their
    examples.

    e <- e - rate (d l / d e)^T (l - l'),   rate = ||l - l'||^2 / ||(d l / d e)^T (l - l')||^2

    from the mean of all rows on, with l' the logits after the client's work from l = h(e); the weights and what all
    clients share of h stay. Without it (`BayesianProcess.personal_weights`) a newcomer has the mean of all rows.

    Args:
      process: its clients have rows, such as `algorithms.meta_vd`.
      state: of a run.
      clients: the newcomers, with the examples to fit to.
      rounds: steps of e.
      seed: of the clients' work.

    Returns:
      The weights of each, in order.

    Raises:
      InvalidArgument: clients without rows of their own, or fewer than one round.

    Source: Jeon et al. 2023 (arXiv:2510.20225): their step of e_m, alone.
    """
    check_count(rounds, "rounds")
    step, weights = tf.nest.map_structure(tf.convert_to_tensor, (state.step, state.weights))
    parameters, personal = getattr(step, "parameters", None), process.server_step.personal
    if process.client_work.extra is None or parameters is None or personal is None or parameters.rows == ():
        raise InvalidArgument(
            "A newcomer's row requires a process with rows of clients, such as algorithms.meta_vd with a hypernetwork: "
            "use personal_weights(state, client) for any other."
        )
    number = parameters.rows.shape[0]
    # All rows are the newcomer's, who comes in the place of client 0.
    same = lambda row: parameters._replace(rows=tf.repeat(row[tf.newaxis], number, 0))
    work = process.client_work.build()

    @tf.function(autograph=False, reduce_retracing=True)
    def moved(row: tf.Tensor, examples: ClientExamples, key: tf.Tensor) -> tf.Tensor:
        message = ServerMessage(weights, tf.convert_to_tensor(state.round), same(row), (), state.federation)
        sent = work(message, examples, key).extra
        gradient = sent.rows[0]
        return row - gradient * tf.math.divide_no_nan(sent.moved, tf.reduce_sum(tf.square(gradient)))

    fitted = []
    for k in range(clients.num_clients):
        data = clients.examples(k)._replace(client=np.zeros(len(clients.indices[k]), np.int32))
        data, row = tf.nest.map_structure(tf.convert_to_tensor, data), tf.reduce_mean(parameters.rows, 0)
        for i in range(rounds):
            row = moved(row, data, fold(seed, i, k, _NEWCOMER))
        fitted.append(personal(step._replace(parameters=same(row)), weights, number))
    return fitted
