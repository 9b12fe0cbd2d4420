"""The Pachinko allocation: equal sizes, groups of classes, and what it refuses."""

import numpy as np
import pytest

from tfp_bfl import data
from tfp_bfl.data.equal_partitions import GROUPS, pachinko
from tfp_bfl.errors import InvalidArgument

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 100))
TWO = (0, 0, 0, 1, 1, 1)


def counts(parts, labels=LABELS):
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize(("clients", "each"), [(7, None), (7, 50), (10, 60)])
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 100.0])
def test_clients_are_disjoint_and_of_equal_size(clients, each, alpha):
    parts = pachinko(clients, alpha, groups=TWO, examples_per_client=each)(LABELS, seed=1)
    assert [len(part) for part in parts] == [each or 600 // clients] * clients
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used) and used.min() >= 0 and used.max() < 600
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)


def test_a_tiny_alpha_gives_each_client_one_group_and_a_large_beta_its_classes_alike():
    """Of 8 clients of 30 examples no group runs out, whoever takes it."""
    table = counts(pachinko(8, 1e-4, 1e6, groups=TWO, examples_per_client=30)(LABELS, seed=2))
    by_group = np.stack([table[:, :3].sum(1), table[:, 3:].sum(1)], 1)
    assert np.all(by_group.max(1) == 30) and len(np.unique(by_group.argmax(1))) == 2
    own = np.where(by_group.argmax(1)[:, np.newaxis] == 0, table[:, :3], table[:, 3:])
    assert own.min() >= 1


def test_a_tiny_beta_gives_one_class_of_a_group():
    table = counts(pachinko(4, 1e-4, 1e-4, groups=TWO, examples_per_client=20)(LABELS, seed=3))
    assert np.all(np.sort(table, 1)[:, -1] == 20)


def test_a_function_of_the_seed():
    partition = pachinko(5, 0.5, groups=TWO)
    first, again, other = (partition(LABELS, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


def test_known_groups():
    """CIFAR-100 has 20 superclasses of five classes; CIFAR-10 four vehicles and six animals."""
    assert np.bincount(GROUPS[100]).tolist() == [5] * 20
    assert np.bincount(GROUPS[10]).tolist() == [4, 6]
    parts = data.parse_partition("pachinko:0.0001", 5)(np.repeat(np.arange(10), 500), seed=0)
    assert sum(map(len, parts)) == 5000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pachinko(0, 1.0), "num_clients is 0"),
        (lambda: pachinko(2, 0.0), "alpha is 0.0"),
        (lambda: pachinko(2, 1.0, -1.0), "beta is -1.0"),
        (lambda: pachinko(2, 1.0, examples_per_client=0), "examples_per_client is 0"),
        (lambda: pachinko(2, 1.0)(LABELS, seed=0), "needs the group of each of the 6 classes"),
        (lambda: pachinko(2, 1.0, groups=(0, 1))(LABELS, seed=0), "needs the group of each of the 6 classes"),
        (lambda: pachinko(7, 1.0, groups=TWO, examples_per_client=100)(LABELS, seed=0), "need 700, but there are 600"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()
