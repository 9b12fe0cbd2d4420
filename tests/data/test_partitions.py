import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import refuses
from tfp_bfl import data
from tfp_bfl.data import partitions
from tfp_bfl.data.equal_partitions import GROUPS, draw_labels
from tfp_bfl.data.partitions import _cuts, generator

CIFAR10_LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
ALL = [
    data.iid(10),
    data.label_skew(10, 2),
    data.dirichlet(10, 0.5),
    data.lda(10, 0.1),
    data.noniid_datasets(10),
    data.pachinko(10, 0.5),
]
by_name = pytest.mark.parametrize("partition", ALL, ids=lambda p: p.name)


def counts(parts, labels):
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def check_contract(parts, partition, num_examples):
    assert len(parts) == partition.num_clients
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0 and used.max() < num_examples
    for part in parts:
        assert part.dtype == np.int64 and len(part) > 0 and (np.diff(part) > 0).all()


@by_name
def test_parts_are_sorted_disjoint_and_cover(partition):
    parts = partition(CIFAR10_LABELS, seed=0)
    check_contract(parts, partition, 50000)
    assert sum(map(len, parts)) == 50000


@by_name
def test_seed_decides_the_partition(partition):
    first, again, other = (partition(CIFAR10_LABELS, seed=s) for s in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


GOLDEN = [
    (data.iid(3), [[3, 4, 7, 11], [0, 8, 9, 10], [1, 2, 5, 6]]),
    (data.label_skew(3, 2), [[1, 4, 6, 9], [0, 3, 8, 11], [2, 5, 7, 10]]),
    (data.dirichlet(3, 1.0), [[3], [0, 1, 4, 9, 10, 11], [2, 5, 6, 7, 8]]),
    (data.lda(3, 0.5), [[2, 5, 8, 11], [0, 1, 7, 9], [3, 4, 6, 10]]),
    (data.noniid_datasets(3), [[1, 3, 9], [0, 4, 7, 10, 11], [2, 5, 6, 8]]),
]


def test_partition_is_the_same_on_every_machine():
    for partition, wanted in GOLDEN:
        assert [part.tolist() for part in partition(np.arange(12) % 3, seed=7)] == wanted
    sizes = [len(p) for p in data.iid(7)(np.zeros(100, int), seed=0)]
    assert sum(sizes) == 100 and set(sizes) == {14, 15}


def test_label_skew_of_cifar10_is_20_shards_of_2500():
    table = counts(data.label_skew(10, 2)(CIFAR10_LABELS, seed=0), CIFAR10_LABELS)
    assert set(np.unique(table)) == {0, 2500}
    np.testing.assert_array_equal((table > 0).sum(1), np.full(10, 2))
    np.testing.assert_array_equal((table > 0).sum(0), np.full(10, 2))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**32))
def test_label_skew_spreads_classes_evenly(num_clients, per_client, more_classes, seed):
    num_classes = per_client + more_classes
    labels = np.arange(30 * num_classes) % num_classes
    partition = data.label_skew(num_clients, per_client)
    parts = partition(labels, seed)
    check_contract(parts, partition, len(labels))
    held = counts(parts, labels) > 0
    assert (held.sum(1) == per_client).all()
    assert np.ptp(held.sum(0)) <= 1
    if num_clients * per_client >= num_classes:
        assert held.sum(0).min() >= 1 and sum(map(len, parts)) == len(labels)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.floats(0.5, 100), st.integers(1, 3), st.integers(0, 2**32))
