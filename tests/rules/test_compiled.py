"""Large stacks are pooled in one compiled pass: the same results and the same errors as without."""

import importlib
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import rules
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules import Rule

from .forms import CONTRACT
from .reference import expected, random_case
from .test_robust import INF, NAN, TELLING

# The function hides the module of the same name.
MODULE = importlib.import_module("tfp_bfl.rules.aggregate")
deep = pytest.mark.deep(after="tests/rules/test_equations.py")
every_rule = pytest.mark.parametrize(
    "name", [name if name in TELLING else pytest.param(name, marks=deep) for name in CONTRACT]
)


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setattr(MODULE, "COMPILED_FROM", 0)


class Total(NamedTuple):
    mean: tf.Tensor


def spy(seen):
    """A rule that notes whether it runs eagerly, as a plain pass does, and gives the sum of the means."""

    def summarise(local, anchor, weight):
        seen.append(tf.executing_eagerly())
        return Total(local.mean)

    return Rule(
        summarise,
        lambda a, b: Total(a.mean + b.mean),
        lambda total, anchor: rules.Pooled(MeanField(total.mean, anchor.variance)),
    )


def both_ways(monkeypatch, name, *inputs):
    pooled = []
    for least in (2**62, 0):
        monkeypatch.setattr(MODULE, "COMPILED_FROM", least)
        pooled.append(rules.aggregate(rules.parse_rule(name), *inputs))
    return pooled


def assert_same(actual, wanted, rtol=1e-6, atol=0.0):
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(wanted), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def assert_expected(pooled, name, inputs):
    mean, variance = expected(name, *inputs)
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(pooled.mean, mean, rtol=1e-5, atol=1e-5)


@pytest.mark.deep(after="tests/rules/test_compiled.py")
@every_rule
@pytest.mark.parametrize("num_clients", [1, 5])
def test_same_as_uncompiled(monkeypatch, name, num_clients):
    """Sums of terms of both signs have the rounding of the terms, of size 1."""
    stacked, weights, anchor = random_case(num_clients, dtype=np.float32)
    plain, compiled = both_ways(monkeypatch, name, stacked, weights, anchor)
    assert_same(compiled.variance, plain.variance)
    assert_same(compiled.mean, plain.mean, atol=1e-6)
    assert_expected(compiled, name, (stacked, weights, anchor))


@every_rule
def test_clients_that_lie_close(monkeypatch, name):
    """Means 0.5 +- 3e-4 with standard deviations of 1e-4: XLA must not reorder what the centring is for."""
    inputs = random_case(5, centre=0.5, spread=3e-4, stddev=1e-4, dtype=np.float32)
    plain, compiled = both_ways(monkeypatch, name, *inputs)
    assert_same(compiled, plain, rtol=1e-6)
    mean, variance = expected(name, *inputs)
    np.testing.assert_allclose(compiled.mean, mean, rtol=1e-7)
    np.testing.assert_allclose(compiled.variance, variance, rtol=1e-5)


@every_rule
def test_float64_and_equal_weights(monkeypatch, name):
    stacked, _, anchor = random_case(4)
    plain, compiled = both_ways(monkeypatch, name, stacked, None, anchor)
    assert_same(compiled, plain, rtol=1e-12, atol=1e-12)


@every_rule
def test_structures_keep_their_shape(monkeypatch, name):
    stacked, weights, anchor = random_case(3, dtype=np.float32)
    split = lambda x: {"a": x[..., :20], "b": (x[..., 20:21], [x[..., 21:].reshape(*x.shape[:-1], 1, 29)])}
    inputs = MeanField(*map(split, stacked)), weights, MeanField(*map(split, anchor))
    plain, compiled = both_ways(monkeypatch, name, *inputs)
    assert isinstance(compiled, MeanField)
    tf.nest.assert_same_structure(compiled, plain)
    assert_same(compiled, plain, atol=1e-6)


def test_calls_of_other_shapes_weights_and_rules_do_not_mix(compiled):
    """One compiled function serves all calls, of other anchors too; of so many clients none is compiled."""
    names = ("conflation", "naive_weighted_average", "conflation", "weighted_sum", "distributed_weight_consolidation")
    for name in names:
        for clients, size, seed in ((3, 50, 0), (3, 3, 1), (3, 50, 2), (MODULE.COMPILED_CLIENTS + 1, 50, 3)):
            inputs = random_case(clients, size=size, seed=seed, dtype=np.float32)
            pooled = rules.aggregate(rules.parse_rule(name), *inputs)
            assert_expected(pooled, name, inputs)


