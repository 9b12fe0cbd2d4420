"""Local training by the negative evidence lower bound (ELBO)."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import tensorflow as tf

from tfp_bfl.clients.adam import Adam
from tfp_bfl.clients.example_privacy import ExamplePrivacy, check_alone
from tfp_bfl.clients.inference import update_of
from tfp_bfl.clients.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.clients.target import KLS, target_of
from tfp_bfl.clients.trainer import Trainer
from tfp_bfl.clients.updates import OptimizerFn, Schedule
from tfp_bfl.contracts import ClientWork, Work
from tfp_bfl.errors import check_count, check_number, lookup
from tfp_bfl.models import ClientResult, FlatWeights, ServerMessage, as_model_fn


def variational(
    model_fn: Callable[[], tf.keras.Model],
    *,
    local_epochs: int = 1,
    batch_size: int = 32,
    learning_rate: Optional[Schedule] = None,
    optimizer_fn: OptimizerFn = Adam,
    inference: str = "backprop",
    noise: Optional[str] = None,
    decay: Optional[float] = None,
    stddev_rate: float = 1.0,
    kl: str = "total",
    weighting: str = "train_size",
    temperature: float = 1.0,
    likelihood: Union[str, Likelihood] = "categorical",
    update_prior: bool = False,
    pretrained: bool = False,
    proximal: float = 0.0,
    example_privacy: Optional[ExamplePrivacy] = None,
) -> ClientWork:
    """Client work that fits the posterior to the client's data from the server's posterior on.

    loss = (1 / B) sum_b -log p(y_b | x_b, w) + KL[q || prior] / n,   w ~ q

    the negative ELBO per example (Blundell et al. 2015, eq. 2; Fischer et al. 2024, eq. 6). Where all clients count the
    prior once, n is the number of all clients' examples. A model without variational weights has no KL: its loss is the
    likelihood's (deterministic, or with Monte Carlo dropout's masks).

    Args:
      model_fn: builds a Keras model that returns logits [B, C]; or such a model.
      local_epochs: passes over the client's examples, each in a new order; the last batch of a pass may be smaller.
      batch_size: B.
      learning_rate: a number, or a function from the rounds done so far (scalar int32, 0 in the first) to a scalar;
        None for 1e-3, and for natural gradients for what suits them (`inference.update_of`).
      optimizer_fn: builds a Keras optimizer, whose learning rate is then set to that; its state starts anew each round.
        It sees all means and point weights as one vector, all log s as another.
      inference: how q is found: one of `inference.INFERENCES`.
      noise: "shared", one draw of the weights for a batch, or "flipout", one for each example; None for "flipout" with
        inference "backprop" and else "shared".
      decay: how much of a weight's precision stays from one estimate of its curvature to the next.
      stddev_rate: for inference "backprop": the rate of log s over that of the means.
      kl: n is N, the number of all clients' examples ("total"), or N_k, this client's ("client"), or that with the
        prior's K-th root ("product"): `target.KLS`. A client that was not told the federation's size is alone.
      weighting: of the server, by which "total" finds n (`target.target_of`).
      temperature: n is divided by it; below 1 the posterior is colder than Bayes' theorem has it.
      likelihood: of the labels: "categorical", or for floats "gaussian:STDDEV", of a model of one output, or
        "heteroscedastic", of two.
      update_prior: from the second round on the prior is the posterior that the server pooled last, instead of the
        layers' own (Fischer et al. 2024, Table 5).
      pretrained: the first round's posterior has been learnt too, so that with update_prior it is a prior already.
      proximal: mu of FedProx (Li et al. 2020, arXiv:1812.06127, eq. 2): the loss has mu / 2 ||w - w_server||^2 besides,
        over means and point weights.
      example_privacy: that little is said of any one example, by clipping and noise, which is as secret as the client's
        seed: a run's in a simulation, its own of a party. Losses are then not told: they are 0.

    Returns:
      Client work: a function that builds the model and its optimizer in the present graph, and returns the function of
      the server's message, one client's examples (features [N, ...], labels [N]) and a seed [2] int32.

    Raises:
      InvalidArgument: local_epochs or batch_size below 1, proximal below 0, a temperature that is not above 0, no such
        inference, noise or kl, an optimizer that can't take vectors of all weights; or, with example_privacy, BatchNorm
        or another inference than "backprop".
    """
    model_fn = as_model_fn(model_fn)
    check_count(local_epochs, "local_epochs")
    check_count(batch_size, "batch_size")
    check_number(proximal, "proximal", zero=True)
    check_number(temperature, "temperature")
    lookup(KLS, kl, "kl")
    density = parse_likelihood(likelihood)
    if example_privacy:
        example_privacy = ExamplePrivacy.checked(example_privacy)
        check_alone(model_fn(), inference)
    update_fn = update_of(
        inference,
        learning_rate=learning_rate,
        optimizer_fn=optimizer_fn,
        noise=noise,
        decay=decay,
        stddev_rate=stddev_rate,
    )

    def prior_of(weights: FlatWeights, message: ServerMessage) -> Any:
        if not update_prior:
            return weights.prior
        pooled = weights.as_prior(message.weights.posterior)
        if pretrained:
            return pooled
        return tf.nest.map_structure(lambda new, own: tf.where(message.round > 0, new, own), pooled, weights.prior)

    def build() -> Work:
        trainer = Trainer(model_fn, update_fn, proximal, likelihood=density, example_privacy=example_privacy)

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: Any, seed: tf.Tensor) -> ClientResult:
            number, prior = tf.shape(examples.labels)[0], prior_of(trainer.weights, message)
            own = tf.cast(number, tf.float32)
            target = target_of(kl, weighting, temperature, prior, message.federation, own)
            metrics, _ = trainer.train(message, examples, seed, local_epochs, batch_size, target=target)
            return ClientResult(trainer.weights.store(), number, metrics)

        return work

    return ClientWork(build)