def test_dirichlet_covers_and_keeps_the_minimum(num_clients, alpha, min_examples, seed):
    labels = np.arange(300) % 10
    partition = data.dirichlet(num_clients, alpha, min_examples)
    parts = partition(labels, seed)
    check_contract(parts, partition, 300)
    assert sum(map(len, parts)) == 300 and min(map(len, parts)) >= min_examples


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.floats(1e-6, 1e6), st.integers(0, 2**32))
def test_lda_clients_are_of_equal_size(num_clients, alpha, seed):
    labels = np.arange(307) % 7
    partition = data.lda(num_clients, alpha)
    parts = partition(labels, seed)
    check_contract(parts, partition, 307)
    assert {len(p) for p in parts} == {307 // num_clients}


@pytest.mark.statistical
@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(alpha):
    """Share of one client in a class: mean 1/K, variance (K-1) / (K^2 (K alpha + 1)).

    The sample of 20 x 50 classes is seeded; each bound is 4 standard errors, so that a fresh seed
    fails with probability below 1e-3.
    """
    num_clients, classes, seeds = 5, 50, 20
    labels = np.repeat(np.arange(classes), 1000)
    partition = data.dirichlet(num_clients, alpha)
    share = np.stack([counts(partition(labels, s), labels)[0] / 1000 for s in range(seeds)]).ravel()
    n = len(share)
    variance = (num_clients - 1) / num_clients**2 / (num_clients * alpha + 1)
    squares = (share - 1 / num_clients) ** 2
    assert abs(share.mean() - 1 / num_clients) < 4 * np.sqrt(variance / n) + 1e-3
    assert abs(squares.mean() - variance) < 4 * squares.std() / np.sqrt(n) + 1e-3


@pytest.mark.statistical
@pytest.mark.parametrize("alpha", [0.1, 2.0])
def test_lda_labels_are_dirichlet_multinomial_while_classes_last(alpha):
    """A class count has mean n/C and variance n (C-1) / C^2 (n + C alpha) / (1 + C alpha).

    Seeded; each bound is 4 standard errors, so that a fresh seed fails with probability below 1e-3.
    """
    num_classes, size, draws = 5, 50, 4000
    left = np.full(num_classes, size)  # a class can't run out within one client
    rng = np.random.default_rng(0)
    count = np.stack([draw_labels(left, size, alpha, rng) for _ in range(draws)])[:, 0]
    total = num_classes * alpha
    variance = size * (num_classes - 1) / num_classes**2 * (size + total) / (1 + total)
    squares = (count - size / num_classes) ** 2
    assert abs(count.mean() - size / num_classes) < 4 * np.sqrt(variance / draws)
    assert abs(squares.mean() - variance) < 4 * squares.std() / np.sqrt(draws)


@pytest.mark.parametrize("alpha", [1e-300, 0.1, 10.0])
def test_lda_turns_to_other_classes_once_one_runs_out(alpha):
    rng = np.random.default_rng(0)
    left = np.array([0, 3, 5, 2])
    for _ in range(50):
        counts_ = draw_labels(left, 9, alpha, rng)
        assert counts_.sum() == 9 and (counts_ <= left).all()


@pytest.mark.parametrize("make", [data.dirichlet, data.lda], ids=["dirichlet", "lda"])
def test_large_alpha_is_nearly_iid_and_small_alpha_is_skewed(make):
    even = counts(make(10, 1e6)(CIFAR10_LABELS, seed=0), CIFAR10_LABELS)
    # LDA's labels are multinomial (sd 21), and its last client has what the other nine left (sd 64).
    assert np.median(np.abs(even - 500)) < 30 and np.abs(even - 500).max() < 300
    skewed = counts(make(10, 0.1)(CIFAR10_LABELS, seed=0), CIFAR10_LABELS)
    assert np.median(skewed.max(1) / skewed.sum(1)) > 0.4


@pytest.mark.parametrize(
    ("make", "count", "least"),
    [
        (lambda **least: data.dirichlet(6, 0.5, **least), 60, 4),
        (lambda **least: data.noniid_datasets(6, **least), 300, 15),
    ],
)
def test_partitions_draw_again_until_every_client_has_data(make, count, least):
    smallest = [
        min(len(part) for seed in range(20) for part in partition(np.arange(count) % 3, seed))
        for partition in (make(min_examples=least), make())
    ]
    assert smallest[0] >= least > smallest[1]


def test_a_client_of_weight_zero_gets_nothing():
    weights = np.array([[0.1] * 10 + [0.0]])
    assert np.cumsum(weights)[-1] < 1
    for shift in (0.0, np.nextafter(1.0, 0.0)):
        assert _cuts(weights, np.array([100]), shift)[0, -1] == 100


def test_cuts_with_uniform_shifts_keep_the_expected_numbers():
    weights = np.array([0.05, 0.3, 0.0, 0.65])
    shifts = (np.arange(1000) + 0.5) / 1000
    cuts = _cuts(np.tile(weights, (1000, 1)), np.full(1000, 7), shifts)
    received = np.diff(cuts, prepend=0, append=7)
    assert np.abs(received - 7 * weights).max() < 1 and (received[:, 2] == 0).all()
    np.testing.assert_allclose(received.mean(0), 7 * weights, atol=1e-3)


class Fixed:
    """A generator whose sizes are 1/4, 1/2 and 3/4, and that rounds to the nearest."""

    def __init__(self, *_):
        self.uniform = iter([np.array([0.25, 0.75, 0.5]), np.full(3, 0.5)])

    def random(self, _):
        return next(self.uniform)

    def permutation(self, members):
        return members


@pytest.mark.parametrize(
    ("other_interest", "sizes", "expected"),
    [
        # Shares by hand: 1/6, 1/3 and 1/2 of each class.
        (1.0, (12, 6, 18), [[2, 1, 3], [4, 2, 6], [6, 3, 9]]),
        (0.0, (12, 6, 18), [[12, 0, 0], [0, 6, 0], [0, 0, 18]]),
        # Of class 0 2 : 2 : 3, of class 1 1 : 4 : 3, of class 2 1 : 2 : 6.
        (0.5, (7, 8, 9), [[2, 1, 1], [2, 4, 2], [3, 3, 6]]),
    ],
)
def test_noniid_datasets_by_hand(monkeypatch, other_interest, sizes, expected):
    monkeypatch.setattr(partitions, "generator", Fixed)
    labels = np.repeat(np.arange(3), sizes)
    np.testing.assert_array_equal(counts(data.noniid_datasets(3, other_interest)(labels, 0), labels), expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 25), st.floats(0, 1, exclude_min=True), st.integers(1, 12), st.integers(0, 2**32))
