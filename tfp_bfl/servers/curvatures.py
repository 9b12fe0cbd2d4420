"""The sums of clients for Laplace's approximation: each client's apart, and all of them in a file.

state = curvatures.load("my_run/curvatures.npz")
state = curvatures.remove(state, "3")                      # as if client 3 had never been in the Laplace round
state = curvatures.join(state, curvatures.load("other/curvatures.npz"))
model = bfl.models.predictive_model(model_fn(), curvatures.pool(state))
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path, name
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.posterior import Laplace, MeanField, laplace
from tfp_bfl.posterior.linear_head import Expansion, Head, linear_head, moved
from tfp_bfl.servers.names import check_joining, check_leaving
from tfp_bfl.tensors import Array
from tfp_bfl.weights import ClientCurvature, ModelWeights

MOST_BYTES = 2**34
NUM_HEAD_WEIGHTS = 2  # kernel and bias
_SUMS, _WEIGHTS = ("curvature", "gradient"), ("point", "moving_mean", "moving_variance")


class Settings(NamedTuple):
    """Settings of Laplace's approximation.

    Fields:
      prior_stddev: None for the maximum of the marginal likelihood.
      temperature: T.
      groups: the number of each weight tensor's group, which has a prior of its own; () for one prior.
      head: of an exact last layer; its mean moves (`posterior.linear_head`); None for Laplace's approximation at the
        weights.
    """

    prior_stddev: float | None = None
    temperature: float = 1.0
    groups: tuple[int, ...] = ()
    head: Head | None = None


class Curvatures(NamedTuple):
    """The sums of a server's clients at its weights.

    Fields:
      clients: the sums of each client by its name; `client` is not used.
      weights: the server's, of which the last point weights are the posterior's mean.
      settings: of the approximation.
    """

    clients: dict[str, ClientCurvature]
    weights: ModelWeights
    settings: Settings = Settings()


def from_stack(stack: ClientCurvature, weights: ModelWeights, settings: Settings) -> Curvatures:
    """Return the state of clients in a stack, leaves [K, ...], named by their numbers."""
    stack, weights = tf.nest.map_structure(np.asarray, (stack, weights))
    rows = [tf.nest.map_structure(lambda x, k=k: x[k], stack) for k in range(len(stack.client))]
    return Curvatures({str(int(row.client)): row for row in rows}, weights, settings)


def approximate(state: Curvatures) -> Laplace:
    """Compute Laplace's approximation (`posterior.laplace`), or the posterior of a last layer, from the sums of all
    clients, added in float64.

    Raises:
      InvalidArgument: there are no clients.
    """
    if not state.clients:
        raise InvalidArgument(
            "A posterior is made of clients' sums, and there are no clients: one at least must be left."
        )
    parts = list(state.clients.values())
    total = lambda field: tf.nest.map_structure(
        lambda *x: np.sum(np.stack(x).astype(np.float64), 0), *(getattr(part, field) for part in parts)
    )
    settings, mode = state.settings, _mode(state)
    if settings.head is not None:
        number = sum(int(part.num_examples) for part in parts)
        sums = total("curvature"), _flat(total("gradient")), total("nll"), _flat(mode), np.float64(number)
        return linear_head(Expansion(*sums), mode, settings.head)
    return laplace(
        mode,
        total("curvature"),
        total("gradient"),
        float(total("nll")),
        prior_stddev=settings.prior_stddev,
        groups=settings.groups or None,
        temperature=settings.temperature,
    )


def pool(state: Curvatures) -> ModelWeights:
    """Return the server's weights with the posterior of `approximate`.

    Raises:
      InvalidArgument: as `approximate`.
    """
    below = len(state.weights.point) - len(_mode(state))
    return state.weights._replace(posterior=approximate(state).posterior, point=tuple(state.weights.point[:below]))


def join(
    state: Curvatures, others: Curvatures, names: Sequence[str] | None = None, replace: bool = False
) -> Curvatures:
    """Return the state with clients of another one; both states must be at the same weights.

    Sums for an exact last layer may be at different weights of that layer: they are expanded at those of `state`, which
    is exact for Gaussian labels.

    Args:
      state: to which the clients are added.
      others: from which they are taken: those of the `names`, or all for None.
      replace: for a client of both states the new sums replace the former ones; otherwise it is refused.

    Raises:
      InvalidArgument: the sums are of another structure or at other weights; there is no such client there, or one of
        the name here already.
    """
    if state.settings.head is not None and others.settings.head is not None and _shapes(state) == _shapes(others):
        others = _at_the_head_of(state, others)
    own, their = tf.nest.flatten(state.weights), tf.nest.flatten(others.weights)
    same = len(own) == len(their) and all(np.array_equal(x, y) for x, y in zip(own, their))
    if not same or _shapes(state) != _shapes(others):
        raise InvalidArgument(
            "The other clients' sums are of another structure or at other weights than these: let the clients compute "
            "them at the weights of this model."
        )
    clients = dict(state.clients)
    for client in others.clients if names is None else names:
        check_joining(client, others.clients, clients, replace)
        clients[client] = others.clients[client]
    return state._replace(clients=clients)


def expanded_at(rows: ClientCurvature, at: Array, to: Array) -> ClientCurvature:
    """Return sums for a last layer as the same quadratic functions, expanded at other weights.

    Args:
      rows: leaves [K, ...].
      at, to: the weights of the layer, flattened one tensor after another [D].
    """
    shapes = [tuple(x.shape[1:]) for x in rows.gradient]
    sizes = [math.prod(shape) for shape in shapes]
    gradient = tf.concat([tf.reshape(x, [-1, size]) for x, size in zip(rows.gradient, sizes)], 1)
    new = moved(Expansion(rows.curvature, gradient, rows.nll, at, rows.num_examples), to)
    parts = zip(tf.split(new.gradient, sizes, 1), shapes)
    return rows._replace(gradient=tuple(tf.reshape(x, [-1, *shape]) for x, shape in parts), nll=new.nll)


def _at_the_head_of(state: Curvatures, others: Curvatures) -> Curvatures:
    stack = tf.nest.map_structure(lambda *x: np.stack(x), *others.clients.values())
    rows = tf.nest.map_structure(np.asarray, expanded_at(stack, _flat(_mode(others)), _flat(_mode(state))))
    clients = {name: tf.nest.map_structure(lambda x, k=k: x[k], rows) for k, name in enumerate(others.clients)}
    mode = _mode(state)
    below = others.weights.point[: len(others.weights.point) - len(mode)]
    return others._replace(clients=clients, weights=others.weights._replace(point=(*below, *mode)))


def remove(state: Curvatures, *names: str) -> Curvatures:
    """Return the state without these clients' sums.

    The weights stay as the clients have trained them together; of an exact last layer they are those that the other
    clients' sums give.

    Raises:
      InvalidArgument: there is no such client, or none would be left.
    """
    clients = dict(state.clients)
    for client in names:
        check_leaving(client, clients)
        del clients[client]
    if not clients:
        raise InvalidArgument("A posterior is made of clients' sums: one client at least must be left.")
    return state._replace(clients=clients)


def load(path: Path) -> Curvatures:
    """Read a file of `save`.

    Raises:
      InvalidArgument: the file can't be read, or is none of these.
    """
    arrays = read_arrays(path, "file of curvatures", MOST_BYTES)
    state = None
    with contextlib.suppress(KeyError, ValueError, TypeError, IndexError):
        state = _state(arrays)
    if state is None or not _fits(state, arrays):
        raise InvalidArgument(f"{name(path)} is not a file of curvatures: its arrays are not those of one.")
    return state


def save(state: Curvatures, path: Path) -> None:
    """Write the state to a file, whole or not at all."""
    write_arrays(path, _arrays(state))


def _mode(state: Curvatures) -> tuple[Any, ...]:
    """Return the weights that the posterior is over: as many of the last as a client's gradient has."""
    number = len(next(iter(state.clients.values())).gradient)
    return tuple(state.weights.point[len(state.weights.point) - number :])


