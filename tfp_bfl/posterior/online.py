"""A product of Gaussian posteriors of clients that join, train further and leave.

The product keeps each client's posterior apart and pools them when asked: what a client that has left contributed is
gone without a trace, and the pooled posterior does not depend on what happened before. (Sums of natural parameters
would take no less memory, as ranks add, and would lose digits with every subtraction.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior.between import with_random_effects
from tfp_bfl.posterior.families import marginals
from tfp_bfl.posterior.low_rank import LowRank, NotPositiveDefinite, as_low_rank, check_same_weights
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.posterior.products import check_prior, latent_precision, pool


class Product(NamedTuple):
    """prod_i q_i(w) / prior(w)^(b - 1) over b named clients. A value: functions return new ones.

    Fields:
      names: b of them.
      posteriors: q_i, b of them.
      prior: the prior that every client's posterior holds, or None for one that is not divided out.
    """

    names: tuple[str, ...]
    posteriors: tuple[LowRank, ...]
    prior: MeanField | None = None


def product_of(posteriors: Mapping[str, LowRank | MeanField], prior: MeanField | None = None) -> Product:
    """Return the product of the clients' posteriors, by name; with a prior there may be none yet.

    Raises:
      InvalidArgument: neither clients nor a prior; names, posteriors or a prior that do not fit; a precision that is
        not positive definite.
    """
    if not posteriors and prior is None:
        raise InvalidArgument("product_of needs at least one client, or the prior that clients will start from.")
    product = Product((), (), None if prior is None else _as_prior(prior))
    for name, posterior in posteriors.items():
        product = _with(product, name, posterior)
    _check_positive(product, "of these clients")
    return product


def add_client(product: Product, name: str, posterior: LowRank | MeanField) -> Product:
    """Return the product with one more client.

    Raises:
      InvalidArgument: there is a client of this name, the posterior does not fit, or the precision would not be
        positive definite (with a prior alone).
    """
    added = _with(product, name, posterior)
    _check_positive(added, f"with the client {name!r}")
    return added


def remove_client(product: Product, name: str) -> Product:
    """Return the product without a client, as if it had never been there; without the last one it is the prior.

    Raises:
      InvalidArgument: there is no such client, it is the last one and there is no prior, or the precision would not be
        positive definite (with a prior alone).
    """
    index = _index(product, name)
    if len(product.names) == 1 and product.prior is None:
        raise InvalidArgument(f"The client {name!r} is the last one and there is no prior: nothing would be left.")
    without = lambda values: values[:index] + values[index + 1 :]
    removed = product._replace(names=without(product.names), posteriors=without(product.posteriors))
    _check_positive(removed, f"without the client {name!r}")
    return removed


def replace_client(product: Product, name: str, posterior: LowRank | MeanField) -> Product:
    """Return the product with a client's new posterior in the place of its old one.

    Raises:
      InvalidArgument: there is no such client, the posterior does not fit, or the precision would not be positive
        definite (with a prior alone).
    """
    index = _index(product, name)
    checked = _check_posterior(product, name, posterior)
    posteriors = (*product.posteriors[:index], checked, *product.posteriors[index + 1 :])
    replaced = product._replace(posteriors=posteriors)
    _check_positive(replaced, f"with the new posterior of the client {name!r}")
    return replaced


def pooled(product: Product, diagonal_only: bool = False, between_clients: bool = False) -> LowRank:
    """Return the product as one Gaussian: `gaussian_product` of the clients that are there; of none, the prior.

    Args:
      diagonal_only: of every posterior only the variances count. Whether that has a positive precision is seen here.
      between_clients: each is as much wider as the clients lie apart (`with_random_effects`).

    Raises:
      InvalidArgument: with `diagonal_only`, a precision that is not positive definite.
    """
    prior = None if product.prior is None else as_low_rank(product.prior, "prior")
    posteriors = product.posteriors
    if not posteriors and prior is not None:
        return prior
    if diagonal_only:
        posteriors = tuple(as_low_rank(marginals(q)) for q in posteriors)
    if between_clients:
        posteriors = with_random_effects(posteriors)
    return pool(posteriors, prior)


def product_to_arrays(product: Product) -> dict[str, np.ndarray]:
    """Return the product as arrays, without copies, such as `np.savez` writes without pickling.

    Keys are "names", "0/mean/0" (client, field, leaf) and "prior/mean/0".
    """
    parts = {str(i): q for i, q in enumerate(product.posteriors)}
    tree: dict[str, Any] = parts if product.prior is None else {**parts, "prior": product.prior}
    arrays = {
        f"{part}/{field}/{leaf}": np.asarray(tensor)
        for part, q in tree.items()
        for field in q._fields
        for leaf, tensor in enumerate(tf.nest.flatten(getattr(q, field)))
    }
    return {"names": np.array(product.names, np.str_), **arrays}


def product_from_arrays(arrays: Mapping[str, Any], like: Any = 0) -> Product:
    """Return the product that `product_to_arrays` gave: what `np.load` returns serves as it is.

    Args:
      like: a structure like the posteriors' means, with anything for leaves; by default one tensor.

    Raises:
      InvalidArgument: arrays that are missing, too many or make no product.
    """
    keys = set(arrays.keys())
    leaves = range(len(tf.nest.flatten(like)))

    def read(part: Any, kind: Any) -> Any:
        fields = ([arrays[f"{part}/{field}/{i}"] for i in leaves] for field in kind._fields)
        return kind(*(tf.nest.pack_sequence_as(like, own) for own in fields))

    try:
        names = [str(name) for name in arrays["names"]]
        posteriors = {name: read(i, LowRank) for i, name in enumerate(names)}
        prior = read("prior", MeanField) if any(key.startswith("prior/") for key in keys) else None
    except KeyError as error:
        raise InvalidArgument(f"A product's arrays need one called {error.args[0]!r}, or another structure.") from None
    expected = 1 + len(leaves) * (len(LowRank._fields) * len(names) + (0 if prior is None else len(MeanField._fields)))
    if len(keys) != expected or len(posteriors) != len(names):
        raise InvalidArgument(
            f"A product of {len(names)} clients in this structure has {expected} arrays and as many names as clients, "
            f"but there are {len(keys)} arrays and {len(posteriors)} names."
        )
    return product_of(posteriors, prior)


def _with(product: Product, name: str, posterior: LowRank | MeanField) -> Product:
    if not isinstance(name, str):
        raise InvalidArgument(f"A client's name must be a string, not {name!r}.")
    if name in product.names:
        raise InvalidArgument(f"There is a client {name!r} already: replace_client gives it a new posterior.")
    checked = _check_posterior(product, name, posterior)
    return product._replace(names=(*product.names, name), posteriors=(*product.posteriors, checked))


def _check_posterior(product: Product, name: str, posterior: LowRank | MeanField) -> LowRank:
    what = f"The posterior of the client {name!r}"
    checked = as_low_rank(posterior, what)
    if product.posteriors:
        check_same_weights(checked, product.posteriors[0], what)
    elif product.prior is not None:
        check_same_weights(checked, as_low_rank(product.prior), what)
    return checked


def _as_prior(prior: MeanField) -> MeanField:
    checked = check_prior(prior, None)
    return MeanField(checked.mean, checked.diagonal)


def _check_positive(product: Product, which: str) -> None:
    # Without a prior the precision is a sum of positive definite ones, and needs no look at all the weights.
    if product.prior is None or not product.posteriors:
        return
    try:
        latent_precision(product.posteriors, as_low_rank(product.prior))
    except NotPositiveDefinite:
        raise InvalidArgument(
            f"The product {which} has a precision that is not positive definite: the posteriors must be no wider than "
            "the prior that is divided out."
        ) from None


def _index(product: Product, name: str) -> int:
    if name not in product.names:
        known = ", ".join(map(repr, product.names)) or "none"
        raise InvalidArgument(f"The product has no client {name!r}: its clients are {known}.")
    return product.names.index(name)
