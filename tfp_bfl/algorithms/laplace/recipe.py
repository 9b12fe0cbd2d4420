"""Laplace's approximation after federated averaging, and the exact posterior of the last layer of a frozen network.

`model_fn` builds a Keras model with point weights that returns logits; or is such a model, with its weights. Sums of
clients are those of all examples in one place, so that the posterior is the central one, however the examples are
partitioned. `prior_stddev` is t of the prior, None for the maximum of the marginal likelihood (`laplace.posterior`),
which needs no held-out data. `temperature` is T; below 1 the posterior is as narrow as if every example were seen 1 / T
times. None is the default of the likelihood: 0.01 for classes, 1 for regression (`training.TEMPERATURES`).
`process.settings` states it.
"""

from __future__ import annotations

from typing import Any, Unpack, cast

from tfp_bfl import federated, models, rules
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.laplace.pool import Curvatures
from tfp_bfl.algorithms.laplace.posterior import Head
from tfp_bfl.algorithms.laplace.step import laplace as laplace_step
from tfp_bfl.algorithms.laplace.step import last_layer as last_layer_step
from tfp_bfl.algorithms.laplace.work import laplace as laplace_work
from tfp_bfl.algorithms.laplace.work import laplace_weights, last_layer_sums, layers_of
from tfp_bfl.algorithms.options import FrozenOptions, GradientOptions
from tfp_bfl.contracts import ClientWork
from tfp_bfl.errors import InvalidArgument, check_numbers, lookup
from tfp_bfl.training.inference import default_temperature
from tfp_bfl.weights import ClientCurvature

# What both recipes share with their work and `compose`.
SHARED = ("element_spec", "seed", "min_examples")


@passing_on(laplace_work, SHARED)
def laplace(
    model_fn: Model,
    *,
    structure: str = "last_layer",
    prior_stddev: float | None = None,
    prior_by_layer: bool = False,
    temperature: float | None = None,
    **options: Unpack[GradientOptions],
) -> federated.BayesianProcess:
    """Build the one round after federated averaging that makes a posterior at its weights w*.

    q(w) = N(w*, (1 / t^2 + (1 / T) sum_k sum_i J_i^T H_i J_i)^-1)

    Each client sends its sum of Gauss-Newton terms at w*. One round with all clients is the whole method:
    `simulate(process, clients, rounds=1, start=weights)`. Clients may also come in several rounds; one that comes again
    replaces its sums. `simulate`'s model samples weights at each prediction.

    Args:
      structure: "last_layer": the full precision matrix of the last layer; the weights below stay points. "diagonal":
        the diagonal of the precision, all weights. The outputs of a deep network are far from linear in all of its
        weights: then predict by `evaluation.evaluate(..., linearised=True)`.
      prior_by_layer: a t for each layer. For the structure "diagonal".
      **options: of `compose` and of `laplace.work.laplace`.

    Source: MacKay 1992; Daxberger et al. 2021 (arXiv:2106.14806); Immer et al. 2021 (arXiv:2104.04975) for the prior.
    """
    work, process = split_options(laplace, options)
    model_fn = models.as_model_fn(model_fn)
    local, full = laplace_work(model_fn, structure=structure, **work), structure == "last_layer"
    if full and prior_by_layer:
        raise InvalidArgument("prior_by_layer is for the structure 'diagonal': the last layer is one, leave it out.")
    layers = layers_of(model_fn(), structure)
    local, heat = _tempered(local, temperature, work.get("likelihood", "categorical"), prior_stddev=prior_stddev)
    head = Head(prior_stddev=prior_stddev, temperature=heat)
    step = laplace_step(len(layers), full, Curvatures(head, groups=layers if prior_by_layer else ()))
    return compose(model_fn, local, rules.stacked(), step, weighting="equal", **process)


def _tempered(
    work: ClientWork[ClientCurvature], temperature: float | None, likelihood: object, **stddevs: float | None
) -> tuple[ClientWork[ClientCurvature], float]:
    """Return client work that states the temperature, and that; standard deviations that are given are checked."""
    heat = default_temperature(cast(Any, likelihood)) if temperature is None else temperature
    check_numbers(temperature=heat, **{name: x for name, x in stddevs.items() if x is not None})
    return work._replace(settings=(("temperature", heat),)), float(heat)


# Of which clients send their sums; the server knows the noise.
_UNITS = {"categorical": "categorical", "gaussian": "gaussian:1"}


@passing_on(last_layer_sums, SHARED)
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
    alone: W*, the prior and the noise are those of T = 1. Each client sends its sums of curvature and gradient
    (`laplace.work.last_layer_sums`), from which the server computes W*.

    "gaussian": one round gives the exact posterior, from any weights of the last layer; with prior and noise at the
    maximum of the marginal likelihood unless they are given. Clients may come in several rounds.
    "categorical": each round is a Newton step to the maximum a posteriori W*, with Laplace's approximation there. All
    clients must be in each round: about 4 rounds from a trained last layer, 10 from random weights. One round alone is
    the Gauss-Newton expansion at the given weights.

    Args:
      model_fn: of a model that ends with a dense layer.
      likelihood: "categorical", or "gaussian" for a model with one output, or with two, of which the second, the log
        variance, becomes constant.
      noise_stddev: of Gaussian labels; None for the maximum of the marginal likelihood.
      **options: of `compose` and of `laplace.work.last_layer_sums`.

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
    local = last_layer_sums(model_fn, likelihood=unit, **work)
    stddevs = {"prior_stddev": prior_stddev, "noise_stddev": noise_stddev}
    local, heat = _tempered(local, temperature, likelihood, **stddevs)
    step = last_layer_step(Head(gaussian, **stddevs, temperature=heat))
    return compose(model_fn, local, rules.stacked(), step, weighting="equal", **process)
