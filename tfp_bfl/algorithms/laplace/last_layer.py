"""The exact posterior of the last layer of a frozen network, from sums of clients."""

from __future__ import annotations

from typing import Unpack

from tfp_bfl import federated, models, rules
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.laplace.last_layer_step import last_layer as last_layer_last_layer_step
from tfp_bfl.algorithms.laplace.work import laplace_weights, last_layer_sums
from tfp_bfl.algorithms.options import FrozenOptions
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.training.inference import default_temperature

# Of which clients send their sums; the server knows the noise.
_UNITS = {"categorical": "categorical", "gaussian": "gaussian:1"}


@passing_on(last_layer_sums, ("element_spec", "seed", "min_examples"))
def last_layer(
    model_fn: Model,
    *,
    likelihood: str = "categorical",
    prior_stddev: float | None = None,
    noise_stddev: float | None = None,
    temperature: float | None = None,
    **options: Unpack[FrozenOptions],
) -> federated.BayesianProcess:
    """Build Bayesian regression of the labels on the features of a frozen network, from sums of clients.

    q(W) = N(W*, P^-1),   P = 1 / t^2 + (1 / T) sum_k sum_i J_i^T H_i J_i

    over kernel and bias W of the last dense layer; the layers below never change. T changes the width of the posterior
    alone: W*, the prior and the noise are those of T = 1. Each client sends its sums of
    curvature and gradient (`laplace.work.last_layer_sums`), from which the server computes W*. Sums of clients are
    those of all examples in one place, so that the posterior is the central one, however the examples are partitioned.

    "gaussian": one round gives the exact posterior, from any weights of the last layer; with prior and noise at the
    maximum of the marginal likelihood unless they are given. Clients may come in several rounds.
    "categorical": each round is a Newton step to the maximum a posteriori W*, with Laplace's approximation there. All
    clients must be in each round: about 4 rounds from a trained last layer, 10 from random weights. One round alone is
    the Gauss-Newton expansion at the given weights.

    Args:
      model_fn: builds a Keras model with point weights that ends with a dense layer; or such a model, with its weights.
      likelihood: "categorical", or "gaussian" for a model with one output, or with two, of which the second, the log
        variance, becomes constant.
      prior_stddev: t; None for the maximum of the marginal likelihood.
      noise_stddev: of Gaussian labels; None for the maximum of the marginal likelihood.
      temperature: T; below 1 the posterior is as narrow as if every example were seen 1 / T times. None for the default
        of the likelihood: 0.01 for classes, 1 for regression (`training.TEMPERATURES`). `process.settings` states it.
      **options: of `compose` and of `laplace.work.last_layer_sums`.

    Raises:
      InvalidArgument: options out of their ranges, or a model as `laplace.work.laplace_weights` refuses it.

    Source: Bishop 2006, sections 3.5 and 4.5; Kristiadi et al. 2020 (arXiv:2002.10118) for last layers.

    Example:
      >>> clients = bfl.data.load("diabetes").partition(bfl.data.iid(num_clients=3), seed=0)
      >>> network = bfl.models.mlp("deterministic", input_shape=(10,), num_classes=2)
      >>> options = {"likelihood": "gaussian", "element_spec": clients.element_spec}
      >>> process = bfl.algorithms.last_layer(network, **options)
      >>> bfl.simulate(process, clients, rounds=1, engine="local").model.output_shape
      (None, 2)
    """
    work, process = split_options(last_layer, options)
    model_fn, unit = models.as_model_fn(model_fn), lookup(_UNITS, likelihood, "likelihood")
    gaussian = likelihood == "gaussian"
    if noise_stddev is not None and not gaussian:
        raise InvalidArgument("noise_stddev is of the likelihood 'gaussian', and this is 'categorical': leave it out.")
    laplace_weights(model_fn())
    temperature = default_temperature(likelihood) if temperature is None else temperature
    local = last_layer_sums(model_fn, likelihood=unit, **work)
    local = local._replace(settings=(("temperature", temperature),))
    step = last_layer_last_layer_step(
        gaussian=gaussian, prior_stddev=prior_stddev, noise_stddev=noise_stddev, temperature=temperature
    )
    return compose(model_fn, local, rules.stacked(), step, weighting="equal", **process)
