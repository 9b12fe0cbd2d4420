"""The target of local training: the scaling of the KL term."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.weights import Population
from tfp_bfl.weights.flat import Prior

KLS = {
    "total": "KL / N with the N of all clients: rules over rounds count the prior once",
    "client": "KL / N_k: each client counts the whole prior",
    "product": "KL to prior^(1 / K), / N_k: the product of all clients' densities counts the prior once",
}


class Target(NamedTuple):
    """The q closest to prior(w) likelihood(w)^(n / N_k), of the client's likelihood.

    loss = mean over the examples of -log p(y | x, w) + KL[q || prior] / n

    Fields:
      prior: over the variational weights.
      size: n, the effective number of examples: a scalar.
      least_precision: the least precision that training may reach [D], 0 for none. The local prior of Bayesian ADMM may
        have a negative precision, and noise of the curvature could then leave none.
    """

    prior: Prior
    size: tf.Tensor
    least_precision: Any = 0.0


def target_of(
    kl: str,
    weighting: str,
    temperature: float,
    prior: Prior,
    federation: Population,
    num_examples: tf.Tensor,
) -> Target:
    """Return the target of a client of `num_examples`.

    The log-linear pool of the clients' optima, prior likelihood_k^(1 / b_k) with the weights b_k of the pool, is the
    posterior: prior prod_k likelihood_k. So, for "total",

    n = N_k / b_k = N for b_k = N_k / N, and K N_k for equal weights

    Args:
      kl: one of `KLS`.
      weighting: of the server. Where it is known only after the round, n is N.
      temperature: n is divided by it: below 1 the posterior is sharper, that of more examples than there are.
      prior: over the variational weights.
      federation: its size.
      num_examples: N_k, a float.
    """
    clients = tf.maximum(tf.cast(federation.num_clients, tf.float32), 1.0)
    if kl == "product":
        prior = prior._replace(
            precision=prior.precision / clients, log_stddev=prior.log_stddev + 0.5 * tf.math.log(clients)
        )
    size = num_examples
    if kl == "total":
        of_all = tf.maximum(tf.cast(federation.num_examples, tf.float32), num_examples)
        size = clients * num_examples if weighting == "equal" else of_all
    return Target(prior, size / temperature)