def test_noniid_datasets_follow_the_equation(num_clients, other_interest, num_classes, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), 1000 + np.arange(num_classes)))
    partition = data.noniid_datasets(num_clients, other_interest)
    parts = partition(labels, seed)
    check_contract(parts, partition, len(labels))
    table = counts(parts, labels)
    np.testing.assert_array_equal(table.sum(0), 1000 + np.arange(num_classes))

    def expected(draw):
        size = np.sort(1 - generator(seed, "noniid_datasets", draw).random(num_clients))
        own = np.arange(num_clients)[:, None] % num_classes == np.arange(num_classes)
        weight = size[:, None] * np.where(own, 1, max(other_interest, 1e-200))
        return weight / weight.sum(0) * table.sum(0)

    # A draw in which somebody came away empty is followed by another.
    assert any((np.abs(table - expected(draw)) < 1 + 1e-9).all() for draw in range(10))


def test_noniid_datasets_without_much_interest_in_others():
    labels = CIFAR10_LABELS % 4
    table = counts(data.noniid_datasets(10, 0.0)(labels, seed=0), labels)
    np.testing.assert_array_equal(table > 0, np.arange(10)[:, None] % 4 == np.arange(4))
    labels = np.arange(100) % 10
    for other_interest in (5e-324, 1e-300, 0.25):  # Classes of which nobody has much interest are used.
        assert counts(data.noniid_datasets(3, other_interest)(labels, seed=0), labels).sum() == 100


def test_like_shares_out_test_data_as_the_clients_hold_the_training_data():
    source = data.Source("rows", "train", np.zeros((600, 1)), np.repeat([0, 1, 2], 200), ("a", "b", "c"))
    clients = source.partition(data.dirichlet(4, 0.5), seed=1)
    labels = np.repeat([0, 1, 2], [100, 50, 200])
    shards = data.like(clients)(labels, seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(350))
    expected = clients.label_counts() / clients.label_counts().sum(0) * [100, 50, 200]
    assert 0 < np.abs(counts(shards, labels) - expected).max() <= 1
    mean = np.mean([[len(part) for part in data.like(clients)(labels, seed)] for seed in range(200)], 0)
    np.testing.assert_allclose(mean, expected.sum(1), atol=0.35)  # 4.9 sd of three roundings' mean, at most.


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
def test_like_needs_the_same_classes(labels):
    source = data.Source("rows", "train", np.zeros((6, 1)), [0, 0, 0, 1, 1, 1], ("a", "b"))
    clients = data.Clients(source, [[0, 1], [2]] if len(set(labels)) > 1 else [[0, 3], [1, 4]])
    refuses("like partitions 2 classes", data.like(clients), np.array(labels), seed=0)


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 100))
TWO = (0, 0, 0, 1, 1, 1)


