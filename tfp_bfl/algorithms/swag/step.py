"""The server keeps every client's posterior, and pools them by their product when the model is asked for."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.rows import by_client, growing, keep_newest
from tfp_bfl.algorithms.swag.product import check_prior, gaussian_product
from tfp_bfl.contracts import CLIENT_POSTERIOR, ServerStep, Stack, stack_of
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import LowRank, MeanField, as_low_rank, marginals, mixtures, spread
from tfp_bfl.tensors import Array
from tfp_bfl.weights import ClientPosterior, ModelWeights

Rows = Mapping[str, ClientPosterior]


class Product(NamedTuple):
    """The posterior is the product of the clients' posteriors, over the last of the model's point weights.

    q(w) ~ prod_k q_k(w) / prior(w)^(K - 1)

    The posteriors stay apart: what a client that has left contributed is gone without a trace, and the product does not
    depend on what happened before.

    Fields:
      prior, diagonal_only, between_clients: of `swag.product.gaussian_product`.
    """

    prior: MeanField | None = None
    diagonal_only: bool = True
    between_clients: bool = True

    def pool(self, rows: Rows, weights: ModelWeights) -> ModelWeights:
        """Return the product with the rest of the server's weights; without clients it is the prior.

        BatchNorm's statistics are the moments of the mixture of the clients' data (as `rules.linear_pool`).
        """
        posteriors = [row.posterior for row in rows.values()]
        if posteriors:
            q = gaussian_product(posteriors, self.prior, self.diagonal_only, self.between_clients)
        elif self.prior is not None:
            q = as_low_rank(self.prior, "prior")
        else:
            raise InvalidArgument("There are no clients and no prior: one client at least must be left.")
        rest = len(weights.point) - len(tf.nest.flatten(q.mean))
        return ModelWeights(q, tuple(weights.point[:rest]), _mixture(rows, weights))

    def check(self, rows: Rows, weights: ModelWeights) -> None:
        """Raise InvalidArgument or ValueError for rows that make no posterior, or one that does not fit the weights."""
        moments = [weights.moments, *(row.moments for row in rows.values())]
        over, shapes = self._over(rows), [_shapes(each.mean) for each in moments]
        fits = not over or _shapes(over) == _shapes(weights.point)[-len(over) :]
        fits = fits and all(_shapes(m.variance) == x for m, x in zip(moments, shapes))
        fits = fits and all(x == shapes[1] and x in ([], shapes[0]) for x in shapes[1:])
        if not fits or not all(bool(np.all(np.asarray(v) >= 0)) for m in moments for v in m.variance):
            raise ValueError
        self.pool(rows, weights)

    def align(self, own: Any, others: Any) -> Rows:
        """Return the rows of other clients."""
        over, their = self._over(own.rows), others.settings._over(others.rows)
        same = _shapes(over) == _shapes(their) and _same(_frozen(own, over), _frozen(others, their))
        if not same:
            raise InvalidArgument(
                "The other clients' model has other shapes, or another frozen network: their posteriors are over other "
                "weights than these."
            )
        if not _same(*(tf.nest.flatten(held.settings.prior or ()) for held in (own, others))):
            raise InvalidArgument(
                "The other clients' posteriors hold another prior than these, or none where these have one."
            )
        return others.rows

    def measured(self, rows: Rows) -> tuple[str, Sequence[float]]:
        """Return the name of a number that says how sure each client is, and this number of each."""
        return "median sd", [float(spread(marginals(row.posterior)).stddev_median) for row in rows.values()]

    def found(self, rows: Rows, weights: ModelWeights) -> dict[str, Any]:
        """Return what a record states of the posterior besides its scores: nothing."""
        del rows, weights
        return {}

    def _over(self, rows: Rows) -> list[Any]:
        """Return tensors like the weights that the posteriors are over; none without clients and prior."""
        means = [q.mean for q in (*(row.posterior for row in rows.values()), self.prior) if q is not None]
        return list(tf.nest.flatten(means[0])) if means else []


def _frozen(held: Any, over: Sequence[Array]) -> list[Any]:
    """Return the layers below posteriors over the last layer, with BatchNorm's statistics; nothing below those over
    all.
    """
    point = held.weights.point[: len(held.weights.point) - len(over)]
    return [*point, *tf.nest.flatten(held.weights.moments)] if point else []


def _shapes(leaves: Sequence[Array]) -> list[Any]:
    return [(tuple(x.shape), tf.as_dtype(x.dtype)) for x in leaves]


def _same(first: Sequence[Array], others: Sequence[Array]) -> bool:
    return _shapes(first) == _shapes(others) and all(np.array_equal(x, y) for x, y in zip(first, others))


def _mixture(rows: Rows, weights: ModelWeights) -> MeanField:
    """Return BatchNorm's moments over the data of all clients; the server's own if they have none."""
    parts = [row.moments for row in rows.values()]
    if not parts or not parts[0].mean:
        return weights.moments
    stack = tf.nest.map_structure(lambda *x: tf.stack(x), *parts)
    return mixtures.mixture(stack, [int(row.num_examples) for row in rows.values()])


def online_product(
    num_weights: int,
    max_columns: int,
    prior: MeanField | None = None,
    diagonal_only: bool = True,
    between_clients: bool = True,
    frozen_moments: bool = False,
) -> ServerStep[Stack[ClientPosterior]]:
    """Compute the `Product` of all clients' posteriors so far, q(w) ~ prod_k q_k(w) / prior(w)^(K - 1).

    Every client starts from the same weights, those of the server before the first round; it may come in any round, and
    one that comes again has its posterior replaced. The product is therefore that of one round with all of them (up to
    the noise of the clients' training).

    Args:
      num_weights: how many of the model's last point weights the posteriors are over.
      max_columns: R, rows of each client's deviations.
      prior: of `swag.product.gaussian_product`.
      diagonal_only, between_clients: of `swag.product.gaussian_product`; both False for the exact product, as
        published.
      frozen_moments: clients send no statistics of BatchNorm, and the server's stay.

    Returns:
      A step over what `tfp_bfl.rules.stacked` gives of `ClientPosterior`s. Its state is the stack, leaves [K, ...] in
      the order of the clients' numbers. Memory: K R D.

    Source: Makni 2022, FL-SWAG.
    """

    if prior is not None:
        check_prior(prior, None)
    settings = Product(prior, diagonal_only, between_clients)

    def initialize(weights: ModelWeights) -> ClientPosterior:
        point = weights.point[len(weights.point) - num_weights :]
        if prior is not None:
            _check_fits(prior, point)
        rows = lambda *shape: lambda x: growing([*shape, *x.shape], x.dtype)
        each = lambda make, structure: tf.nest.map_structure(make, structure)
        q = LowRank(each(rows(), point), each(rows(), point), each(rows(max_columns), point))
        number = growing([], tf.int32)
        moments = MeanField((), ()) if frozen_moments else each(rows(), weights.moments)
        return ClientPosterior(number, number, q, moments)

    def predictive(state: ClientPosterior, weights: ModelWeights) -> ModelWeights:
        return settings.pool(by_client(state), weights) if len(state.client) else weights

    return ServerStep(initialize, keep_newest, predictive, takes=stack_of(CLIENT_POSTERIOR), name="online_product")


def _check_fits(prior: MeanField, point: tuple[tf.Tensor, ...]) -> None:
    forms = lambda leaves: ", ".join(f"{tf.as_dtype(x.dtype).name} {list(x.shape)}" for x in leaves)
    if not isinstance(prior.mean, tuple) or forms(prior.mean) != forms(point):
        raise InvalidArgument(
            f"prior must be over a tuple of the weights of the clients' posteriors, {forms(point)}, but is over "
            f"{forms(tf.nest.flatten(prior.mean))}."
        )
