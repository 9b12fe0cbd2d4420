"""Laplace's approximation after federated averaging: a posterior from one more round."""

from __future__ import annotations

from typing import Any, Unpack

from tfp_bfl import federated, models, rules
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.laplace.step import laplace as laplace_step
from tfp_bfl.algorithms.laplace.work import laplace as laplace_work
from tfp_bfl.algorithms.laplace.work import layers_of
from tfp_bfl.algorithms.options import GradientOptions
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training.inference import default_temperature


@passing_on(laplace_work, ("element_spec", "seed", "min_examples"))
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

    Each client sends its sum of Gauss-Newton terms at w*. Sums of clients are those of all examples in one place, so
    that the posterior is the central one, however the examples are partitioned. One round with all clients is the whole
    method: `simulate(process, clients, rounds=1, start=weights)`. Clients may also come in several rounds; one that
    comes again replaces its sums. `simulate`'s model samples weights at each prediction.

    Args:
      model_fn: builds a Keras model with point weights that returns logits; or such a model, with the weights w*.
      structure: "last_layer": the full precision matrix of the last layer; the weights below stay points. "diagonal":
        the diagonal of the precision, all weights. The outputs of a deep network are far from linear in all of its
        weights: then predict by `evaluation.evaluate(..., linearised=True)`.
      prior_stddev: t; None for the maximum of the marginal likelihood (`laplace.posterior.laplace`), which needs no
        held-out data.
      prior_by_layer: a t for each layer. For the structure "diagonal".
      temperature: T; below 1 the posterior is as narrow as if every example were seen 1 / T times. None for the default
        of the likelihood: 0.01 for classes, 1 for regression (`training.TEMPERATURES`). `process.settings` states it.
      **options: of `compose` and of `laplace.work.laplace`.

    Raises:
      InvalidArgument: options out of their ranges, or a model as `laplace.work.laplace_weights` refuses it.

    Source: MacKay 1992; Daxberger et al. 2021 (arXiv:2106.14806); Immer et al. 2021 (arXiv:2104.04975) for the prior.
    """
    work, process = split_options(laplace, options)
    model_fn = models.as_model_fn(model_fn)
    local, full = laplace_work(model_fn, structure=structure, **work), structure == "last_layer"
    if full and prior_by_layer:
        raise InvalidArgument("prior_by_layer is for the structure 'diagonal': the last layer is one, leave it out.")
    layers = layers_of(model_fn(), structure)
    if temperature is None:
        temperature = default_temperature(work.get("likelihood", "categorical"))
    settings: dict[str, Any] = {"prior_stddev": prior_stddev, "temperature": temperature}
    local = local._replace(settings=(("temperature", temperature),))
    step = laplace_step(len(layers), full, groups=layers if prior_by_layer else (), **settings)
    return compose(model_fn, local, rules.stacked(), step, weighting="equal", **process)