@pytest.mark.parametrize(("clients", "each"), [(7, None), (7, 50), (10, 60)])
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 100.0])
def test_clients_of_pachinko_are_disjoint_and_of_equal_size(clients, each, alpha):
    partition = data.pachinko(clients, alpha, groups=TWO, examples_per_client=each)
    parts = partition(LABELS, seed=1)
    assert [len(part) for part in parts] == [each or 600 // clients] * clients
    check_contract(parts, partition, 600)


def test_a_tiny_alpha_of_pachinko_gives_each_client_one_group_and_a_large_beta_its_classes_alike():
    """Draw 8 clients of 30 examples: no group of examples runs out."""
    table = counts(data.pachinko(8, 1e-4, 1e6, groups=TWO, examples_per_client=30)(LABELS, seed=2), LABELS)
    by_group = np.stack([table[:, :3].sum(1), table[:, 3:].sum(1)], 1)
    assert np.all(by_group.max(1) == 30) and len(np.unique(by_group.argmax(1))) == 2
    own = np.where(by_group.argmax(1)[:, np.newaxis] == 0, table[:, :3], table[:, 3:])
    assert own.min() >= 1
    # A tiny beta gives one class of a group.
    table = counts(data.pachinko(4, 1e-4, 1e-4, groups=TWO, examples_per_client=20)(LABELS, seed=3), LABELS)
    assert np.all(np.sort(table, 1)[:, -1] == 20)


def test_known_groups_of_classes():
    """CIFAR-100 has 20 superclasses of five classes; CIFAR-10 four vehicles and six animals."""
    assert np.bincount(GROUPS[100]).tolist() == [5] * 20
    assert np.bincount(GROUPS[10]).tolist() == [4, 6]
    parts = data.parse_partition("pachinko:0.0001", 5)(np.repeat(np.arange(10), 500), seed=0)
    assert sum(map(len, parts)) == 5000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.iid(0), "num_clients is 0, but must be an integer of at least 1."),
        (lambda: data.iid(2.5), "num_clients is 2.5, but must be an integer"),
        (lambda: data.iid(11)(np.arange(10), 0), "11 clients can't share 10 examples: use 10 or fewer."),
        (lambda: data.iid(2)(np.zeros(10), 0), "labels are float64"),
        (lambda: data.iid(2)(np.arange(10), -1), "seed is -1, but must be an integer of at least 0."),
        (lambda: data.label_skew(2, 0), "classes_per_client is 0"),
        (lambda: data.label_skew(2, 3)(np.arange(10) % 2, 0), "must be at most the 2 classes"),
        (lambda: data.label_skew(4, 2)(np.array([0, 0, 0, 1, 1]), 0), "a class of 3 examples to 4 clients"),
        *(
            (lambda x=x, make=make: make(2, x), f"alpha is {x!r}, but must be a finite number above 0.")
            for make in (data.dirichlet, data.lda)
            for x in (0.0, -1, float("nan"), float("inf"), "0.1")
        ),
        (lambda: data.dirichlet(5, 1.0, 3)(np.arange(14), 0), "5 clients of at least 3 examples need 15"),
        (lambda: data.dirichlet(50, 0.01)(np.arange(100) % 2, 0), "no data in each of 100 draws: use a larger"),
        (lambda: data.noniid_datasets(0), "num_clients is 0"),
        *(
            (lambda x=x: data.noniid_datasets(3, x), f"other_interest is {x!r}, but must be at least 0 and at most 1.")
            for x in (-0.1, 1.5, float("nan"), True, "0.25")
        ),
        (lambda: data.noniid_datasets(3, min_examples=0), "min_examples is 0"),
        (lambda: data.noniid_datasets(5, 0.25, 3)(np.arange(14), 0), "5 clients of at least 3 examples need 15"),
        (lambda: data.noniid_datasets(3, 0)(np.arange(100) % 10, 0), "leave 7 of the 10 classes to nobody"),
        (lambda: data.noniid_datasets(100)(np.arange(300) % 2, 0), "over 100 clients left a client with no data"),
        (lambda: data.noniid_datasets(9, 0.25, 10)(np.arange(90) % 2, 0), "fewer than 10 examples in each of 100"),
        (lambda: data.pachinko(0, 1.0), "num_clients is 0"),
        (lambda: data.pachinko(2, 0.0), "alpha is 0.0"),
        (lambda: data.pachinko(2, 1.0, -1.0), "beta is -1.0"),
        (lambda: data.pachinko(2, 1.0, examples_per_client=0), "examples_per_client is 0"),
        (lambda: data.pachinko(2, 1.0)(LABELS, seed=0), "needs the group of each of the 6 classes"),
        (lambda: data.pachinko(2, 1.0, groups=(0, 1))(LABELS, seed=0), "needs the group of each of the 6 classes"),
        (lambda: data.pachinko(7, 1.0, groups=TWO, examples_per_client=100)(LABELS, seed=0), "there are 600"),
        (lambda: data.parse_partition("noniid_datasets", 3), "lacks its other_interest: write noniid_datasets:OTHER_"),
        (lambda: data.parse_partition("dirchlet:0.5", 3), "did you mean 'dirichlet'?"),
        (lambda: data.parse_partition("dirichlet", 3), "lacks its alpha: write dirichlet:ALPHA."),
        (lambda: data.parse_partition("lda:", 3), "lacks its alpha"),
        (lambda: data.parse_partition("lda:much", 3), "'much', but must be lda:ALPHA with a number."),
        (lambda: data.parse_partition("label_skew:1.5", 3), "with a whole number"),
        (lambda: data.parse_partition("iid:3", 3), "has an argument, but iid takes none"),
        (lambda: data.parse_partition("lda:0", 3), "alpha is 0.0"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    refuses(re.escape(message), call)


@by_name
def test_parse_reads_the_name_of_every_partition(partition):
    again = data.parse_partition(partition.name, partition.num_clients)
    assert (again.name, again.num_clients) == (partition.name, partition.num_clients)
    a, b = again(CIFAR10_LABELS, 0), partition(CIFAR10_LABELS, 0)
    assert all(map(np.array_equal, a, b))