def _flat(leaves: Sequence[Array]) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in leaves])


def _shapes(state: Curvatures) -> Any:
    first = next(iter(state.clients.values()))
    return [np.shape(x) for x in tf.nest.flatten((first.curvature, first.gradient))], isinstance(first.curvature, tuple)


def _arrays(state: Curvatures) -> dict[str, Any]:
    parts, settings = list(state.clients.values()), state.settings
    stacked = tf.nest.map_structure(lambda *x: np.stack(x), *parts)
    arrays = {
        "names": np.array(list(state.clients), np.str_),
        "num_examples": np.array([int(part.num_examples) for part in parts], np.int64),
        "nll": np.asarray(stacked.nll, np.float64 if settings.head else np.float32),
        "prior_stddev": np.array([] if settings.prior_stddev is None else [settings.prior_stddev], np.float64),
        "temperature": np.array(settings.temperature, np.float64),
        "groups": np.array(settings.groups, np.int64),
        "full": np.array(int(not isinstance(stacked.curvature, tuple)), np.int64),
    }
    moments = state.weights.moments
    if settings.head is not None:
        noise = settings.head.noise_stddev
        arrays["gaussian"] = np.array(int(settings.head.gaussian), np.int64)
        arrays["noise_stddev"] = np.array([] if noise is None else [noise], np.float64)
    groups = zip((*_SUMS, *_WEIGHTS), (stacked.curvature, stacked.gradient, state.weights.point, *moments))
    return {**arrays, **{f"{part}/{i}": np.asarray(x) for part, g in groups for i, x in enumerate(tf.nest.flatten(g))}}


