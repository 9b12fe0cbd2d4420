"""Ways to split one dataset over K clients, from IID to strongly label-skewed.

Each function here checks its arguments and returns a `Partition`: a callable `(labels [N], seed) -> K
sorted index arrays`, pairwise disjoint. The same seed gives the same partition, whatever machine or number
of workers uses it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tfp_bfl.errors import InvalidArgument, check_count, check_number, check_share

if TYPE_CHECKING:
    from tfp_bfl.data.clients import Clients

MAX_DRAWS = 100


def generator(seed: int, *path: str | int) -> np.random.Generator:
    """Return the random generator of one purpose: its stream depends on `(seed, path)` and on nothing else."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidArgument(f"seed is {seed!r}, but must be an integer of at least 0.")
    key = tuple(zlib.crc32(step.encode()) if isinstance(step, str) else int(step) for step in path)
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=key))


# (classes: for each class, the indices of its examples; seed) -> for each client, the indices of its
# examples.
Assign = Callable[[list[np.ndarray], int], list[np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """A way to split labelled examples over clients.

    Attributes:
      name: as `parse` reads it, such as "dirichlet:0.5".
      num_clients: K.
      assign: the mechanism; call the partition itself instead.
    """

    name: str
    num_clients: int
    assign: Assign = dataclasses.field(repr=False)

    def __call__(self, labels: np.ndarray, seed: int) -> list[np.ndarray]:
        """Return K sorted int64 arrays of indices into `labels` [N], pairwise disjoint."""
        labels = np.asarray(labels)
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise InvalidArgument(f"labels are {labels.dtype} of shape {labels.shape}, but must be integers [N].")
        if self.num_clients > labels.size:
            most = labels.size
            raise InvalidArgument(f"{self.num_clients} clients can't share {most} examples: use {most} or fewer.")
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        return [np.sort(part).astype(np.int64) for part in self.assign(classes, seed)]


def given(num_clients: int) -> Partition:
    """Return the partition of data that name their clients (`read_own`); for other data it raises InvalidArgument."""

    def assign(classes: list[np.ndarray], seed: int) -> list[np.ndarray]:
        raise InvalidArgument("The data say nothing of clients: name the column that does, or give another partition.")

    return Partition("given", num_clients, assign)


def iid(num_clients: int) -> Partition:
    """Give each client a uniformly drawn share of the examples, without replacement (McMahan et al. 2017).

        client k holds pi[N k / K : N (k + 1) / K],  pi a uniform permutation of 0..N-1

    Sizes differ by at most one; every example is used.

    Example:
      >>> train = bfl.data.load("digits")
      >>> clients = train.partition(bfl.data.iid(num_clients=3), seed=0)
      >>> clients.sizes
      array([480, 479, 479])
    """

    def assign(classes: list[np.ndarray], seed: int) -> list[np.ndarray]:
        order = generator(seed, "iid").permutation(sum(map(len, classes)))
        return np.array_split(order, num_clients)

    return Partition("iid", check_count(num_clients, "num_clients"), assign)


def label_skew(num_clients: int, classes_per_client: int) -> Partition:
    """Give each client exactly c classes (quantity-based label imbalance, Li et al. 2022, section IV-A).

        holders of class j: floor(K c / C) or ceil(K c / C) clients;  each holds an equal shard of the class

    CIFAR-10 (50,000 examples) with K = 10 and c = 2 is 20 shards of 2,500: each client has two different
    classes and each class two clients. Every class is used if K c >= C; else K c classes are drawn and the
    others are left out.
    Departure: Li et al. draw the classes independently, so that some classes can have many holders and some
    only one; here the holders are spread evenly. Shards of one class differ in size by at most one.

    Source: Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.

    Example:
      >>> train = bfl.data.load("digits")
      >>> clients = train.partition(bfl.data.label_skew(num_clients=10, classes_per_client=2), seed=0)
      >>> clients.sizes
      array([145, 142, 145, 142, 145, 143, 144, 141, 146, 145])
    """
    num_clients = check_count(num_clients, "num_clients")
    per_client = check_count(classes_per_client, "classes_per_client")

    def assign(classes: list[np.ndarray], seed: int) -> list[np.ndarray]:
        num_classes = len(classes)
        if per_client > num_classes:
            raise InvalidArgument(f"classes_per_client is {per_client}, but must be at most the {num_classes} classes.")
        rng = generator(seed, "label_skew")
        holders = _spread(num_clients, per_client, num_classes, rng)
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for members, who in zip(classes, holders):
            if len(who) > len(members):
                what = f"a class of {len(members)} examples to {len(who)} clients"
                raise InvalidArgument(f"label_skew gives {what}: use fewer clients or classes per client.")
            if who:
                for client, shard in zip(who, np.array_split(rng.permutation(members), len(who))):
                    parts[client].append(shard)
        return [np.concatenate(part) for part in parts]

    return Partition(f"label_skew:{per_client}", num_clients, assign)


def _spread(num_clients: int, per_client: int, num_classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Return for each class the clients that hold it: c classes a client, holders as even as possible."""
    quota = np.full(num_classes, num_clients * per_client // num_classes)
    quota[rng.permutation(num_classes)[: num_clients * per_client % num_classes]] += 1
    holders: list[list[int]] = [[] for _ in range(num_classes)]
    for client in rng.permutation(num_clients):
        # Taking the classes with the most open places never leaves a later client short (Gale-Ryser).
        for label in np.lexsort((rng.random(num_classes), -quota))[:per_client]:
            holders[label].append(int(client))
            quota[label] -= 1
    return holders


def dirichlet(num_clients: int, alpha: float, min_examples: int = 1) -> Partition:
    """Split each class over the clients in Dirichlet proportions (Yurochkin et al. 2019; Li et al. 2022).

        p_j ~ Dir(alpha 1_K) for each class j;  client k holds a share p_j[k] of the examples of class j

    Client sizes differ; every example is used. If a client gets fewer than `min_examples`, all proportions
    are drawn again from the next sub-seed, up to 100 times. Departure: the code of both papers also stops
    giving a client examples once it holds N / K; their texts do not, and neither does this.

    Source: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019,
    section 4; Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, section IV-A.

    Example:
      >>> train = bfl.data.load("digits")
      >>> clients = train.partition(bfl.data.dirichlet(num_clients=3, alpha=0.5), seed=0)
      >>> clients.sizes
      array([439, 386, 613])
    """
    num_clients = check_count(num_clients, "num_clients")
    min_examples = check_count(min_examples, "min_examples")
    alpha = check_alpha(alpha)

    def draw_cuts(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        return _cuts(rng.dirichlet(np.full(num_clients, alpha), size=len(counts)), counts)

    remedy = f"a larger alpha, fewer clients or the partition lda:{alpha:g}"
    return _cut_classes(f"dirichlet:{alpha:g}", num_clients, min_examples, draw_cuts, remedy)


def noniid_datasets(num_clients: int, other_interest: float = 0.25, min_examples: int = 1) -> Partition:
    """Give clients of unequal size an interest in one class each, and a smaller one in all others (Makni 2022).

        s_1 <= ... <= s_K, sorted draws of U(0, 1);  i_kc = 1 if c = k mod C, else p
        client k holds a share s_k i_kc / sum_j s_j i_jc of the examples of class c

    with p = `other_interest`: at 1 clients differ in size alone, at 0 each has only its own class. Every example
    is used; of each class a client gets its share to less than one example. If a client gets fewer than
    `min_examples`, all sizes are drawn again from the next sub-seed, up to 100 times; at p = 1 the smallest of
    them expects 2 N / K^2 examples, about. Departures: the author's code draws a client for each example, with
    the shares as probabilities, and gives only the first C clients a class of their own.

    Source: Makni 2022, FL-SWAG, the partition "noniid-datasets".

    Example:
      >>> train = bfl.data.load("digits")
      >>> clients = train.partition(bfl.data.noniid_datasets(num_clients=3), seed=0)
      >>> clients.sizes
      array([374, 515, 549])
    """
    num_clients = check_count(num_clients, "num_clients")
    min_examples = check_count(min_examples, "min_examples")
    check_share(other_interest, "other_interest", zero=True, one=True)

    def draw_cuts(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        num_classes = len(counts)
        if other_interest == 0 and num_clients < num_classes:
            left = f"{num_clients} clients leave {num_classes - num_clients} of the {num_classes} classes to nobody"
            raise InvalidArgument(f"other_interest is 0, so that {left}: use more clients or a larger other_interest.")
        sizes = np.sort(1.0 - rng.random(num_clients))  # In (0, 1]: whoever has a class alone must not weigh 0.
        interest = np.full((num_classes, num_clients), float(other_interest))
        interest[np.arange(num_clients) % num_classes, np.arange(num_clients)] = 1.0
        # Where nobody's interest is 1 only ratios count, and the smallest p times a size would be 0.
        weights = sizes * (interest / interest.max(axis=1, keepdims=True))
        # Unshifted, the first client would be rounded down in every class, and alike classes round the same way.
        return _cuts(weights, counts, rng.random(num_classes))

    remedy = "fewer clients" if min_examples == 1 else "fewer clients or a smaller min_examples"
    return _cut_classes(f"noniid_datasets:{other_interest:g}", num_clients, min_examples, draw_cuts, remedy)


def like(clients: Clients) -> Partition:
    """Give each client the share of every class that it has of `clients`: the test data of the clients that train.

        examples of class c of client k = n_c N_kc / sum_j N_jc,   n_c those of the source, N_kc those of `clients`

    up to one, with this expectation. Shards are drawn anew until every client has an example.

    Example:
      >>> train = bfl.data.load("digits")
      >>> test = bfl.data.load("digits", split="test")
      >>> clients = train.partition(bfl.data.dirichlet(num_clients=3, alpha=0.5), seed=0)
      >>> test.partition(bfl.data.like(clients), seed=0).sizes
      array([111,  96, 152])
    """
    held = clients.label_counts().T.astype(np.float64)

    def draw_cuts(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        if len(counts) != len(held) or not held.any(1).all():
            there = f"the examples have {len(counts)} and the clients hold {int(held.any(1).sum())}"
            raise InvalidArgument(f"like partitions {len(held)} classes, but {there}: both need all of them.")
        return _cuts(held, counts, rng.random(len(counts)))

    return _cut_classes("like", clients.num_clients, 1, draw_cuts, "more examples, or clients that hold more of them")


def _cut_classes(
    name: str,
    num_clients: int,
    min_examples: int,
    draw_cuts: Callable[[np.random.Generator, np.ndarray], np.ndarray],
    remedy: str,
) -> Partition:
    """Return the partition that shuffles each class and cuts it, drawn until all clients have enough examples.

    Args:
      draw_cuts: (generator, examples of each class [C]) -> int64 [C, K - 1], where to cut each class: see `_cuts`.
      remedy: what to use where no draw gives every client `min_examples`.
    """

    def assign(classes: list[np.ndarray], seed: int) -> list[np.ndarray]:
        counts = np.array([len(members) for members in classes])
        if num_clients * min_examples > counts.sum():
            need = f"{num_clients} clients of at least {min_examples} examples need {num_clients * min_examples}"
            raise InvalidArgument(f"{need}, but there are {counts.sum()}: use fewer clients or a smaller min_examples.")
        for draw in range(MAX_DRAWS):
            rng = generator(seed, name.partition(":")[0], draw)
            cuts = draw_cuts(rng, counts)
            sizes = np.diff(cuts, prepend=0, append=counts[:, None]).sum(axis=0)
            if sizes.min() >= min_examples:
                split = [np.split(rng.permutation(members), cut) for members, cut in zip(classes, cuts)]
                return [np.concatenate(shards) for shards in zip(*split)]
        lacking = "no data" if min_examples == 1 else f"fewer than {min_examples} examples"
        what = f"left a client with {lacking} in each of {MAX_DRAWS} draws: use {remedy}."
        raise InvalidArgument(f"The partition {name} over {num_clients} clients {what}")

    return Partition(name, num_clients, assign)


def _cuts(weights: np.ndarray, counts: np.ndarray, shifts: np.ndarray | float = 0.0) -> np.ndarray:
    """Return where to cut each class so that its clients get shares of its examples in proportion to their weights.

    Args:
      weights: [C, K], not negative, and in no class all zero.
      counts: [C], the examples of each class.
      shifts: [C] in [0, 1), what is added to the places before they are rounded down. Drawn uniformly, they leave
        each client's expected number of examples as it was before rounding.
    """
    ends = np.cumsum(weights, axis=1)
    # By their own sum: a sum just below one would leave an example to a last client of weight zero.
    places = ends[:, :-1] / ends[:, -1:] * counts[:, None] + np.reshape(shifts, [-1, 1])
    return np.minimum(places.astype(np.int64), counts[:, None])  # a shift just below one can round up to one


def check_alpha(alpha: float, name: str = "alpha") -> float:
    """Return a concentration; raise InvalidArgument for one that is not a finite number above 0."""
    # Beyond 1e100 the gamma draws behind a Dirichlet sample overflow or lose all their digits.
    return check_number(alpha, name, within=(0.0, 1e100))
