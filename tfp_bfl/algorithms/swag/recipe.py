"""FL-SWAG: one-shot Bayesian federated learning with SWAG posteriors (Makni 2022)."""

from typing import Any, Unpack

from tfp_bfl import federated, models, rules
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.options import SwagOptions
from tfp_bfl.algorithms.swag.step import online_product
from tfp_bfl.algorithms.swag.work import smallest_client, swag, swag_weights
from tfp_bfl.errors import check_count


@passing_on(swag, ("element_spec", "seed", "min_examples"), min_examples=10)
def fl_swag(
    model_fn: Model,
    *,
    last_layer: bool = False,
    diagonal_only: bool = True,
    between_clients: bool = True,
    curvature: bool = True,
    prior: Any = None,
    max_columns: int = 20,
    **options: Unpack[SwagOptions],
) -> federated.BayesianProcess:
    """Build FL-SWAG: each client runs SGD once and sends the Gaussian of its iterates; the server multiplies the
    Gaussians.

    q(w) ~ prod_k N(w; mean_k, diag(Sigma_k + 1 / (H_k + 1 / t_k^2) + tau^2))

    One round with all clients is the whole method. Further rounds are its online form: every client starts from the
    server's first weights whenever it comes, and one that comes again replaces its posterior. `simulate`'s model draws
    weights from the product at each prediction. Other options are those of `compose` and of `swag.work.swag`.

    Args:
      model_fn: builds a Keras model without variational layers that returns logits, with the weights to start from,
        or such a model: those of a network that the server has pretrained, for `last_layer` (or give these to
        `simulate` as start).
      last_layer: the posterior is over the last layer, all below is frozen. False: over all weights, for convex models:
        on LeNet it was worse than the pretrained network that it started from, on one of two datasets.
      diagonal_only: of the clients' covariances Sigma_k, diagonal plus low rank, only the diagonals count; False for
        the exact product, as published.
      between_clients: tau^2 of each weight is what the clients' means differ by
        (`swag.product.between_clients_variance`);
        False for 0, as published: such a product is as narrow as if the clients agreed.
      curvature: a client's posterior is as much wider as its data leave open, 1 / (H_k + 1 / t_k^2)
        (`tfp_bfl.algorithms.swag.work`), so that in each weight those count most who know it; False as published:
        iterates spread by the noise of SGD, whatever the data know.
      prior: a `MeanField` over the weights of the posterior, which every client's posterior holds and which shall count
        once; None for posteriors that hold none.
      min_examples: a client with fewer is refused.
      max_columns: rows of a client's deviations, of which it sends all.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fl_swag(model_fn, last_layer=True)
    """
    client_options, process = split_options(fl_swag, options)
    model_fn = models.as_model_fn(model_fn)
    work = swag(model_fn, last_layer=last_layer, max_columns=max_columns, curvature=curvature, **client_options)
    num_weights = len(swag_weights(model_fn(), last_layer))
    least = max(check_count(process.pop("min_examples", 10), "min_examples"), smallest_client(**client_options))
    step = online_product(num_weights, max_columns, prior, diagonal_only, between_clients, last_layer)
    return compose(model_fn, work, rules.stacked(), step, weighting="equal", min_examples=least, **process)
