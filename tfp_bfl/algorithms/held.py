"""A server's clients that come, learn more and leave: the row of each one apart, and all of them in a file.

state = bfl.algorithms.held.Held.load("my_run/clients.npz")
state = state.remove("3")                                  # as if client 3 had never been there
state = state.join(bfl.algorithms.held.Held.load("other/clients.npz"))
model = bfl.weights.predictive_model(model_fn(), state.pool())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.factors.factor import ClientFactor, Factor, Factors
from tfp_bfl.algorithms.heads.kept import ClientFeatures, Heads
from tfp_bfl.algorithms.laplace.pool import Curvatures
from tfp_bfl.algorithms.laplace.posterior import Head
from tfp_bfl.algorithms.laplace.shared import SharedCurvature
from tfp_bfl.algorithms.rows import by_client
from tfp_bfl.algorithms.swag.step import Product
from tfp_bfl.contracts import ServerState
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path, name
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.weights import ClientCurvature, ClientPosterior, ModelWeights

MOST_BYTES = 2**34
# Of each way to pool rows: its name in a file, and the types of the parts that are no tuples, by field.
_KINDS: dict[str, tuple[Any, Any]] = {
    "posteriors": (Product, ClientPosterior),
    "sites": (Factors, ClientFactor),
    "sums": (Curvatures, ClientCurvature),
    "heads": (Heads, ClientFeatures),
}
_OF_SETTINGS = {"prior": MeanField, "head": Head}
_OF_ROWS = {"posterior": LowRank, "moments": MeanField, "site": Factor, "curvature": SharedCurvature}
_OF_WEIGHTS = {"posterior": MeanField, "moments": MeanField}

_Row = TypeVar("_Row", ClientPosterior, ClientFactor, ClientCurvature, ClientFeatures)


class Held(NamedTuple, Generic[_Row]):
    """Rows of a server's clients, of which it makes a posterior. A value: methods return new ones.

    Fields:
      rows: of the clients by name, in the order of their arrival.
      weights: the server's, to which the pooled posterior belongs.
      settings: how rows are pooled: `Product`, `Factors`, `Curvatures` or `Heads`.
    """

    rows: dict[str, _Row]
    weights: ModelWeights
    settings: Any

    @classmethod
    def of_stack(cls, stack: _Row, weights: ModelWeights, settings: object) -> Held[_Row]:
        """Return the clients of a stack, leaves [K, ...]; their names are their numbers."""
        return cls(by_client(stack), tf.nest.map_structure(np.asarray, weights), settings)

    def pool(self) -> ModelWeights:
        """Return the weights that predict: the posterior of the clients that are there, with the server's weights."""
        pooled: ModelWeights = self.settings.pool(self.rows, self.weights)
        return pooled

    def join(self, others: Held[_Row], names: Sequence[str] | None = None, replace: bool = False) -> Held[_Row]:
        """Return these clients with those of another server.

        Args:
          others: from which they are taken.
          names: of the clients to take; None for all.
          replace: for a client of both, the new row replaces the former one; otherwise it is refused.
        """
        if type(self.settings) is not type(others.settings):
            raise InvalidArgument("The other clients are of another algorithm than these: they do not go together.")
        taken, rows = self.settings.align(self, others), dict(self.rows)
        joined = set[str]()
        for client in others.rows if names is None else names:
            if client not in taken:
                raise InvalidArgument(f"There is no client {client!r} to take: the others are {_in_words(taken)}.")
            if client in rows and (client in joined or not replace):
                raise InvalidArgument(f"There is a client {client!r} already: ask to replace it, or leave it out.")
            rows[client] = taken[client]
            joined.add(client)
        return self._checked(rows)

    def remove(self, *names: str) -> Held[_Row]:
        """Return the clients without these, as if they had never been there."""
        rows = dict(self.rows)
        for client in names:
            if client not in rows:
                raise InvalidArgument(f"There is no client {client!r}: the clients are {_in_words(rows)}.")
            del rows[client]
        return self._checked(rows)

    def save(self, path: Path) -> None:
        """Write the clients to a file, whole or not at all."""
        write_arrays(path, self._arrays())

    @classmethod
    def load(cls, path: Path) -> Held[Any]:
        """Read what `save` wrote."""
        arrays = read_arrays(path, "file of clients", MOST_BYTES)
        try:
            _check_types(arrays)
            state: Held[Any] = cls(*_parts(arrays))
            state._checked(state.rows)
            form = lambda arrays: {key: (x.dtype.kind, x.shape) for key, x in arrays.items()}
            if form(arrays) != form(state._arrays()):
                raise ValueError
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            problem = str(error) if isinstance(error, InvalidArgument) else "its arrays are not those of one"
            raise InvalidArgument(f"{name(path)} is not a file of clients: {problem.rstrip('.')}.") from None
        return state

    def _checked(self, rows: dict[str, _Row]) -> Held[_Row]:
        self.settings.check(rows, self.weights)
        return self._replace(rows=rows)

    def _arrays(self) -> dict[str, np.ndarray]:
        (kind,) = (kind for kind, (settings, _) in _KINDS.items() if settings is type(self.settings))
        parts = {"settings": self.settings, "weights": self.weights}
        parts |= {f"rows/{k}": row for k, row in enumerate(self.rows.values())}
        arrays = {key: x for path, part in parts.items() for key, x in _flat(part, path).items()}
        return {"kind": np.array(kind), "names": np.array(list(self.rows), np.str_), **arrays}


