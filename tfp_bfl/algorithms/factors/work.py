"""Clients with an approximate likelihood factor of the posterior each, learned over rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.factors.factor import Factor, check_damping, damping_of, natural
from tfp_bfl.contracts import ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_numbers
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import flatten
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.batches import Passes, checked, with_passes
from tfp_bfl.training.inference import settings_for, stating, update_of
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.training.natural import ByCurvature
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, Optimizer
from tfp_bfl.training.trainer import Trainer
from tfp_bfl.training.updates import Schedule, Target, target_of
from tfp_bfl.weights import ClientResult, FlatWeights, ModelWeights, ServerMessage, TrainingMetrics, layout, prior
from tfp_bfl.weights.flat import Prior

NATURAL = ("natural", "ivon")
# Damping of natural gradients, by which they are stable in networks, and the least precision of a client's posterior as
# a share of the prior's.
FACTORS_DAMPING = 0.01
FLOOR = 0.1
# Natural gradients are stationary at the optimum of each client by itself, and move all weights at the pace of their
# precision; SGD is slower here, since each client has to reach its own optimum.
FACTORS_INFERENCE = "natural"


class MovingFactor(NamedTuple):
    """A client's `Factor`, and the momentum of its natural gradients after so many steps.

    Fields:
      precision, shift: of the site [D].
      momentum: mean of the gradients [D].
      steps: done so far, int32.
    """

    precision: Any
    shift: Any
    momentum: Any
    steps: Any


@stating
@with_passes()
def factors(
    model_fn: Callable[[], keras.Model],
    *,
    learning_rate: Schedule | None = None,
    optimizer_fn: Optimizer = DEFAULT_OPTIMIZER,
    inference: str = FACTORS_INFERENCE,
    noise: str | None = None,
    decay: float | None = None,
    likelihood: str | Likelihood = "categorical",
    temperature: float | None = None,
    step_damping: float | None = None,
    step_size: float = 1.0,
    damping: float | None = None,
    send_site: bool = True,
    empty: bool = False,
    keep_momentum: bool = False,
    **passes: Unpack[Passes],
) -> ClientWork:
    """Return client work that refines the client's own factor t_k of q = prior prod_k t_k, with natural parameters

    local prior:   natural(q) - t_k / rho                           (for rho = 1 the cavity q / t_k)
    local optimum: q_k = local prior x likelihood_k^(1 / (T rho))   (by training from q on)
    site:          t_k <- t_k + damping rho (natural(q_k) - natural(q))

    The precision of q_k is at least that of its local prior, so that no site's falls below 0. For rho < 1 the precision
    of natural(q) - t_k / rho may be negative: the local prior is then no density, but q_k is one, as the likelihood
    adds to it. A floor of `FLOOR` times the prior's precision keeps q_k a density while its curvature is estimated; the
    count `weights_at_floor` is the number of weights of all clients where it binds. The reported KL is that to the
    model's prior, and the ELBO that of all data. (A floor of standard deviations, `min_stddev`, is q's alone: at it q
    is wider than the product.)

    A federation begins at q = the server's first posterior: each client's site is (q / prior)^(N_k / N), which its own
    replaces by and by. A client that joins later begins with t_k = 1.

    Args:
      model_fn: builds a Keras model with variational weights; or such a model.
      local_epochs, batch_size, learning_rate, optimizer_fn, inference, noise, decay, step_damping: as
        of `clients.variational`.
      likelihood: of the labels: "categorical", or "gaussian:STDDEV", "heteroscedastic".
      temperature: T of the likelihood; None for the default of the likelihood (`training.TEMPERATURES`).
      step_size: rho of the local objective -E_q[log likelihood] / T - <t_k, natural> + rho KL[q || server's q].
      damping: of the sites, above 0 and at most 1; None for 1 / K, and 0.1 where nobody has said how many clients
        there are. Sites of clients who move the same weights overshoot together if it is large.
      keep_momentum: natural gradients go on from the momentum and the number of steps that the client's last round
        left, as one optimizer over all rounds does; else each round starts from no momentum.
      send_site: the client sends q with its new site in the place of the old one; False: it sends q_k.
      empty: t_k = 1 for all at first, whatever the server's first posterior, which only q_k may then follow: not with
        `send_site`, as q would keep it for ever.

    It keeps its `Factor`; with keep_momentum a `MovingFactor`.

    Source: Ashman et al. 2022 (arXiv:2202.12275), algorithm 1; Möllenhoff et al. 2026 (arXiv:2506.13150), eqs. of
    IVON-ADMM; its v_k is -t_k.
    """
    model_fn, density = as_model_fn(model_fn), parse_likelihood(likelihood)
    local_epochs, batch_size = checked(passes)
    temperature = settings_for(inference, temperature, likelihood=likelihood).temperature
    check_numbers(temperature=temperature, step_size=step_size)
    check_damping(damping)
    if empty and send_site:
        raise InvalidArgument("Sites that are empty at first can't be sent: q would keep its first posterior for ever.")
    if keep_momentum and inference not in NATURAL:
        raise InvalidArgument(f"keep_momentum needs inference 'natural' or 'ivon', not {inference!r}: leave it out.")
    step_damping = FACTORS_DAMPING if step_damping is None and inference == "natural" else step_damping
    of_steps: Any = {"noise": noise, "decay": decay, "step_damping": step_damping}
    update_fn = update_of(inference, learning_rate=learning_rate, optimizer_fn=optimizer_fn, **of_steps)
    # Arrays: a graph of TensorFlow 1, as TFF traces them, takes no tensor from outside.
    first = tf.nest.map_structure(np.asarray, _prior(model_fn()))

    def memory(weights: ModelWeights, share: Scalar) -> Any:
        q, share = natural(weights.posterior), 0.0 if empty else share
        site = Factor(share * (q.precision - first.precision), share * (q.shift - first.shift))
        return MovingFactor(*site, tf.zeros_like(first.shift), tf.constant(0)) if keep_momentum else site

    def build() -> Work:
        trainer = Trainer(model_fn, update_fn, likelihood=density)
        weights = trainer.weights

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
            local = _Local.of(message, weights, step_size)
            number = tf.shape(examples.labels)[0]
            size = tf.cast(number, tf.float32) / (temperature * step_size)
            resume = lambda update: cast(ByCurvature, update).resume(*message.memory[2:]) if keep_momentum else None
            target = Target(local.prior(weights, step_size), size, local.floor)
            count = lambda before, steps: steps
            metrics, steps = trainer.train(
                message, examples, seed, local_epochs, batch_size, count, tf.constant(0), target, resume
            )
            metrics = _of_all(metrics, weights, message, temperature, tf.cast(number, tf.float32))
            share = damping_of(damping, message.federation.num_clients) * step_size
            new, floored = local.refine(weights, share, send_site)
            if keep_momentum:
                momentum = cast(ByCurvature, trainer.update).momentum_after(steps)
                new = MovingFactor(new.precision, new.shift, *momentum)
            return ClientResult(weights.store(), number, metrics, {"weights_at_floor": floored}, new)

        return work

    return ClientWork(build, memory=memory)


class _Local(NamedTuple):
    """The server's posterior q as a client meets it, and what remains of its precision without the client's site.

    Fields:
      site: of the client, t_k.
      mean, precision: of q [D].
      remaining: precision of the local prior q / t_k^(1 / rho) [D], which may be negative for rho < 1.
      floor: least precision of the client's posterior [D].
    """

    site: Factor
    mean: tf.Tensor
    precision: tf.Tensor
    remaining: tf.Tensor
    floor: tf.Tensor

    @classmethod
    def of(cls, message: ServerMessage, weights: FlatWeights, step_size: float) -> _Local:
        """Return the local prior of a client that was sent the message."""
        site, mean = Factor(*message.memory[:2]), flatten(message.weights.posterior.mean)
        precision = tf.math.reciprocal(flatten(message.weights.posterior.variance))
        floor = FLOOR * weights.prior.precision[: mean.shape[0]]
        return cls(site, mean, precision, precision - site.precision / step_size, floor)

    def prior(self, weights: FlatWeights, step_size: float) -> Prior:
        """Return the local prior, as a factor about the server's mean, where no large numbers cancel."""
        shift = (self.site.shift - self.site.precision * self.mean) / step_size
        return weights.factor(self.mean, self.remaining, shift)

    def refine(self, weights: FlatWeights, share: Scalar, send_site: bool) -> tuple[Any, tf.Tensor]:
        """Set the trained weights to the posterior that the client sends.

        Args:
          weights: of the client's posterior q_k after its training.
          share: fraction of the step towards q_k that the site takes.
          send_site: set q with the new site in the place of the old one; False: q_k.

        Returns:
          The new site, and the number of weights at the floor.
        """
        least = tf.maximum(self.remaining, self.floor)
        new_precision = tf.maximum(tf.exp(-2 * weights.log_stddev), least)
        floored = tf.math.count_nonzero((new_precision <= self.floor) & (self.remaining < self.floor), dtype=tf.int32)
        moved = new_precision * (weights.values[: self.mean.shape[0]] - self.mean)
        gain = Factor(new_precision - self.precision, moved + (new_precision - self.precision) * self.mean)
        new = tf.nest.map_structure(lambda t, g: t + share * g, self.site, gain)
        if send_site:
            new_precision, moved = self.precision + share * gain.precision, share * moved
        weights.set_posterior(self.mean + moved / new_precision, new_precision)
        return new, floored


def _of_all(
    metrics: TrainingMetrics, weights: FlatWeights, message: ServerMessage, temperature: float, number: tf.Tensor
) -> TrainingMetrics:
    """Return the metrics with the KL to the model's prior and the ELBO of all data; `number` is the client's."""
    kl, _, _ = weights.kl_divergence(tf.exp(weights.log_stddev), weights.prior)
    of_all = target_of("total", "train_size", temperature, weights.prior, message.federation, number)
    return metrics._replace(kl=kl, tempered_elbo=-(metrics.nll + kl / of_all.size))


def _prior(model: keras.Model) -> Factor:
    """Return the prior of a model's variational weights."""
    weights = layout(model).variational
    if not weights:
        raise InvalidArgument(
            f"Sites are factors of a posterior over weights, and {model.name!r} has point weights only: build it with "
            "kind 'flipout'."
        )
    if any(w.prior is None for w in weights):
        raise InvalidArgument(
            f"Sites are factors beside a prior that stays, and that of {model.name!r} follows its posterior "
            "(hierarchical): build it with kind 'flipout'."
        )
    wide = [w for w in weights if float(tf.reduce_max(w.log_stddev)) > tf.math.log(w.prior)]
    if wide:
        raise InvalidArgument(
            f"The initial standard deviations of {wide[0].mean.name} are above its prior's, {wide[0].prior:g}, "
            "which no site can make of it: build the model with a smaller initial_stddev."
        )
    return natural(prior(model))
