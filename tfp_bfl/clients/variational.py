"""Local training by the negative evidence lower bound (ELBO)."""

from collections.abc import Callable
from typing import Any, Unpack

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import DYNAMIC, PADDED, ClientWork, Needs, Work, num_present
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import check_number, lookup
from tfp_bfl.models import as_model_fn
from tfp_bfl.training.batches import Passes, checked, with_passes
from tfp_bfl.training.example_privacy import ExamplePrivacy, check_alone
from tfp_bfl.training.inference import default_optimizer, settings_for, stating, update_of
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.training.optimizers import Optimizer
from tfp_bfl.training.trainer import Trainer
from tfp_bfl.training.updates import KLS, Schedule, target_of
from tfp_bfl.weights import ClientResult, ServerMessage
from tfp_bfl.weights.exchange import AtTemperature


@stating
@with_passes()
def variational(
    model_fn: Callable[[], keras.Model],
    *,
    learning_rate: Schedule | None = None,
    optimizer_fn: Optimizer | None = None,
    inference: str | None = None,
    noise: str | None = None,
    decay: float | None = None,
    stddev_rate: float = 1.0,
    step_damping: float | None = None,
    first_stddev: float | None = None,
    kl: str | None = None,
    weighting: str = "train_size",
    temperature: float | None = None,
    likelihood: str | Likelihood = "categorical",
    update_prior: bool = False,
    pretrained: bool = False,
    proximal: float = 0.0,
    example_privacy: ExamplePrivacy | None = None,
    **passes: Unpack[Passes],
) -> ClientWork:
    """Return client work that fits the posterior to the client's data from the server's posterior on.

    loss = (1 / B) sum_b -log p(y_b | x_b, w) + KL[q || prior] / n,   w ~ q

    the negative ELBO per example (Blundell et al. 2015, eq. 2; Fischer et al. 2024, eq. 6). Where all clients count the
    prior once, n is the number of all clients' examples. A model without variational weights has no KL: its loss is the
    likelihood's (deterministic, or with Monte Carlo dropout's masks).

    Args:
      model_fn: builds a Keras model that returns logits [B, C]; or such a model.
      local_epochs: passes over the client's examples, each in a new order; the last batch of a pass may be smaller.
      batch_size: B.
      learning_rate: a number, or a function from the rounds done so far (scalar int32, 0 in the first) to a scalar;
        None for `training.inverse_decay` from the default of the inference, or of the optimizer, on
        (`training.default_rate`).
      optimizer_fn: one of `training.OPTIMIZERS`, or a function that builds a Keras optimizer; its learning rate is
        then set to that; its state starts anew each round. None for "momentum", and for "adam" with update_prior. It
        sees all means and point weights as one vector, all log s as another. SGD, with or without momentum, is
        stationary where the weighted mean of the clients' gradients vanishes; Adam and other adaptive optimizers are
        not (`algorithms.fixed_points`).
      inference: how q is found: one of `training.INFERENCES`; None for "curvature", and for "backprop" with
        update_prior or example_privacy.
      noise: "shared", one draw of the weights for a batch, or "flipout", one for each example; None for "flipout" with
        inference "backprop" and else "shared".
      decay: how much of a weight's precision stays from one estimate of its curvature to the next.
      stddev_rate: for inference "backprop": the rate of log s over that of the means.
      step_damping: for natural gradients: a share of n that is added to the precision in each step of the means.
      first_stddev: for inference "curvature": the largest noise of the first round (`training.natural.ByCurvature`).
      kl: n is N, the number of all clients' examples ("total"), or N_k, this client's ("client"), or that with the
        prior's K-th root ("product"): `training.KLS`; None for "total", and for "client" with update_prior. A client
        that does not know the federation's size is alone.
      weighting: of the server, by which "total" finds n (`training.updates.target_of`).
      temperature: T. n is divided by it: T < 1 sharpens the posterior as if each example had been seen 1 / T times.
        None for the default of the likelihood (`training.TEMPERATURES`), and for 1 with update_prior. That of a
        `AtTemperature` message is in its place.
      likelihood: of the labels: "categorical", or for floats "gaussian:STDDEV", of a model of one output, or
        "heteroscedastic", of two.
      update_prior: from the second round on the prior is the posterior that the server pooled last, instead of the
        layers' own (Fischer et al. 2024, Table 5).
      pretrained: whether the posterior before the first round is trained; with update_prior it is then a prior.
      proximal: mu of FedProx (Li et al. 2020, arXiv:1812.06127, eq. 2): the loss has mu / 2 ||w - w_server||^2 besides,
        over means and point weights.
      example_privacy: that little is said of any one example, by clipping and noise, which is as secret as the client's
        seed: a run's in a simulation, its own of a site. Losses are then 0.
    """
    model_fn, density = as_model_fn(model_fn), parse_likelihood(likelihood)
    local_epochs, batch_size = checked(passes)
    check_number(proximal, "proximal", zero=True)
    given: Any = {"likelihood": likelihood, "update_prior": update_prior, "example_privacy": bool(example_privacy)}
    inference, temperature, kl = settings_for(inference, temperature, kl, **given)
    check_number(temperature, "temperature")
    lookup(KLS, kl, "kl")
    if example_privacy:
        check_alone(example_privacy, model_fn(), inference)
    steps: Any = {"learning_rate": learning_rate, "optimizer_fn": optimizer_fn or default_optimizer(update_prior)}
    steps |= {"noise": noise, "decay": decay, "stddev_rate": stddev_rate, "step_damping": step_damping}
    update_fn = update_of(inference, **steps, first_stddev=first_stddev)

    def build() -> Work:
        trainer = Trainer(model_fn, update_fn, proximal, likelihood=density, example_privacy=example_privacy)

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
            number, prior = num_present(examples), trainer.weights.prior
            if update_prior:  # The server's posterior, after training where it is not pretrained.
                pooled, is_trained = trainer.weights.as_prior(message.weights.posterior), message.round > 0
                choose = lambda new, own: new if pretrained else tf.where(is_trained, new, own)
                prior = tf.nest.map_structure(choose, pooled, prior)
            heat = message.extra.temperature if isinstance(message.extra, AtTemperature) else temperature
            target = target_of(kl, weighting, heat, prior, message.federation, tf.cast(number, tf.float32))
            metrics, _ = trainer.train(message, examples, seed, local_epochs, batch_size, target=target)
            return ClientResult(trainer.weights.store(), number, metrics)

        return work

    # Batches of examples in private have a chance for each example, and any size.
    needs = Needs(is_private=example_privacy is not None)
    return ClientWork(build, shapes=DYNAMIC if example_privacy else PADDED, needs=needs)