@pytest.mark.parametrize(
    ("size", "num_clients", "plain"),
    [(8, 3, False), (7, 3, True), (100, 32, False), (100, 33, True), (1, 32, False)],
    ids=["as large as the limit", "one less", "32 clients", "33 clients", "clients count too"],
)
def test_only_large_stacks_of_few_clients_are_compiled(monkeypatch, size, num_clients, plain):
    """COMPILED_FROM counts all numbers, means and variances: 2 x 3 x 8 = 48."""
    monkeypatch.setattr(MODULE, "COMPILED_FROM", 48)
    seen = []
    stacked = MeanField(np.ones([num_clients, size], np.float32), np.ones([num_clients, size], np.float32))
    pooled = rules.aggregate(spy(seen), stacked)
    np.testing.assert_array_equal(pooled.mean, np.full(size, num_clients))
    assert seen == [plain] * num_clients


def test_by_default_small_stacks_are_not_compiled():
    """The test above with the library's own limits, 2^25 numbers and 32 clients."""
    seen = []
    rules.aggregate(spy(seen), MeanField(np.ones([2, 1000], np.float32), np.ones([2, 1000], np.float32)))
    assert seen == [True, True]
    assert (MODULE.COMPILED_FROM, MODULE.COMPILED_CLIENTS) == (2**25, 32)


def test_inside_a_function_nothing_is_compiled_apart(compiled):
    stacked, weights, _ = random_case(3, dtype=np.float32)
    pool = tf.function(lambda q, w: rules.aggregate(rules.linear_pool(), q, w))
    graph = pool.get_concrete_function(tf.nest.map_structure(tf.constant, stacked), weights).graph
    assert not [op.type for op in graph.get_operations() if "Call" in op.type]


def broken(mean=0.0, variance=1.0):
    means, variances = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
    means[2, 1], variances[2, 1] = mean, variance
    return MeanField(
        {"v": np.zeros((3, 4), np.float32), "w": means}, {"v": np.ones((3, 4), np.float32), "w": variances}
    )


@pytest.mark.parametrize(
    ("stacked", "weights"),
    [
        (broken(mean=NAN), None),
        (broken(mean=-INF), None),
        (broken(variance=0.0), None),
        (broken(variance=-1.0), None),
        (broken(variance=NAN), None),
        (broken(variance=INF), None),
        (broken(mean=NAN, variance=-1.0), None),
        (broken(), [1, 0, 1]),
        (broken(), [1, -1, 1]),
        (broken(), [1, NAN, 1]),
        (broken(), [INF, 1, 1]),
        (broken(), [1, 1]),
    ],
)
@pytest.mark.parametrize("name", ["linear_pool", "conflation"])
def test_same_errors_as_uncompiled(monkeypatch, name, stacked, weights):
    messages = []
    for least in (2**62, 0):
        monkeypatch.setattr(MODULE, "COMPILED_FROM", least)
        with pytest.raises(InvalidArgument) as caught:
            rules.aggregate(rules.parse_rule(name), stacked, weights)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert ("clients at [2]" if weights is None else "weights must be") in messages[1]


@pytest.mark.parametrize("bad", [{"variance": 0.0}, {"variance": NAN}, {"mean": INF}])
def test_a_broken_anchor_is_refused(compiled, bad):
    anchor = tf.nest.map_structure(lambda x: x[2], broken(**bad))
    with pytest.raises(InvalidArgument, match="The anchor's means must be finite and its variances finite"):
        rules.aggregate(rules.distributed_weight_consolidation(), broken(), anchor=anchor)
    refuses("pass it as anchor", rules.aggregate, rules.distributed_weight_consolidation(), broken())


def test_a_rule_of_ones_own(compiled):
    """Its functions may be new objects with every call."""
    for number in (2, 3):
        stacked = MeanField(
            np.arange(number * 4, dtype=np.float32).reshape(number, 4), np.ones([number, 4], np.float32)
        )
        pooled = rules.aggregate(spy([]), stacked)
        np.testing.assert_array_equal(pooled.mean, stacked.mean.sum(0))
