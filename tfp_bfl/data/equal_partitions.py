"""Partitions over clients of equal size, which draw classes one client after another; and all partitions by name."""

from collections.abc import Callable, Sequence

import numpy as np

from tfp_bfl import named
from tfp_bfl.data import partitions
from tfp_bfl.data.partitions import Partition, check_alpha, generator
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.named import WithArgument

# The group of each class, by the number of classes: CIFAR-100's 20 superclasses; CIFAR-10's vehicles and animals.
GROUPS = {
    100: (
        *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7),
        *(6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10),
        *(16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16),
        *(12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
    ),
    10: (0, 0, 1, 1, 1, 1, 1, 1, 0, 0),
}


def lda(num_clients: int, alpha: float) -> Partition:
    """Give clients of equal size Dirichlet class proportions (Hsu et al. 2019, section 2).

        q_k ~ Dir(alpha 1_C) for each client k;  its floor(N / K) examples have labels ~ Categorical(q_k)

    without replacement: once a class runs out, q_k is renormalised over the classes that are left. N mod K
    examples stay unused. `alpha` is the concentration of each class: Hsu et al. write Dir(alpha p) with p
    the prior over classes, so that their alpha is C times this one if p is uniform. Later clients'
    proportions are distorted most, as classes run out; the clients are therefore served in random order.

    Source: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", arXiv:1909.06335.

    Example:
      >>> train = bfl.data.load("digits")
      >>> clients = train.partition(bfl.data.lda(num_clients=3, alpha=0.5), seed=0)
      >>> clients.sizes
      array([479, 479, 479])
    """
    alpha = check_alpha(alpha)
    return _drawn(f"lda:{alpha:g}", num_clients, None, lambda left, size, rng: draw_labels(left, size, alpha, rng))


def pachinko(
    num_clients: int,
    alpha: float,
    beta: float = 10.0,
    groups: Sequence[int] | None = None,
    examples_per_client: int | None = None,
) -> Partition:
    """Give clients of equal size groups of classes by one Dirichlet draw, and classes in each group by another.

        q_k ~ Dir(alpha 1_G) over groups,   r_kg ~ Dir(beta 1) over the classes of group g
        an example of client k: group ~ Categorical(q_k), class ~ Categorical(r_kg)

    without replacement: a class that runs out is left to the others of its group, a group to the other groups, with
    their probabilities renormalised. Clients are served in random order; what is left over stays unused.

    Args:
      num_clients: K.
      alpha, beta: concentrations of each group, and of each class within its group.
      groups: the group of each class [C]; None for CIFAR-100's superclasses, and CIFAR-10's vehicles and animals.
      examples_per_client: None for floor(N / K).

    Source: Reddi et al. 2021 (arXiv:2003.00295), appendix C.1; Li & McCallum 2006.

    Example:
      >>> train = bfl.data.load("digits")
      >>> clients = train.partition(bfl.data.pachinko(num_clients=3, alpha=0.1), seed=0)
      >>> clients.sizes
      array([479, 479, 479])
    """
    alpha, beta = check_alpha(alpha), check_alpha(beta, "beta")
    if examples_per_client is not None:
        check_count(examples_per_client, "examples_per_client")

    def draw(left: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        group_of, counts = np.asarray(groups if groups is not None else GROUPS.get(len(left), ())), np.zeros_like(left)
        if group_of.shape != left.shape:
            raise InvalidArgument(f"pachinko needs the group of each of the {len(left)} classes: give groups [C].")
        members = [np.flatnonzero(group_of == group) for group in np.unique(group_of)]
        in_groups = draw_labels(np.array([left[subset].sum() for subset in members]), size, alpha, rng)
        for subset, number in zip(members, in_groups):
            counts[subset] = draw_labels(left[subset], number, beta, rng)
        return counts

    return _drawn(f"pachinko:{alpha:g}", num_clients, examples_per_client, draw)


def _drawn(
    name: str,
    num_clients: int,
    examples_per_client: int | None,
    draw: Callable[[np.ndarray, int, np.random.Generator], np.ndarray],
) -> Partition:
    """Return the partition over clients of one size, served in random order.

    `draw` maps (examples of each class that are left [C], size, generator) to those of a client [C].
    """
    num_clients = check_count(num_clients, "num_clients")

    def assign(classes: list[np.ndarray], seed: int) -> list[np.ndarray]:
        rng = generator(seed, name.partition(":")[0])
        shuffled = [rng.permutation(members) for members in classes]
        left = np.array([len(members) for members in classes])
        size = examples_per_client or int(left.sum()) // num_clients
        if size * num_clients > left.sum():
            raise InvalidArgument(f"{num_clients} clients need {size} examples each, but there are {left.sum()}.")
        parts: list[np.ndarray] = [np.empty(0, np.int64)] * num_clients
        for client in rng.permutation(num_clients):
            counts = draw(left, size, rng)
            parts[client] = np.concatenate([x[n - count : n] for x, n, count in zip(shuffled, left, counts)])
            left = left - counts
        return parts

    return Partition(name, num_clients, assign)


def draw_labels(left: np.ndarray, size: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Draw how many examples of each class a client gets, with `left` [C] examples to be had."""
    share = rng.dirichlet(np.full(len(left), alpha))
    counts = np.zeros_like(left)
    # Drawing all, cutting at what is left and drawing the shortfall from the other classes has the
    # distribution of drawing one by one: draws of an exhausted class are rejected either way.
    while (short := size - counts.sum()) > 0:
        open_classes = counts < left
        share = np.where(open_classes, share, 0.0)
        if share.sum() <= 0.0:  # a small alpha puts all weight on classes that ran out
            share[open_classes] = rng.dirichlet(np.full(open_classes.sum(), alpha))
        share = share / share.sum()
        counts = np.minimum(counts + rng.multinomial(short, share), left)
    return counts


# Who holds what is in the data themselves.
GIVEN = "given"

# A new partition is one more line here.
PARTITIONS: named.Table = {
    "given": partitions.given,
    "iid": partitions.iid,
    "label_skew": WithArgument(partitions.label_skew, "classes_per_client", int),
    "dirichlet": WithArgument(partitions.dirichlet, "alpha"),
    "lda": WithArgument(lda, "alpha"),
    "pachinko": WithArgument(pachinko, "alpha"),
    "noniid_datasets": WithArgument(partitions.noniid_datasets, "other_interest"),
}


def parse_partition(text: str, num_clients: int) -> Partition:
    """Return the partition that text names, such as "iid" or "dirichlet:0.5": see `partition_forms`.

    Example:
      >>> train = bfl.data.load("digits")
      >>> train.partition(bfl.data.parse_partition("dirichlet:0.5", num_clients=3), seed=0).sizes
      array([439, 386, 613])
    """
    return named.parse(PARTITIONS, text, "partition")(num_clients)


def partition_forms() -> list[str]:
    """Return the form of each partition's name, such as "dirichlet:ALPHA".

    Example:
      >>> bfl.data.partition_forms()[:3]
      ['given', 'iid', 'label_skew:CLASSES_PER_CLIENT']
    """
    return named.forms(PARTITIONS)
