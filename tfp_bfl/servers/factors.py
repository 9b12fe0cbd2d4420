"""A posterior and its clients' factors, after a run of partitioned inference: clients leave, and others join.

state = factors.load("my_run/sites.npz")
state = factors.remove(state, "3")                         # its site is divided out
state = factors.join(state, factors.load("other/sites.npz"))
model = bfl.models.predictive_model(model_fn(), factors.pool(state))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path, name
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.posterior import MeanField, Site, times
from tfp_bfl.servers.names import check_joining, check_leaving
from tfp_bfl.weights import ModelWeights

MOST_BYTES = 2**34
PARTS = ("mean", "variance", "point", "moving_mean", "moving_variance")


class Factors(NamedTuple):
    """The federation's approximate likelihood factors, one for each client.

    Fields:
      names: of the clients.
      num_examples: of each.
      sites: of each.
      weights: the server's; their posterior is the prior times all sites.
    """

    names: tuple[str, ...]
    num_examples: tuple[int, ...]
    sites: tuple[Site, ...]
    weights: ModelWeights


def from_state(state: ServerState, num_examples: Sequence[int] | np.ndarray) -> Factors:
    """Return the factors of a run's last state, a `Site` of each client; the names are their numbers."""
    clients = np.asarray(state.memory.client).tolist()
    rows = [Site(*(np.asarray(x)[k] for x in state.memory.rows)) for k in range(len(clients))]
    sizes = tuple(int(num_examples[k]) for k in clients)
    return Factors(tuple(map(str, clients)), sizes, tuple(rows), tf.nest.map_structure(np.asarray, state.weights))


def pool(state: Factors) -> ModelWeights:
    """Return the server's weights."""
    return tf.nest.map_structure(tf.convert_to_tensor, state.weights)


def remove(state: Factors, *names: str) -> Factors:
    """Return the state without these clients: their sites are divided out of the posterior.

    What they taught the others, and the point weights, stays.

    Raises:
      InvalidArgument: there is no such client.
    """
    for client in names:
        check_leaving(client, state.names)
        k = state.names.index(client)
        posterior = times(MeanField(*state.weights.posterior), state.sites[k], -1)
        state = Factors(
            state.names[:k] + state.names[k + 1 :],
            state.num_examples[:k] + state.num_examples[k + 1 :],
            state.sites[:k] + state.sites[k + 1 :],
            state.weights._replace(posterior=posterior),
        )
    return state


def join(state: Factors, others: Factors, names: Sequence[str] | None = None, replace: bool = False) -> Factors:
    """Return the state with the clients of another state; their factors multiply the posterior.

    Args:
      names: of the clients to take; None for all.
      replace: a client that is there already gets the new site in the place of its old one, and is not refused.

    Raises:
      InvalidArgument: there is no such client there, or one of the name here already; or the models' shapes differ.
    """
    if _shapes(state) != _shapes(others):
        raise InvalidArgument(
            "The other clients' model has other shapes: their sites are over other weights than these."
        )
    for client in others.names if names is None else names:
        check_joining(client, others.names, state.names, replace)
        state = remove(state, client) if client in state.names else state
        k = others.names.index(client)
        posterior = times(MeanField(*state.weights.posterior), others.sites[k])
        state = Factors(
            (*state.names, client),
            (*state.num_examples, others.num_examples[k]),
            (*state.sites, others.sites[k]),
            state.weights._replace(posterior=posterior),
        )
    return state


def save(state: Factors, path: Path) -> None:
    """Write the state to a file, whole or not at all."""
    write_arrays(path, _arrays(state))


def load(path: Path) -> Factors:
    """Read what `save` wrote.

    Raises:
      InvalidArgument: the file can't be read, or is none of these.
    """
    arrays = read_arrays(path, "file of sites", MOST_BYTES)
    try:
        groups = [_ordered(arrays, part) for part in PARTS]
        weights = ModelWeights(MeanField(*groups[:2]), groups[2], MeanField(*groups[3:]))
        names, sizes = arrays["names"], arrays["num_examples"]
        sites = tuple(Site(p, s) for p, s in zip(arrays["precision"], arrays["shift"]))
        state = Factors(tuple(names.tolist()), tuple(sizes.tolist()), sites, weights)
        _check(state, arrays)
    except (KeyError, ValueError, TypeError):
        raise InvalidArgument(f"{name(path)} is not a file of sites: its arrays are not those of one.") from None
    return state


def _arrays(state: Factors) -> dict[str, Any]:
    weights = state.weights
    groups = zip(PARTS, (*weights.posterior, weights.point, *weights.moments))
    size = sum(int(np.size(x)) for x in weights.posterior.mean)
    rows = lambda field: np.array([getattr(t, field) for t in state.sites], np.float32).reshape(-1, size)
    return {
        "names": np.array(state.names, np.str_),
        "num_examples": np.array(state.num_examples, np.int64),
        "precision": rows("precision"),
        "shift": rows("shift"),
        **{f"{part}/{i}": np.asarray(x) for part, group in groups for i, x in enumerate(group)},
    }


def _ordered(arrays: Mapping[str, np.ndarray], part: str) -> tuple[np.ndarray, ...]:
    number = sum(key.startswith(f"{part}/") for key in arrays)
    return tuple(arrays[f"{part}/{i}"] for i in range(number))


def _shapes(state: Factors) -> Any:
    return [np.shape(x) for x in tf.nest.flatten(state.weights)]


def _check(state: Factors, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError for what is no file of sites."""
    names, q, moments = arrays["names"], state.weights.posterior, state.weights.moments
    numbers = [x for key, x in arrays.items() if key != "names"]
    fits = names.dtype.kind == "U" and names.ndim == 1 and len(set(state.names)) == len(state.names)
    fits = fits and all(map(str.isprintable, state.names)) and all(n > 0 for n in state.num_examples)
    fits = fits and all(x.dtype in (np.float32, np.int64) and np.all(np.isfinite(x)) for x in numbers)
    pairs = [*zip(q.mean, q.variance), *zip(moments.mean, moments.variance)]
    fits = fits and all(x.shape == y.shape for x, y in pairs) and all(np.all(x > 0) for x in q.variance)
    fits = fits and len(q.mean) == len(q.variance) > 0 and bool(np.all(arrays["precision"] >= 0))
    same = {len(names), len(state.num_examples), len(arrays["precision"]), len(arrays["shift"])}
    whole = {key: x.shape for key, x in arrays.items()} == {key: x.shape for key, x in _arrays(state).items()}
    if not fits or len(same) != 1 or not whole:
        raise ValueError
