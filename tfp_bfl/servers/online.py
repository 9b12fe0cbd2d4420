"""A server of clients that come, learn more and leave: each one's posterior apart, and all of it in a file.

state = online.load("my_run/server_state.npz")
state = online.remove(state, "3")                          # as if client 3 had never been there
state = online.join(state, online.load("other/server_state.npz"))
model = bfl.models.predictive_model(model_fn(), online.pool(state))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path, name
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.posterior import (
    MeanField,
    Product,
    add_client,
    mixtures,
    pooled,
    product_from_arrays,
    product_of,
    product_to_arrays,
    remove_client,
    replace_client,
)
from tfp_bfl.servers.names import check_joining
from tfp_bfl.weights import ClientPosterior, ModelWeights

MOST_BYTES = 2**34


class OnlineState(NamedTuple):
    """The server's state: the posteriors of its clients.

    Fields:
      product: the clients' posteriors by name, over the last of the model's point weights.
      num_examples: name -> how many the client was trained on.
      moments: name -> BatchNorm's statistics at the client.
      weights: the server's own, from which every client starts: point weights only.
    """

    product: Product
    num_examples: dict[str, int]
    moments: dict[str, MeanField]
    weights: ModelWeights


def from_stack(clients: ClientPosterior, weights: ModelWeights, prior: MeanField | None = None) -> OnlineState:
    """Return the state of clients in a stack, leaves [K, ...]; their names are their numbers.

    Raises:
      InvalidArgument: no clients and no prior, or a product that is not positive definite.
    """
    numbers = np.asarray(clients.client).tolist()
    pick = lambda structure, k: tf.nest.map_structure(lambda x: tf.convert_to_tensor(x)[k], structure)
    names = [str(number) for number in numbers]
    posteriors = {name: pick(clients.posterior, k) for k, name in enumerate(names)}
    return OnlineState(
        product_of(posteriors, prior),
        dict(zip(names, np.asarray(clients.num_examples).tolist())),
        {name: pick(clients.moments, k) for k, name in enumerate(names)},
        tf.nest.map_structure(tf.convert_to_tensor, weights),
    )


def pool(state: OnlineState, diagonal_only: bool = True, between_clients: bool = True) -> ModelWeights:
    """Return the product of the clients' posteriors (`posterior.pooled`, by default as in
    `algorithms.fl_swag`), with the rest of the server's weights.

    BatchNorm's statistics are the moments of the mixture of the clients' data (as `rules.linear_pool`).

    Raises:
      InvalidArgument: as `posterior.gaussian_product`.
    """
    q = pooled(state.product, diagonal_only, between_clients)
    rest = len(state.weights.point) - len(tf.nest.flatten(q.mean))
    return ModelWeights(q, tuple(state.weights.point[:rest]), _mixture(state))


def join(
    state: OnlineState, others: OnlineState, names: Sequence[str] | None = None, replace: bool = False
) -> OnlineState:
    """Return the state with clients of another one.

    Args:
      names: of the clients to take; None for all.
      replace: a client that is there already gets the new posterior in the place of its old one, and is not refused.

    Raises:
      InvalidArgument: there is no such client there, or one of the name here already; the model's shapes, what it has
        below the posteriors or the prior differ; or the product would not be positive definite.
    """
    if not _same(_frozen(state), _frozen(others)) or len(_over(state)) != len(_over(others)):
        raise InvalidArgument(
            "The other clients' model has other shapes, or another frozen network: their posteriors are over other "
            "weights than these."
        )
    if not _same(*(tf.nest.flatten(s.product.prior or ()) for s in (state, others))):
        raise InvalidArgument(
            "The other clients' posteriors hold another prior than these, or none where these have one."
        )
    for client in others.product.names if names is None else names:
        check_joining(client, others.product.names, state.product.names, replace)
        change = replace_client if client in state.product.names else add_client
        q = others.product.posteriors[others.product.names.index(client)]
        state = state._replace(
            product=change(state.product, client, q),
            num_examples={**state.num_examples, client: others.num_examples[client]},
            moments={**state.moments, client: others.moments[client]},
        )
    return state


def remove(state: OnlineState, *names: str) -> OnlineState:
    """Return the state without these clients, as if they had never been there.

    Raises:
      InvalidArgument: there is no such client, none would be left, or the product would not be positive definite.
    """
    for client in names:
        without = lambda values, gone=client: {name: x for name, x in values.items() if name != gone}
        state = OnlineState(
            remove_client(state.product, client), without(state.num_examples), without(state.moments), state.weights
        )
    return state


def save(state: OnlineState, path: Path) -> None:
    """Write the state to a file, whole or not at all."""
    write_arrays(path, _arrays(state))


def _arrays(state: OnlineState) -> dict[str, Any]:
    arrays: dict[str, Any] = {f"product/{key}": x for key, x in product_to_arrays(state.product).items()}
    arrays["num_examples"] = np.array([state.num_examples[client] for client in state.product.names], np.int64)
    for part, moments in {"server": state.weights.moments, **_numbered(state)}.items():
        arrays.update({f"moments/{part}/{i}": np.asarray(x) for i, x in enumerate(tf.nest.flatten(moments))})
    arrays.update({f"point/{i}": np.asarray(x) for i, x in enumerate(state.weights.point)})
    return arrays


def load(path: Path) -> OnlineState:
    """Read what `save` wrote.

    Raises:
      InvalidArgument: the file can't be read, is none of these, or holds what makes no product or fits no model.
    """
    arrays = read_arrays(path, "server state", MOST_BYTES)
    below = lambda start: {key[len(start) :]: x for key, x in arrays.items() if key.startswith(start)}
    ordered = lambda start: [below(start)[str(i)] for i in range(len(below(start)))]

    def moments(part: str) -> MeanField:
        values = tuple(map(tf.constant, ordered(f"moments/{part}/")))
        return MeanField(values[: len(values) // 2], values[len(values) // 2 :])

    try:
        _check_types(arrays)
        like = (0,) * len(below("product/0/mean/") or below("product/prior/mean/"))
        product = product_from_arrays(below("product/"), like)
        point = tuple(map(tf.constant, ordered("point/")))
        weights = ModelWeights(MeanField((), ()), point, moments("server"))
        counts = dict(zip(product.names, arrays["num_examples"].tolist()))
        state = OnlineState(product, counts, {n: moments(str(i)) for i, n in enumerate(product.names)}, weights)
        _check_fit(state)
        if len(arrays["num_examples"]) != len(counts) or arrays.keys() != _arrays(state).keys():
            raise ValueError
    except (KeyError, ValueError, TypeError) as error:
        problem = str(error) if isinstance(error, InvalidArgument) else "its arrays are not those of one"
        raise InvalidArgument(f"{name(path)} is not a server's state: {problem.rstrip('.')}.") from None
    return state


def _numbered(state: OnlineState) -> dict[str, MeanField]:
    return {str(i): state.moments[client] for i, client in enumerate(state.product.names)}


def _over(state: OnlineState) -> list[tf.Tensor]:
    """Return tensors like the weights that the posteriors are over: there is a client or a prior."""
    return tf.nest.flatten(next(q.mean for q in (*state.product.posteriors, state.product.prior) if q is not None))


def _frozen(state: OnlineState) -> list[tf.Tensor]:
    """Return the layers below posteriors over the last layer, with BatchNorm's statistics; nothing below
    those over all.
    """
    point = state.weights.point[: len(state.weights.point) - len(_over(state))]
    return [*point, *tf.nest.flatten(state.weights.moments)] if point else []


def _same(first: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> bool:
    same = lambda x, y: x.shape == y.shape and x.dtype == y.dtype and bool(tf.reduce_all(x == y))
    return len(first) == len(others) and all(map(same, first, others))


def _check_types(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless names are text on one line, numbers of examples above zero and all else finite."""
    names, counts = arrays["product/names"], arrays["num_examples"]
    numbers = [x for key, x in arrays.items() if key not in ("product/names", "num_examples")]
    fine = names.dtype.kind == "U" and names.ndim == 1 and all(map(str.isprintable, names.tolist()))
    fine = fine and counts.dtype == np.int64 and counts.ndim == 1 and bool(np.all(counts > 0))
    if not fine or not all(x.dtype in (np.float32, np.float64) and np.all(np.isfinite(x)) for x in numbers):
        raise ValueError


def _check_fit(state: OnlineState) -> None:
    """Raise ValueError unless posteriors and BatchNorm's moments have the shapes of the server's weights."""
    shapes = lambda structure: [(x.shape, x.dtype) for x in tf.nest.flatten(structure)]
    over, moments = shapes(_over(state)), [state.weights.moments, *state.moments.values()]
    fits = over == shapes(state.weights.point)[-len(over) :]
    fits = fits and all(shapes(m.mean) == shapes(m.variance) for m in moments)
    fits = fits and all(shapes(m) == shapes(moments[1]) and shapes(m) in ([], shapes(moments[0])) for m in moments[1:])
    if not fits or not all(bool(tf.reduce_all(v >= 0)) for m in moments for v in m.variance):
        raise ValueError


def _mixture(state: OnlineState) -> MeanField:
    """Return BatchNorm's moments over the data of all clients; the server's own if they have none."""
    parts = [state.moments[client] for client in state.product.names]
    if not parts or not parts[0].mean:
        return state.weights.moments
    stack = tf.nest.map_structure(lambda *x: tf.stack(x), *parts)
    return mixtures.mixture(stack, [state.num_examples[client] for client in state.product.names])