def factors_of(state: ServerState, num_examples: Sequence[int] | np.ndarray) -> Held[ClientFactor]:
    """Return the factors in the last state of a run in which each client keeps its `Factor`; names are numbers."""
    clients = np.asarray(state.memory.client).tolist()
    rows = {
        str(client): ClientFactor(
            np.int32(num_examples[client]), Factor(*(np.asarray(x)[k] for x in state.memory.rows))
        )
        for k, client in enumerate(clients)
    }
    weights = tf.nest.map_structure(np.asarray, state.weights)
    return Held(rows, weights._replace(posterior=MeanField((), ())), Factors.without(rows, weights.posterior))


def _in_words(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _flat(tree: object, path: str) -> dict[str, np.ndarray]:
    """Return the leaves of named and other tuples by their paths; None has none."""
    if tree is None:
        return {}
    if not isinstance(tree, tuple):
        return {path: np.asarray(tree)}
    names = getattr(tree, "_fields", range(len(tree)))
    return {key: x for part, own in zip(names, tree) for key, x in _flat(own, f"{path}/{part}").items()}


def _tree(arrays: Mapping[str, np.ndarray], path: str, types: Mapping[str, type], kind: type | None = None) -> Any:
    """Return what `_flat` took apart: a leaf, a named tuple of a kind, whose parts have those types, or a tuple."""
    if path in arrays:
        return arrays[path]
    below = {key[len(path) + 1 :].partition("/")[0] for key in arrays if key.startswith(f"{path}/")}
    if kind is None or "0" in below:  # A curvature is a named tuple, or a tuple of leaves.
        return tuple(_tree(arrays, f"{path}/{i}", types) for i in range(len(below)))
    of: Any = kind
    stored = [field for field in of._fields if field in below or field not in of._field_defaults]
    return of(**{field: _tree(arrays, f"{path}/{field}", types, types.get(field)) for field in stored})


def _parts(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], ModelWeights, Any]:
    """Return rows, weights and settings of a file."""
    settings, row = _KINDS[str(arrays["kind"])]
    # Settings are plain numbers, but for tensors.
    plain = {key: x.item() if key.startswith("settings/") and x.ndim == 0 else x for key, x in arrays.items()}
    rows = {client: _tree(arrays, f"rows/{k}", _OF_ROWS, row) for k, client in enumerate(arrays["names"].tolist())}
    weights = _tree(arrays, "weights", _OF_WEIGHTS, ModelWeights)
    return rows, weights, _tree(plain, "settings", _OF_SETTINGS, settings)


def _check_types(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless names are text on one line, numbers of examples above zero and all else finite."""
    names = arrays["names"]
    fine = names.dtype.kind == "U" and names.ndim == 1 and all(map(str.isprintable, names.tolist()))
    fine = fine and len(set(names.tolist())) == len(names) and arrays["kind"].ndim == 0
    for key, x in arrays.items():
        part, field = key.partition("/")[0], key.rpartition("/")[2]
        if part == "rows" and field in ("client", "num_examples"):
            fine = fine and x.dtype == np.int32 and x.ndim == 0 and (field == "client" or int(x) > 0)
        elif part in ("rows", "weights"):
            fine = fine and x.dtype in (np.float32, np.float64) and bool(np.all(np.isfinite(x)))
        elif part == "settings":
            fine = fine and x.dtype in (np.float32, np.float64, np.int64, np.bool_) and bool(np.all(np.isfinite(x)))
    if not fine:
        raise ValueError
