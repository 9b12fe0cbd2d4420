import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import rules
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField

from .forms import every_rule

NAN, INF = float("nan"), float("inf")


def stack(mean=0.0, variance=1.0):
    """Three clients with a leaf [3, 2] each; the arguments are the last client's last value."""
    means, variances = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
    means[2, 1], variances[2, 1] = mean, variance
    return MeanField({"w": means}, {"w": variances})


@every_rule
def test_every_rule_takes_the_sound_stack(name):
    anchor = MeanField({"w": np.zeros(2, np.float32)}, {"w": np.ones(2, np.float32)})
    pooled = rules.aggregate(rules.parse_rule(name), stack(), [1, 2, 3], anchor)
    assert np.isfinite(pooled.mean["w"]).all() and (pooled.variance["w"].numpy() > 0).all()


@pytest.mark.parametrize(
    "weights",
    [[1, 0, 1], [1, -1, 1], [1, NAN, 1], [1, INF, 1], [0, 0, 0], [-1, -1, -1]],
    ids=["zero", "negative", "nan", "inf", "all zero", "all negative"],
)
def test_bad_weights(weights):
    with pytest.raises(InvalidArgument, match="weights must be finite and above zero, but are"):
        rules.aggregate(rules.naive_weighted_average(), stack(), weights)


@pytest.mark.parametrize("weights", [[1, 1], [1, 1, 1, 1], 1.0, [[1, 1, 1]], []])
def test_wrong_number_of_weights(weights):
    with pytest.raises(InvalidArgument, match=r"weights must be \[3\], one a client, but have shape"):
        rules.aggregate(rules.naive_weighted_average(), stack(), weights)


@every_rule
@pytest.mark.parametrize("variance", [0.0, -1.0, NAN, INF])
def test_bad_variance(name, variance):
    anchor = MeanField({"w": np.zeros(2, np.float32)}, {"w": np.ones(2, np.float32)})
    with pytest.raises(InvalidArgument, match=r"variance must be finite and above zero.* clients at \[2\]"):
        rules.aggregate(rules.parse_rule(name), stack(variance=variance), anchor=anchor)


@pytest.mark.parametrize("mean", [NAN, INF, -INF])
def test_bad_mean(mean):
    with pytest.raises(InvalidArgument, match=r"mean must be finite.* clients at \[2\]"):
        rules.aggregate(rules.linear_pool(), stack(mean=mean))


def test_consolidation_needs_the_anchor():
    with pytest.raises(InvalidArgument, match=r"distributed_weight_consolidation subtracts .*: pass it as anchor"):
        rules.aggregate(rules.distributed_weight_consolidation(), stack())


@pytest.mark.parametrize("structure", [(), {}, []])
def test_no_weights(structure):
    with pytest.raises(InvalidArgument, match="stack holds no weights"):
        rules.aggregate(rules.conflation(), MeanField(structure, structure))


@pytest.mark.parametrize(
    ("mean", "variance"),
    [
        (np.zeros((0, 2)), np.ones((0, 2))),
        (np.zeros(()), np.ones(())),
        (np.zeros((3, 2)), np.ones((3, 1))),
        (np.zeros((3, 2)), np.ones((2, 2))),
        ((np.zeros((3, 2)), np.zeros((2, 2))), (np.ones((3, 2)), np.ones((2, 2)))),
        ((np.zeros((3, 2)), np.zeros((3, 2))), (np.ones((3, 2)),)),
    ],
    ids=["no client", "no axis", "other shape", "other K", "leaves of different K", "a leaf too few"],
)
def test_shapes_that_are_no_stack(mean, variance):
    with pytest.raises(InvalidArgument, match=r"means and variances of the same shapes \[K, \.\.\.\]"):
        rules.aggregate(rules.naive_weighted_average(), MeanField(mean, variance))


def test_weights_may_be_integers_or_of_another_float_type():
    stacked = MeanField(np.float32([[0.0], [4.0]]), np.float32([[1.0], [1.0]]))
    for weights in ([1, 3], np.array([1.0, 3.0]), tf.constant([1, 3], tf.int64)):
        pooled = rules.aggregate(rules.naive_weighted_average(), stacked, weights)
        assert pooled.mean.dtype == tf.float32
        np.testing.assert_array_equal(pooled.mean, [3.0])


@pytest.mark.parametrize("rule", ["linear_pool", rules.linear_pool(), rules.whole_model("linear_pool")])
def test_a_rule_by_its_name_or_lifted_is_the_rule(rule):
    wanted = rules.aggregate(rules.linear_pool(), stack(0.5, 2.0))
    np.testing.assert_array_equal(rules.aggregate(rule, stack(0.5, 2.0)).mean["w"], wanted.mean["w"])


@pytest.mark.parametrize("rule", [rules.client_gaussian(), rules.stacked()])
def test_what_gives_no_posterior_is_refused(rule):
    with pytest.raises(InvalidArgument, match=r"gives a .*, but aggregate pools to one posterior"):
        rules.aggregate(rule, stack())


MIXED = {
    "whole numbers": (np.zeros((3, 2), int), np.ones((3, 2), int), "type int64, but"),
    "means of one type": (np.zeros((3, 2), np.float32), np.ones((3, 2)), "types float32 and float64, but"),
    "leaves of two types": ((np.zeros((3, 1), np.float32), np.zeros((3, 1))), None, "types float32 and float64, but"),
}


@every_rule
@pytest.mark.parametrize("case", MIXED)
def test_posteriors_that_are_no_floats_of_one_type(name, case):
    mean, variance, message = MIXED[case]
    variance = tf.nest.map_structure(np.ones_like, mean) if variance is None else variance
    with pytest.raises(InvalidArgument, match=message):
        rules.aggregate(rules.parse_rule(name), MeanField(mean, variance))


def test_an_anchor_of_another_type():
    anchor = MeanField({"w": np.zeros(2)}, {"w": np.ones(2)})
    with pytest.raises(InvalidArgument, match="anchor must have the type of the posteriors, float32"):
        rules.aggregate("distributed_weight_consolidation", stack(), anchor=anchor)


def test_a_result_that_is_not_finite():
    """The variance of means 1e20 and -1e20 is 1e40, which float32 lacks."""
    mean, variance = np.float32([[1e20], [-1e20]]), np.ones((2, 1), np.float32)
    with pytest.raises(InvalidArgument, match="'linear_pool' overflows float32"):
        rules.aggregate("linear_pool", MeanField(mean, variance))
    pooled = rules.aggregate("linear_pool", MeanField(mean.astype(np.float64), variance.astype(np.float64)))
    np.testing.assert_allclose(pooled.variance, [1e40])
