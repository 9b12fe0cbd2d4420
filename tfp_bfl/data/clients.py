"""The clients of a federated run: who holds which examples, and each client's examples as one dataset."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfp_bfl.data.names import as_text
from tfp_bfl.data.partitions import generator
from tfp_bfl.errors import InvalidArgument, check_count, check_share
from tfp_bfl.faces import tf

if TYPE_CHECKING:
    from tfp_bfl.data.sources import Learnt, Source

DESCRIBED_CLIENTS = 20


class ClientExamples(NamedTuple):
    """All examples of one client, n of them.

    Attributes:
      features: [n, ...], uint8 for images, float32 for tables.
      labels: int32 [n]; float32 where numbers are regressed on.
      client: int32 [n], the client's index repeated. It travels with the examples because the noise of a
        client's training is seeded by it.
    """

    client: Any
    features: Any
    labels: Any


@functools.lru_cache(maxsize=16)
def _slices(*spec: tf.TensorSpec) -> Any:
    """Return the function (start, end, client, features, labels) -> the rows from start to end of the last three."""
    bound = tf.TensorSpec([], tf.int64)
    rows = tf.function(lambda start, end, *examples: tuple(x[start:end] for x in examples), autograph=False)
    return rows.get_concrete_function(bound, bound, *spec)


def rows_by_client(numbers: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Group rows by the number of their client: for each client its rows in ascending order, int64 [n_k].

    Rows with a negative number belong to nobody.
    """
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.searchsorted(numbers[order], np.arange(num_clients + 1)))[1 : num_clients + 1]


class ClientRows(NamedTuple):
    """Hold the examples of several clients in memory.

    Fields:
      examples: of all of them, one client after another, leaves [N, ...].
      ends: the number of rows up to the end of each client, int64 [K].
    """

    examples: ClientExamples
    ends: np.ndarray


class Share(NamedTuple):
    """Some of the clients; their examples are read where they are used.

    Fields:
      clients: all of them.
      numbers: of these, int64 [K].
    """

    clients: ClientData
    numbers: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Examples of each of these, int64 [K]."""
        return self.clients.sizes[self.numbers]


class ClientData(abc.ABC):
    """Clients with examples that can be read here, one after another, and their datasets.

    Attributes:
      source: what their examples look like.
    """

    source: Learnt

    @property
    @abc.abstractmethod
    def sizes(self) -> np.ndarray:
        """Examples of each client, int64 [K]."""

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The partition, as a checkpoint records it."""

    @abc.abstractmethod
    def examples(self, k: int) -> ClientExamples:
        """Return the examples of client k as arrays."""

    @functools.cached_property  # Once, as `sizes` may cost time in proportion to K.
    def num_clients(self) -> int:
        """K."""
        return len(self.sizes)

    @property
    def element_spec(self) -> ClientExamples:
        """The type of the elements of every dataset, each one client."""
        return self.source.element_spec

    def _checked(self, k: int) -> int:
        if not 0 <= k < self.num_clients:
            raise InvalidArgument(f"There is no client {k}: clients are numbered 0 to {self.num_clients - 1}.")
        return k

    def dataset(self, *chosen: int) -> tf.data.Dataset:
        """Return the dataset of the chosen clients: one element a client, its `ClientExamples`.

        A federated round takes one client or several in a dataset; several work one after another.
        """
        if not chosen:
            raise InvalidArgument("A dataset needs at least one client.")
        # Slices of one array: the datasets of any clients have one type, and a small graph however many there are.
        spec = self.element_spec
        examples, ends = self.rows(*chosen)
        starts = np.concatenate([[0], ends[:-1]])
        # The operation instead of `map`: its function would be made anew for every dataset and stay for ever.
        variant = tf.raw_ops.MapDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices((starts, ends))),
            other_arguments=list(examples),
            f=_slices(*spec),
            output_types=[x.dtype for x in spec],
            output_shapes=[x.shape for x in spec],
            preserve_cardinality=True,
        )
        return tf.data.experimental.from_variant(variant, spec)

    def rows(self, *chosen: int) -> ClientRows:
        """Return the examples of the chosen clients, one client after another."""
        return ClientRows(ClientExamples(*map(tf.constant, self.arrays(chosen))), np.cumsum(self.sizes[list(chosen)]))

    def arrays(self, chosen: Iterable[int]) -> ClientExamples:
        """Return the examples of the chosen clients as arrays, one client after another."""
        return ClientExamples(*map(np.concatenate, zip(*map(self.examples, chosen))))

    def shares(self, chosen: Iterable[int], most: int) -> list[list[int]]:
        """Split the chosen clients into at most `most` parts with about the same number of examples."""
        chosen = [self._checked(int(k)) for k in chosen]
        if not chosen:
            raise InvalidArgument("shares needs at least one client.")
        parts: list[list[int]] = [[] for _ in range(min(check_count(most, "most"), len(chosen)))]
        loads, sizes = [0] * len(parts), self.sizes
        # The largest first, each to the least loaded.
        for k in sorted(chosen, key=lambda k: (-sizes[k], k)):
            least = loads.index(min(loads))
            parts[least].append(k)
            loads[least] += int(sizes[k])
        return parts

    def examples_by_part(self, chosen: Iterable[int], most: int) -> list[Share]:
        """Return the clients of each of the `shares`, with their examples."""
        return [Share(self, np.array(part)) for part in self.shares(chosen, most)]

    def rows_by_part(self, chosen: Iterable[int], most: int) -> list[ClientRows]:
        """Return the rows of the clients of each of the `shares`."""
        return [self.rows(*part) for part in self.shares(chosen, most)]

    def shards(self, chosen: Iterable[int], most: int) -> list[tf.data.Dataset]:
        """Return the datasets of `shares`."""
        return [self.dataset(*part) for part in self.shares(chosen, most)]


