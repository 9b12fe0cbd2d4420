"""FedPA: clients sample from their posterior by averaged SGD, and send where it pulls the server's weights."""

import functools
from collections.abc import Callable
from typing import NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import ClientWork, Needs, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_count, check_counts, check_number
from tfp_bfl.layers import without_autograph
from tfp_bfl.models import as_model_fn
from tfp_bfl.tensors import Array
from tfp_bfl.training.batches import Passes, checked, steps_per_epoch, with_passes
from tfp_bfl.training.inference import stating
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.training.optimizers import Optimizer, optimizer_of
from tfp_bfl.training.trainer import Trainer
from tfp_bfl.training.updates import ByOptimizer, Schedule, check_schedules
from tfp_bfl.weights import ClientResult, ServerMessage


def posterior_delta(x0: Array, samples: Array, shrinkage: float) -> tf.Tensor:
    """Return the server's step for one client: Delta = Sigma^-1 (x0 - mean), with a shrunk covariance of the samples.

    Sigma = rho_l I + (1 - rho_l) S,   rho_l = 1 / (1 + (l - 1) rho)

    S is the samples' unbiased covariance. With the rows of X [l, D] the samples less their mean and b = x0 - mean

    Delta = (1 + (l - 1) rho) (b - rho X^T (I + rho X X^T)^-1 X b)

    is the same without any D x D array: one l x l system, in float64. rho = 0 gives b, FedAvg's delta of the mean; so
    does l = 1. Orthogonally to what the samples span, Delta is 1 + (l - 1) rho times b: lower the server's rate for it.

    Args:
      x0: the server's weights [D].
      samples: x_1 ... x_l [l, D].
      shrinkage: rho, at least 0.

    Returns:
      x0 minus where the client would go: [D], in the type of `samples`.

    Source: Al-Shedivat et al. 2021 (arXiv:2010.05273), eq. 4 and section 4.2.
    """
    draws, start = tf.convert_to_tensor(samples), tf.convert_to_tensor(x0)
    check_number(shrinkage, "shrinkage", zero=True)
    if draws.shape.rank != 2 or start.shape.rank != 1 or draws.shape[0] == 0 or draws.shape[1] != start.shape[0]:
        raise InvalidArgument(
            f"posterior_delta needs x0 [D] and samples [l, D], l at least 1, but got {start.shape} and {draws.shape}."
        )
    values = tf.cast(draws, tf.float64) - tf.cast(start, tf.float64)  # Clients stay near x0: no digits are lost.
    mean = tf.reduce_mean(values, 0)
    deviations, shift = values - mean, -mean
    number = tf.shape(values)[0]
    gram = tf.eye(number, dtype=tf.float64) + shrinkage * tf.matmul(deviations, deviations, transpose_b=True)
    inside = tf.linalg.cholesky_solve(tf.linalg.cholesky(gram), tf.linalg.matvec(deviations, shift)[:, tf.newaxis])
    projected = tf.linalg.matvec(deviations, inside[:, 0], transpose_a=True)
    scale = 1.0 + tf.cast(number - 1, tf.float64) * shrinkage
    return tf.cast(scale * (shift - shrinkage * projected), draws.dtype)


class _Averages(NamedTuple):
    mean: tf.Tensor  # of the iterates since the last sample [P]
    samples: tf.Tensor  # [l, P]


