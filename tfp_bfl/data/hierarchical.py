"""Partitions by groups of classes: the Pachinko allocation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfp_bfl.data._random import generator
from tfp_bfl.data.partitions import Partition, check_alpha, draw_labels
from tfp_bfl.errors import InvalidArgument, check_count

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

    Raises:
      InvalidArgument: an argument outside its range; on call: groups that are not one a class, or too few examples.

    Source: Reddi et al. 2021 (arXiv:2003.00295), appendix C.1; Li & McCallum 2006.

    Example:
      >>> train = bfl.data.load("digits")
      >>> clients = train.partition(bfl.data.pachinko(num_clients=3, alpha=0.1), seed=0)
      >>> clients.sizes
      array([479, 479, 479])
    """
    num_clients = check_count(num_clients, "num_clients")
    alpha, beta = check_alpha(alpha), check_alpha(beta, "beta")
    if examples_per_client is not None:
        check_count(examples_per_client, "examples_per_client")

    def assign(classes: list[np.ndarray], seed: int) -> list[np.ndarray]:
        group_of = np.asarray(groups if groups is not None else GROUPS.get(len(classes), ()))
        if group_of.shape != (len(classes),):
            raise InvalidArgument(
                f"pachinko needs the group of each of the {len(classes)} classes: give groups with one number a class."
            )
        members = [np.flatnonzero(group_of == group) for group in np.unique(group_of)]
        rng = generator(seed, "pachinko")
        shuffled = [rng.permutation(examples) for examples in classes]
        left = np.array([len(examples) for examples in classes])
        size = examples_per_client or int(left.sum()) // num_clients
        if size * num_clients > left.sum():
            raise InvalidArgument(
                f"{num_clients} clients of {size} examples each need {size * num_clients}, but there are {left.sum()}."
            )
        parts: list[np.ndarray] = [np.empty(0, np.int64)] * num_clients
        for client in rng.permutation(num_clients):
            counts = np.zeros_like(left)
            in_groups = draw_labels(np.array([left[subset].sum() for subset in members]), size, alpha, rng)
            for subset, number in zip(members, in_groups):
                counts[subset] = draw_labels(left[subset], number, beta, rng)
            parts[client] = np.concatenate([x[n - count : n] for x, n, count in zip(shuffled, left, counts)])
            left = left - counts
        return parts

    return Partition(f"pachinko:{alpha:g}", num_clients, assign)