def _state(arrays: Mapping[str, np.ndarray]) -> Curvatures:
    ordered = lambda part: tuple(arrays[f"{part}/{i}"] for i in range(sum(k.startswith(f"{part}/") for k in arrays)))
    curvature, gradient = (ordered(part) for part in _SUMS)
    point, *moments = (ordered(part) for part in _WEIGHTS)
    full, given = bool(arrays["full"]), arrays["prior_stddev"].tolist()
    pick = lambda leaves, k: tuple(x[k] for x in leaves)
    clients = {
        client: ClientCurvature(
            np.int32(k),
            np.int32(arrays["num_examples"][k]),
            curvature[0][k] if full else pick(curvature, k),
            pick(gradient, k),
            arrays["nll"][k],
        )
        for k, client in enumerate(arrays["names"].tolist())
    }
    prior, heat, groups = given[0] if given else None, float(arrays["temperature"]), tuple(arrays["groups"].tolist())
    head = None
    if "gaussian" in arrays:
        noise = arrays["noise_stddev"].tolist()
        head = Head(bool(arrays["gaussian"]), prior, noise[0] if noise else None, heat)
    settings = Settings(prior, heat, groups, head)
    return Curvatures(clients, ModelWeights(MeanField((), ()), point, MeanField(*moments)), settings)


def _fits(state: Curvatures, arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the state is one, and all that the file holds."""
    names, moments, settings = arrays["names"], state.weights.moments, state.settings
    if names.dtype.kind != "U" or names.ndim != 1 or not len(names) == len(state.clients) > 0:
        return False
    fits = all(map(str.isprintable, state.clients)) and bool(np.all(arrays["num_examples"] > 0))
    numbers = {key: x for key, x in arrays.items() if key != "names"}
    fits = fits and all(x.dtype in (np.float32, np.float64, np.int64) for x in numbers.values())
    fits = fits and all(bool(np.all(np.isfinite(x))) for x in numbers.values())
    mode = [np.shape(x) for x in _mode(state)]
    size = sum(int(np.prod(shape)) for shape in mode)
    full = bool(arrays["full"])
    for part in state.clients.values():
        fits = fits and mode == [np.shape(x) for x in part.gradient]
        fits = fits and ([np.shape(part.curvature)] == [(size, size)] if full else _diagonal(part.curvature, mode))
    fits = fits and all(x.shape == y.shape and bool(np.all(y >= 0)) for x, y in zip(*moments))
    fits = fits and len(moments.mean) == len(moments.variance) and settings.temperature > 0
    fits = fits and (settings.prior_stddev is None or settings.prior_stddev > 0) and len(arrays["prior_stddev"]) < 2
    fits = fits and len(settings.groups) in (0, len(mode)) and not (full and settings.groups)
    if settings.head is not None:
        noise = settings.head.noise_stddev
        fits = fits and full and len(mode) == NUM_HEAD_WEIGHTS and (noise is None or noise > 0)
        fits = fits and len(arrays["noise_stddev"]) < 2
    groups = set(settings.groups)
    fits = fits and groups == set(range(len(groups)))
    return fits and {k: x.shape for k, x in arrays.items()} == {k: x.shape for k, x in _arrays(state).items()}


def _diagonal(curvature: Sequence[np.ndarray], mode: list[tuple[int, ...]]) -> bool:
    return mode == [np.shape(x) for x in curvature] and all(bool(np.all(x >= 0)) for x in curvature)