@stating
@with_passes()
def posterior_averaging(
    model_fn: Callable[[], keras.Model],
    *,
    shrinkage: float = 0.1,
    burn_in_rounds: int = 0,
    local_burn_in_epochs: int = 0,
    steps_per_sample: int | None = None,
    learning_rate: Schedule = 1e-3,
    optimizer_fn: Optimizer = lambda: keras.optimizers.SGD(momentum=0.9),
    likelihood: str | Likelihood = "categorical",
    **passes: Unpack[Passes],
) -> ClientWork:
    """Return client work that samples by iterate-averaged SGD (IASG) and moves the weights by `posterior_delta`.

    x_j = mean of the iterates of the j-th epoch (or of k steps),   w_k = w_server - Delta(w_server, x_1 ... x_l)

    In the first `burn_in_rounds` it is plain local training: w_k is the last iterate. BatchNorm's statistics, and
    standard deviations of variational weights, are those at the end of training in either case.

    Args:
      model_fn: builds a Keras model that returns logits [B, C]; or such a model.
      shrinkage: rho of `posterior_delta`.
      burn_in_rounds: rounds of plain federated averaging before.
      local_burn_in_epochs: epochs before the first sample.
      steps_per_sample: k; None for the steps of an epoch. What is left over at the end, fewer than k steps, is dropped.
      local_epochs: passes over the client's examples.
      batch_size: examples in a step.
      learning_rate: a number, or a function of the rounds done so far.
      optimizer_fn: one of `training.OPTIMIZERS`, or a function that builds a Keras optimizer; its state starts anew
        each round.
      likelihood: of the labels (`clients.LIKELIHOODS`).

    Returns:
      Client work as of `tfp_bfl.clients.variational`. Memory: l x P, with as many samples as `local_epochs` allow. A
      client of too few examples for a sample of k steps has weights that are not finite: the round leaves it out.

    Source: Al-Shedivat et al. 2021 (arXiv:2010.05273), algorithms 3 and 4; Mandt et al. 2017 for IASG.
    """
    model_fn, of_labels = as_model_fn(model_fn), parse_likelihood(likelihood)
    optimizer_of(optimizer_fn)
    check_schedules(learning_rate=learning_rate)
    check_number(shrinkage, "shrinkage", zero=True)
    local_epochs, batch_size = checked(passes)
    check_counts(0, burn_in_rounds=burn_in_rounds, local_burn_in_epochs=local_burn_in_epochs)
    if steps_per_sample is not None:
        check_count(steps_per_sample, "steps_per_sample")
    if local_burn_in_epochs >= local_epochs:
        raise InvalidArgument(
            f"FedPA needs at least one sample, but all {local_epochs} local epochs are burn-in: ask for more of them, "
            "or for fewer of burn-in."
        )

    def build() -> Work:
        update_fn = functools.partial(ByOptimizer, optimizer_fn=optimizer_fn, learning_rate=learning_rate)
        trainer = Trainer(model_fn, update_fn, likelihood=of_labels)
        weights = trainer.weights

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
            num_examples = tf.shape(examples.labels)[0]
            an_epoch = steps_per_epoch(num_examples, batch_size)
            every, first = steps_per_sample or an_epoch, local_burn_in_epochs * an_epoch
            most = (local_epochs * an_epoch - first) // every

            @without_autograph
            def after_step(state: _Averages, steps: tf.Tensor) -> _Averages:
                number = (steps - first - 1) % every  # iterates in the mean so far
                share = 1.0 / tf.cast(number + 1, tf.float32)
                mean = tf.where(number == 0, weights.values, state.mean + share * (weights.values - state.mean))
                row = (steps - first - 1) // every
                due = (steps > first) & tf.equal(number, every - 1)
                write = lambda: tf.tensor_scatter_nd_update(state.samples, [[row]], mean[tf.newaxis])
                return _Averages(mean, tf.cond(due, write, lambda: state.samples))

            size = weights.values.shape[0]
            rows = tf.zeros([tf.maximum(most, 1), size])  # Without samples one stays, as no op writes to none.
            start = _Averages(tf.zeros([size]), tf.ensure_shape(rows, [None, size]))
            metrics, averages = trainer.train(message, examples, seed, local_epochs, batch_size, after_step, start)
            x0 = weights.flatten([*message.weights.posterior.mean, *message.weights.point])
            pulled = tf.where(most > 0, x0 - posterior_delta(x0, averages.samples, shrinkage), float("nan"))
            weights.values.assign(tf.where(message.round >= burn_in_rounds, pulled, weights.values))
            return ClientResult(weights.store(), num_examples, metrics)

        return work

    return ClientWork(build, needs=Needs(burn_in=burn_in_rounds))
