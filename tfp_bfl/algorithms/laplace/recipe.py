"""Laplace's approximation after federated averaging, and the exact posterior of the last layer of a frozen network.

`model_fn` builds a Keras model with point weights that returns logits; or is such a model, with its weights. Monte
Carlo dropout is off, in sums and predictions: the posterior is of the network at the mean of the masks. Sums of clients
are those of all examples in one place, so that the posterior is the central one, however the examples are partitioned.
`prior_stddev` is t of the prior, None for the maximum of the marginal likelihood (`laplace.posterior`), which needs no
held-out data. `temperature` is T of the cold posterior p(w | D)^(1 / T): it scales the covariance alone. Mode, prior
and noise are those of T = 1. None is the default of the likelihood: 0.01 for classes, 1 for regression
(`training.TEMPERATURES`). `process.settings` states it.
"""

from typing import Any, Unpack, cast

import tensorflow as tf

from tfp_bfl import federated, rules
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.laplace.pool import Curvatures
from tfp_bfl.algorithms.laplace.posterior import PRIOR, Head
from tfp_bfl.algorithms.laplace.step import laplace as laplace_step
from tfp_bfl.algorithms.laplace.step import last_layer as last_layer_step
from tfp_bfl.algorithms.laplace.step import summed
from tfp_bfl.algorithms.laplace.work import STRUCTURES, laplace_weights, layers_of, network_of
from tfp_bfl.algorithms.laplace.work import laplace as laplace_work
from tfp_bfl.algorithms.options import FrozenOptions
from tfp_bfl.contracts import ClientWork, ServerStep
from tfp_bfl.errors import InvalidArgument, check_number, check_numbers, lookup
from tfp_bfl.training.inference import default_temperature
from tfp_bfl.weights import ClientCurvature

# What both recipes share with their work and `compose`.
SHARED = ("element_spec", "seed", "min_examples", "secure_sums")


@passing_on(laplace_work, SHARED, ("dtype",), PRIOR)
def laplace(
    model_fn: Model,
    *,
    prior_by_layer: bool = False,
    temperature: float | None = None,
    **options: Unpack[FrozenOptions],
) -> federated.BayesianProcess:
    """Build the one round after federated averaging that makes a posterior at its weights w*.

    q(w) = N(w*, T (1 / t^2 + sum_k sum_i J_i^T H_i J_i)^-1)

    Each client sends its sum of Gauss-Newton terms at w*. One round with all clients is the whole method:
    `simulate(process, clients, rounds=1, start=weights)`. Clients may also come in several rounds; one that comes again
    replaces its sums. `simulate`'s model samples weights at each prediction.

    Args:
      structure: "last_layer": the full precision matrix of the last layer; the weights below stay points. "kronecker":
        the same with a `shared.SharedCurvature`, for more weights. "diagonal": the diagonal of the precision, all
        weights. For a deep network then predict by `evaluation.evaluate(..., linearised=True)`.
      prior_by_layer: a t for each layer. For the structure "diagonal".
      **options: of `compose` (with secure_sums the server has the total of a round) and of `laplace.work.laplace`.

    Source: MacKay 1992; Daxberger et al. 2021 (arXiv:2106.14806); Immer et al. 2021 (arXiv:2104.04975) for the prior.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.laplace(model_fn, structure="diagonal")
    """
    work, process = split_options(laplace, options)
    model_fn, structure = network_of(model_fn), work.get("structure", "last_layer")
    local, prior = laplace_work(model_fn, **work), process.pop("prior_stddev", None)
    if structure != "diagonal" and prior_by_layer:
        raise InvalidArgument("prior_by_layer is for the structure 'diagonal': the last layer is one, leave it out.")
    layers = layers_of(model_fn(), structure)
    local, heat = _tempered(local, temperature, work.get("likelihood", "categorical"), prior_stddev=prior)
    head = Head(prior_stddev=prior, temperature=heat)
    step = laplace_step(len(layers), structure, Curvatures(head, groups=layers if prior_by_layer else ()))
    return _composed(model_fn, local, step, process)


def _composed(
    model_fn: Model, work: ClientWork[ClientCurvature], step: ServerStep[Any], process: dict[str, Any]
) -> federated.BayesianProcess:
    """Return the process of which the server stores the sums of each client, or with secure sums their total."""
    most = process.get("secure_sums")
    rule, step = (rules.stacked(), step) if most is None else summed(step, check_number(most, "secure_sums"))
    return compose(model_fn, work, rule, step, weighting="equal", **process)


def _tempered(
    work: ClientWork[ClientCurvature], temperature: float | None, likelihood: object, **stddevs: float | None
) -> tuple[ClientWork[ClientCurvature], float]:
    """Return client work that states the temperature, and that; standard deviations that are given are checked."""
    heat = default_temperature(cast(Any, likelihood)) if temperature is None else temperature
    check_numbers(temperature=heat, **{name: x for name, x in stddevs.items() if x is not None})
    return work._replace(settings=(("temperature", heat),)), float(heat)


# Of which clients send their sums; the server knows the noise.
_UNITS = {"categorical": "categorical", "gaussian": "gaussian:1"}


@passing_on(laplace_work, SHARED, ("dtype",), PRIOR, batch_size=256)
def last_layer(
    model_fn: Model,
    *,
    noise_stddev: float | None = None,
    temperature: float | None = None,
    **options: Unpack[FrozenOptions],
) -> federated.BayesianProcess:
    """Build Bayesian regression of the labels on the features of a frozen network, from sums of clients.

    q(W) = N(W*, T P^-1),   P = 1 / t^2 + sum_k sum_i J_i^T H_i J_i

    over kernel and bias W of the last dense layer; the layers below never change. Each client sends its sums of
    curvature and gradient (`laplace.work.laplace`), from which the server computes W*.

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
      structure: "last_layer" or "kronecker", as of `laplace`: one mode for a given prior, one posterior for "gaussian".
      **options: of `compose` and of `laplace.work.laplace`.

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
    likelihood, structure = work.pop("likelihood", "categorical"), work.get("structure", "last_layer")
    model_fn, unit = network_of(model_fn), lookup(_UNITS, likelihood, "likelihood")
    gaussian = likelihood == "gaussian"
    if noise_stddev is not None and not gaussian:
        raise InvalidArgument("noise_stddev is of the likelihood 'gaussian', and this is 'categorical': leave it out.")
    lookup({name: words for name, words in STRUCTURES.items() if name != "diagonal"}, structure, "structure")
    laplace_weights(model_fn(), structure)
    given: dict[str, Any] = {"batch_size": 256, **work, "likelihood": unit, "dtype": tf.float64}
    local, prior = laplace_work(model_fn, **given), process.pop("prior_stddev", None)
    stddevs = {"prior_stddev": prior, "noise_stddev": noise_stddev}
    local, heat = _tempered(local, temperature, likelihood, **stddevs)
    return _composed(model_fn, local, last_layer_step(Head(gaussian, **stddevs, temperature=heat), structure), process)
