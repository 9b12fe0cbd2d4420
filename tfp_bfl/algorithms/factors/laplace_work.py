"""Clients that keep a site each over point weights: FedLap and FedLap-Cov."""

from collections.abc import Callable
from typing import Unpack

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.factors.factor import Factor, check_damping, damping_of
from tfp_bfl.algorithms.laplace.work import LaplaceSums, add_diagonal, check_fisher, laplace_weights
from tfp_bfl.contracts import SITE_CHANGE, ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import check_numbers
from tfp_bfl.layers import sampling
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import flatten
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.batches import Passes, checked, over_batches, with_passes
from tfp_bfl.training.inference import stating
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, Optimizer, optimizer_rate
from tfp_bfl.training.potential import check_independent
from tfp_bfl.training.schedules import inverse_decay
from tfp_bfl.training.trainer import Trainer
from tfp_bfl.training.updates import ByOptimizer, Schedule, Target, check_schedules
from tfp_bfl.weights import ClientResult, ModelWeights, ServerMessage
from tfp_bfl.weights.flat import Prior

_CURVATURE_SEED = 2**29 + 2


@stating
@with_passes()
def laplace_factors(
    model_fn: Callable[[], keras.Model],
    *,
    covariance: bool = False,
    learning_rate: Schedule | None = None,
    optimizer_fn: Optimizer = DEFAULT_OPTIMIZER,
    likelihood: str | Likelihood = "categorical",
    temperature: float = 1.0,
    prior_precision: float = 1.0,
    step_size: float = 1.0,
    damping: float | None = None,
    **passes: Unpack[Passes],
) -> ClientWork[Factor]:
    """Build client work that trains point weights from the server's w and refines the client's own site t_k.

    S_k' = max(S - S_t / rho, 1 / t^2)

    w_k = argmin nll_k(w') / (T rho) + (shift_t - S_t w)^T w' / rho + (w' - w)^T S_k' (w' - w) / 2

    site <- site + damping rho (natural(w_k, P_k) - natural(w, S)),   natural(m, P) = (P, P m)

    with the precisions S of the server's posterior, S_t of the site and P_k of the client's. FedLap: the precisions are
    S = P_k = 1 / t^2 and S_t = 0, so that the site is ADMM's dual vector. FedLap-Cov (`covariance`): P_k = S_k' +
    H_k / (T rho), with the exact Gauss-Newton diagonal H_k at w_k, for one more pass (`laplace.work.laplace`).

    Args:
      model_fn: builds a Keras model of kind deterministic without BatchNorm; or such a model.
      covariance: FedLap-Cov.
      local_epochs, batch_size, learning_rate, optimizer_fn: of the local training, as of `clients.variational`.
      likelihood: of the labels; for `covariance` one with a fisher_root.
      temperature: T, of the likelihood and not of the prior: the mode is that of prior likelihood^(1 / T).
      prior_precision: 1 / t^2 of the prior N(0, t^2 I).
      step_size: rho. It holds w_k to w; at 1 the local prior is the server's posterior without the site.
      damping: of the sites, above 0 and at most 1; None for 1 / K.

    Returns:
      Client work that keeps its `Factor`, which is empty at first, and sends natural(w_k, P_k) - natural(w, S).

    Source: Swaroop, Khan and Doshi-Velez 2025 (arXiv:2501.17325), FedLap and FedLap-Cov. The equations are derived here
    from partitioned variational inference with Laplace's approximation; the paper's own were not compared.
    """
    model_fn, density = as_model_fn(model_fn), parse_likelihood(likelihood)
    local_epochs, batch_size = checked(passes)
    check_numbers(temperature=temperature, step_size=step_size, prior_precision=prior_precision)
    check_schedules(learning_rate=learning_rate)
    check_damping(damping)
    if covariance:
        check_fisher(density)
    model = model_fn()
    laplace_weights(model, "diagonal")
    check_independent(model)

    def memory(weights: ModelWeights, share: Scalar) -> Factor:
        del share
        empty = tf.zeros_like(flatten(weights.point))
        return Factor(empty, empty)

    def build() -> Work[Factor]:
        rate = inverse_decay(optimizer_rate(optimizer_fn)) if learning_rate is None else learning_rate
        update_fn = lambda weights: ByOptimizer(weights, optimizer_fn, rate)
        trainer = Trainer(model_fn, update_fn, likelihood=density)
        weights = trainer.weights
        add = add_diagonal(trainer.model, weights.point, density) if covariance else None

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[Factor]:
            site, precision, mean = message.memory, message.extra, flatten(message.weights.point)
            lowest = tf.maximum(precision - site.precision / step_size, prior_precision)
            pull = (site.shift - site.precision * mean) / step_size
            number = tf.shape(examples.labels)[0]
            size = tf.cast(number, tf.float32) / (temperature * step_size)
            target = Target(Prior(mean, lowest, tf.zeros([0]), pull), size)
            metrics, _ = trainer.train(message, examples, seed, local_epochs, batch_size, target=target)
            local = weights.values
            curvature = _curvature(add, local, examples, seed, batch_size) if add else tf.zeros_like(local)
            total = lowest + curvature / (temperature * step_size)
            gain = Factor(total - precision, total * (local - mean) + (total - precision) * mean)
            share = damping_of(damping, message.federation.num_clients) * step_size
            new_site = tf.nest.map_structure(lambda t, g: t + share * g, site, gain)
            ratio = prior_precision / total
            kl = 0.5 * tf.reduce_sum(ratio - 1 - tf.math.log(ratio) + prior_precision * tf.square(local))
            of_all = tf.maximum(tf.cast(message.federation.num_examples, tf.float32), tf.cast(number, tf.float32))
            metrics = metrics._replace(kl=kl, tempered_elbo=-(metrics.nll + kl * temperature / of_all))
            return ClientResult(gain, number, metrics, memory=new_site)

        return work

    return ClientWork(build, sends=SITE_CHANGE, memory=memory)


def _curvature(
    add: Callable[..., LaplaceSums], like: tf.Tensor, examples: ClientExamples, seed: tf.Tensor, batch_size: int
) -> tf.Tensor:
    """Return the Gauss-Newton diagonal of a client's examples at the present weights [D], by `add` over batches."""
    zeros = tf.zeros_like(like)
    own_seed = tf.random.experimental.stateless_fold_in(seed, _CURVATURE_SEED)
    with sampling("mean"):
        begin = LaplaceSums(zeros, zeros, tf.zeros([]))
        return over_batches(examples, own_seed, 1, batch_size, add, begin).curvature
