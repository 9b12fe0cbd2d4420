"""Clients: their examples, shards and splits, and the cohorts of rounds."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import data


@pytest.fixture(scope="module")
def clients():
    return data.load("digits").partition(data.dirichlet(5, 0.5), seed=0)


def test_dataset_is_one_element_with_all_examples(clients):
    for k in range(clients.num_clients):
        (element,) = clients.dataset(k)
        assert isinstance(element, data.ClientExamples)
        part = clients.indices[k]
        np.testing.assert_array_equal(element.features, clients.source.features[part])
        np.testing.assert_array_equal(element.labels, clients.source.labels[part])
        np.testing.assert_array_equal(element.client, np.full(len(part), k))
        assert element.features.dtype == tf.uint8
        assert element.labels.dtype == element.client.dtype == tf.int32


def test_dataset_of_several_clients_has_them_in_that_order(clients):
    for chosen in ((2, 0), (0, 1, 2, 3, 4), (4, 3, 4)):
        elements = list(clients.dataset(*chosen))
        assert len(elements) == len(chosen) == clients.dataset(*chosen).cardinality()
        for k, element in zip(chosen, elements):
            for actual, wanted in zip(element, clients.examples(k)):
                np.testing.assert_array_equal(actual, wanted)
                assert actual.dtype == wanted.dtype
        assert clients.dataset(*chosen).element_spec == clients.element_spec
    assert clients.element_spec.features == tf.TensorSpec((None, 8, 8, 1), tf.uint8) and len(set(clients.sizes)) > 1
    table = data.load("breast_cancer").partition(data.iid(3), seed=0)
    assert next(iter(table.dataset(0))).features.dtype == tf.float32


def members(dataset):
    """The client numbers of a dataset, and its number of examples."""
    elements = list(dataset)
    assert all(len(set(element.client.numpy())) == 1 for element in elements)
    return [int(element.client[0]) for element in elements], sum(len(element.labels) for element in elements)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("chosen", [range(5), [3, 0, 4], (1,), np.array([4, 2])], ids=["all", "some", "one", "array"])
def test_shards_hold_every_chosen_client_once(clients, most, chosen):
    parts = [members(shard)[0] for shard in clients.shards(chosen, most)]
    assert len(parts) == min(most, len(chosen)) and all(parts)
    assert sorted(k for part in parts for k in part) == sorted(chosen)


def test_shards_take_an_iterator(clients):
    (only,) = clients.shards(iter([3, 1]), 4)[:1]
    assert len(clients.shards((k for k in (3, 1)), 4)) == 2 and members(only)[0] in ([3], [1])


def sized(*sizes):
    ends = np.cumsum(sizes)
    return data.Clients(data.load("digits"), [np.arange(end - n, end) for n, end in zip(sizes, ends)])


@pytest.mark.parametrize(
    ("sizes", "most", "parts"),
    [
        ((4, 1, 3, 2), 2, [[0, 1], [2, 3]]),
        ((1, 1, 1, 9, 2), 2, [[3], [4, 0, 1, 2]]),
        ((5, 5, 5, 5), 2, [[0, 2], [1, 3]]),
        ((2, 7, 3), 3, [[1], [2], [0]]),
        ((2, 7, 3), 1, [[1, 2, 0]]),
    ],
)
def test_shards_share_the_examples_out_the_largest_client_first(sizes, most, parts):
    clients = sized(*sizes)
    found = [members(shard)[0] for shard in clients.shards(range(len(sizes)), most)]
    assert found == parts
    assert [members(shard)[0] for shard in clients.shards(reversed(range(len(sizes))), most)] == parts


@pytest.mark.parametrize("most", [2, 3, 7])
def test_shards_are_of_about_one_size(most):
    """Without its last client, its smallest, none has more examples than the smallest shard."""
    sizes = np.random.default_rng(most).integers(1, 40, 20)
    found = [members(shard) for shard in sized(*sizes).shards(range(20), most)]
    loads = [load for _, load in found]
    assert sum(loads) == sizes.sum()
    for part, load in found:
        assert (np.diff(sizes[part]) <= 0).all() and load - sizes[part[-1]] <= min(loads)


def test_sizes_and_label_counts(clients):
    table = clients.label_counts()
    assert table.shape == (5, 10)
    np.testing.assert_array_equal(table.sum(1), clients.sizes)
    np.testing.assert_array_equal(table.sum(0), np.bincount(clients.source.labels))


def test_limit_is_seeded_and_keeps_smaller_clients(clients):
    most = int(np.median(clients.sizes))
    few = clients.limit(most, seed=0)
    np.testing.assert_array_equal(few.sizes, np.minimum(clients.sizes, most))
    for part, whole in zip(few.indices, clients.indices):
        assert set(part) <= set(whole) and (np.diff(part) > 0).all()
    again, other = clients.limit(most, seed=0), clients.limit(most, seed=1)
    assert all(map(np.array_equal, few.indices, again.indices))
    assert not all(map(np.array_equal, few.indices, other.indices))


def test_split_keeps_the_first_apart_from_the_others(clients):
    first, others = clients.split(1)
    assert (first.num_clients, others.num_clients) == (1, clients.num_clients - 1)
    np.testing.assert_array_equal(others.indices[0], clients.indices[1])


def test_describe_is_a_table(clients):
    lines = clients.describe().splitlines()
    assert len(lines) == 7 and len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["client", *"0123456789", "all"]
    assert lines[-1].split()[-1] == str(clients.source.num_examples)
    many = clients.source.partition(data.iid(50), seed=0).describe().splitlines()
    assert len(many) == 23 and many[-2].split()[0] == "..."


@pytest.mark.parametrize("name", ["features", "labels"])
def test_the_description_changes_with_each_feature_and_label(clients, name):
    changed = np.array(getattr(clients.source, name))
    changed.flat[-1] = changed.flat[0] if changed.flat[0] != changed.flat[-1] else changed.flat[-1] + 1
    other = data.Clients(dataclasses.replace(clients.source, **{name: changed}), clients.indices)
    assert other.description != clients.description
    same = data.Clients(dataclasses.replace(clients.source, **{name: changed.copy()}), clients.indices)
    assert other.description == same.description


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[0, 1], []], "Client 1 has no examples, but every client must have at least one."),
        ([], "indices is empty"),
        ([[0], [10**6]], "Client 1 has an index outside 0 to 1437"),
        ([[-1]], "Client 0 has an index outside"),
        ([[0.5]], "Client 0 has indices of type float64"),
    ],
)
def test_bad_indices_are_refused(indices, message):
    refuses(message, data.Clients, data.load("digits"), indices)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.dataset(5), "There is no client 5: clients are numbered 0 to 4"),
        (lambda c: c.dataset(-1), "There is no client -1"),
        (lambda c: c.dataset(1, 9), "There is no client 9"),
        (lambda c: c.dataset(), "A dataset needs at least one client"),
        (lambda c: c.limit(0, seed=0), "examples_per_client is 0"),
        (lambda c: c.split(0), "at least 1 and below"),
        (lambda c: c.split(10**6), "at least 1 and below"),
        *[(lambda c, n=n: c.shards([0, 1], n), f"most is {n}, but must be an integer") for n in (0, -1, 1.5)],
        (lambda c: c.shards([0, 5], 2), "There is no client 5: clients are numbered 0 to 4"),
        (lambda c: c.shards([-1], 2), "There is no client -1"),
        (lambda c: c.shards([], 2), "at least one client"),
    ],
)
def test_bad_arguments_are_refused(clients, call, message):
    refuses(message, call, clients)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_set_aside_takes_a_share_of_all_examples_and_leaves_the_clients_the_rest(clients, share):
    server, rest = clients.set_aside(share, seed=3)
    everything = np.concatenate(clients.indices)
    assert server.num_clients == 1 and rest.num_clients == clients.num_clients
    assert len(server.indices[0]) == round(share * len(everything))
    parts = [server.indices[0], *rest.indices]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(everything))
    for before, after in zip(clients.indices, rest.indices):
        np.testing.assert_array_equal(after, before[np.isin(before, after)])
    again, other = clients.set_aside(share, seed=3)[0], clients.set_aside(share, seed=4)[0]
    np.testing.assert_array_equal(again.indices[0], server.indices[0])
    assert not np.array_equal(other.indices[0], server.indices[0])


def test_set_aside_refuses_what_leaves_nothing():
    few = data.Clients(data.load("digits"), [np.arange(100), np.arange(100, 102)])
    refuses(r"0\.9 of the examples leaves client 1 none of its 2: set less", few.set_aside, 0.9, seed=0)
    for share in (0, 1, -0.1, float("nan")):
        refuses("but must be above 0 and below 1", few.set_aside, share, seed=0)
    refuses("is none: set more aside", few.set_aside, 0.001, seed=0)


def test_cohort_is_sorted_distinct_and_a_function_of_seed_and_round():
    draws = [data.cohort(100, 10, r, seed=5) for r in range(20)]
    for draw in draws:
        assert draw.dtype == np.int64 and draw.shape == (10,) and (np.diff(draw) > 0).all()
    assert len({tuple(d) for d in draws}) == 20
    np.testing.assert_array_equal(draws[7], data.cohort(100, 10, 7, seed=5))
    assert tuple(draws[7]) != tuple(data.cohort(100, 10, 7, seed=6))
    for size in (None, 10):
        np.testing.assert_array_equal(data.cohort(10, size, 3, seed=0), np.arange(10))


@pytest.mark.statistical
def test_every_client_is_as_likely():
    """Appearances are Binomial(2000, 0.3); seeded, bound at 4.5 sd: a fresh seed fails below 1e-4."""
    seen = np.bincount(np.concatenate([data.cohort(10, 3, r, seed=0) for r in range(2000)]))
    assert np.abs(seen - 600).max() < 4.5 * np.sqrt(2000 * 0.3 * 0.7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11, 0, 0), "cohort_size is 11, but must be at most the number of clients, 10."),
        ((10, 0, 0, 0), "cohort_size is 0"),
        ((0, None, 0, 0), "num_clients is 0"),
        ((10, 2, -1, 0), "round_number is -1"),
        ((10, 2, 0, None), "seed is None"),
        *(((10, 2, 1, 0, 0, popularity), "popularity is") for popularity in (0.0, -1.0, float("nan"))),
    ],
)
def test_bad_input(arguments, message):
    refuses(message, data.cohort, *arguments)


def appearances(popularity, seed=0):
    drawn = [data.cohort(20, 3, r, seed, popularity=popularity) for r in range(400)]
    return np.bincount(np.concatenate(drawn), minlength=20)


def test_popular_clients_are_drawn_more_often_in_all_rounds():
    assert appearances(0.1).std() > 3 * appearances(1e6).std()
    assert np.corrcoef(appearances(0.3), appearances(0.3, seed=1))[0, 1] < 0.9
    draws = [data.cohort(50, 10, 4, 7, popularity=0.05) for _ in range(2)]
    assert (np.diff(draws[0]) > 0).all() and len(draws[0]) == 10
    np.testing.assert_array_equal(*draws)