@dataclasses.dataclass(frozen=True, eq=False)
class Clients(ClientData):
    """K clients over one source: client k holds the examples `indices[k]`.

    Attributes:
      source: the examples that are shared out.
      indices: for each client, int64 [n_k] indices into the source.
      names: of the clients, which become the `owners` of the source; () for the owners that it has.
    """

    source: Source
    indices: Sequence[np.ndarray]
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        indices = tuple(np.asarray(part) for part in self.indices)
        if not indices:
            raise InvalidArgument("indices is empty, but must hold an array of examples for each client.")
        for k, part in enumerate(indices):
            if part.size == 0:
                raise InvalidArgument(f"Client {k} has no examples, but every client must have at least one.")
            if part.ndim != 1 or not np.issubdtype(part.dtype, np.integer):
                what = f"Client {k} has indices of type {part.dtype} and shape {part.shape}"
                raise InvalidArgument(f"{what}, but they must be integers of shape [n].")
            if part.min() < 0 or part.max() >= self.source.num_examples:
                raise InvalidArgument(f"Client {k} has an index outside 0 to {self.source.num_examples - 1}.")
        object.__setattr__(self, "indices", tuple(part.astype(np.int64, copy=False) for part in indices))
        if len(self.names):
            object.__setattr__(self, "source", dataclasses.replace(self.source, owners=self._owners()))

    def _owners(self) -> np.ndarray:
        """Return the name of each example's client [N], "" for an example of no client."""
        called, rows = as_text(list(self.names)), np.concatenate(self.indices)
        if len(called) != self.num_clients or len({*called} - {""}) < len(called):
            raise InvalidArgument(f"names must give each of the {self.num_clients} clients a name of its own.")
        if len(np.unique(rows)) < len(rows):
            raise InvalidArgument("names are of clients without common examples, and these have some.")
        owners = np.full(self.source.num_examples, "", object)
        owners[rows] = np.repeat(called, self.sizes)
        return owners

    @property
    def client_names(self) -> tuple[str, ...]:
        """The name that the rows give each client; () unless each has one of its own."""
        owners = self.source.owners
        if owners is None:
            return ()
        named = [set(owners[part].tolist()) for part in self.indices]
        is_own = len(set().union(*named)) == len(named) == sum(map(len, named))
        return tuple(name for (name,) in named) if is_own else ()

    def __repr__(self) -> str:
        sizes = f"{self.num_clients} with {self.sizes.min()} to {self.sizes.max()} examples"
        return f"<Clients of {self.source.name}/{self.source.split}: {sizes}>"

    @functools.cached_property  # Once: each access of a client checks its number against them.
    def sizes(self) -> np.ndarray:  # type: ignore[override]
        """Examples of each client, int64 [K], read-only."""
        sizes = np.array([len(part) for part in self.indices], np.int64)
        sizes.flags.writeable = False
        return sizes

    @property
    def description(self) -> str:
        """The partition, by the indices, features and labels of the clients' examples."""
        source = self.source
        content = [part.tolist() for part in self.indices], source.sha256()
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]
        return f"{self.num_clients} of {source.name}/{source.split} ({digest})"

    def label_counts(self) -> np.ndarray:
        """Return the examples of each class that each client holds, int64 [K, C]; of numbers those of each tenth."""
        labels = self.source.strata
        num_classes = self.source.num_classes or int(labels.max()) + 1
        return np.stack([np.bincount(labels[part], minlength=num_classes) for part in self.indices])

    def limit(self, examples_per_client: int, seed: int) -> Clients:
        """Return clients with at most `examples_per_client` examples, drawn uniformly without replacement.

        Clients that have no more than that keep what they have. The order of examples stays.
        """
        most = check_count(examples_per_client, "examples_per_client")
        chosen = lambda k, n: np.sort(generator(seed, "limit", k).choice(n, most, replace=False))
        limited = [x if len(x) <= most else x[chosen(k, len(x))] for k, x in enumerate(self.indices)]
        return Clients(self.source, limited)

    def split(self, first: int) -> tuple[Clients, Clients]:
        """Return the first clients and all others, such as clients who never take part in training."""
        if not 0 < first < self.num_clients:
            raise InvalidArgument(f"first is {first}, but must be at least 1 and below the {self.num_clients} clients.")
        return Clients(self.source, self.indices[:first]), Clients(self.source, self.indices[first:])

    def set_aside(self, share: float, seed: int) -> tuple[Clients, Clients]:
        """Take a share of all examples for the server: that share as one client, and the clients with the rest.

        The examples are drawn uniformly from those of all clients, round(share n) of n.
        """
        check_share(share, "share")
        held = np.unique(np.concatenate(self.indices))
        taken = generator(seed, "set_aside").permutation(held)[: round(share * len(held))]
        if not len(taken):
            raise InvalidArgument(f"A share of {share} of {len(held)} examples is none: set more aside.")
        is_taken = np.zeros(self.source.num_examples, bool)
        is_taken[taken] = True
        rest = [part[~is_taken[part]] for part in self.indices]
        empty = [k for k, part in enumerate(rest) if not len(part)]
        if empty:
            what = f"client {empty[0]} none of its {len(self.indices[empty[0]])}"
            raise InvalidArgument(f"Setting aside {share} of the examples leaves {what}: set less aside.")
        return Clients(self.source, [np.sort(taken)]), Clients(self.source, rest)

    def examples(self, k: int) -> ClientExamples:
        """Return the examples of client k as arrays."""
        return self.arrays([self._checked(k)])

    def arrays(self, chosen: Iterable[int]) -> ClientExamples:
        """Return the examples of the chosen clients as arrays, one client after another."""
        numbers = np.array([self._checked(k) for k in chosen])
        rows = np.concatenate([self.indices[k] for k in numbers])
        client, features = np.repeat(numbers.astype(np.int32), self.sizes[numbers]), self.source.features[rows]
        if not self.source.is_image:  # Read on demand, they have the type of their file.
            features = np.asarray(features, np.float32)
        return ClientExamples(client, features, self.source.labels[rows])

    def describe(self) -> str:
        """Return a table of the examples of each class that each client holds: the first 20, and all."""
        counts = self.label_counts()
        shown = min(self.num_clients, DESCRIBED_CLIENTS)
        rows = [["client", *self.source.class_names, "all"]]
        rows += [[str(k), *map(str, counts[k]), str(counts[k].sum())] for k in range(shown)]
        if shown < self.num_clients:
            rows.append(["..."] * len(rows[0]))
        rows.append(["all", *map(str, counts.sum(0)), str(counts.sum())])
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows)
