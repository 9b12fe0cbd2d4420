import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import data
from tfp_bfl.errors import InvalidArgument


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


def test_element_spec_is_the_same_for_all_clients_and_has_no_size(clients):
    specs = {clients.dataset(k).element_spec for k in range(clients.num_clients)}
    assert specs == {clients.element_spec}
    assert clients.element_spec.features == tf.TensorSpec((None, 8, 8, 1), tf.uint8)
    assert len(set(clients.sizes)) > 1


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


def test_describe_is_a_table(clients):
    lines = clients.describe().splitlines()
    assert len(lines) == 7 and len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["client", *"0123456789", "all"]
    assert lines[-1].split()[-1] == str(clients.source.num_examples)
    many = clients.source.partition(data.iid(50), seed=0).describe().splitlines()
    assert len(many) == 23 and many[-2].split()[0] == "..."


def test_tables_stay_float32():
    clients = data.load("breast_cancer").partition(data.iid(3), seed=0)
    (element,) = clients.dataset(0)
    assert element.features.dtype == tf.float32 and element.features.shape[1:] == (30,)


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
    with pytest.raises(InvalidArgument, match=message):
        data.Clients(data.load("digits"), indices)


def test_bad_arguments_are_refused(clients):
    with pytest.raises(InvalidArgument, match="There is no client 5: clients are numbered 0 to 4"):
        clients.dataset(5)
    with pytest.raises(InvalidArgument, match="There is no client -1"):
        clients.dataset(-1)
    with pytest.raises(InvalidArgument, match="examples_per_client is 0"):
        clients.limit(0, seed=0)
