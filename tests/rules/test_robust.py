"""Rules against adversarial clients: numbers worked out by hand, and what no client can do."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import named, rules, weighting
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField, stack
from tfp_bfl.rules import ROBUST, parse_robust
from tfp_bfl.weights import ModelWeights, change_norm

from .reference import expected, random_case
from .test_contract import assert_same, fold, summaries

NAN, INF = float("nan"), float("inf")
# One of each statistics: the rest differ from one of these by their equations alone, which test_equations.py has.
TELLING = ("linear_pool", "conflation", "distributed_weight_consolidation")
every_rule = pytest.mark.parametrize("name", TELLING)
every_defence = pytest.mark.parametrize("text", ["clip:0.5", "trimmed:0.2", "median", "centered_clip"])


def defended(text, rule):
    """As a `Rule`, for each type of robust aggregator."""
    rule = parse_robust(text)(rule)
    return rules.gathered(rule) if isinstance(rule, rules.GatherRule) else rule


def pool(rule, clients, anchor, weights=None):
    weights = [1.0] * len(clients) if weights is None else weights
    parts = [rule.summarise(c, anchor, tf.constant(w, tf.float32)) for c, w in zip(clients, weights)]
    total = functools.reduce(rule.merge, parts)
    return rule.pool(total, anchor)


def whole_models(num_clients, seed=0):
    """Honest clients who move much alike from an anchor, each surer than it."""
    rng = np.random.default_rng(seed)
    constant = functools.partial(tf.nest.map_structure, lambda x: tf.constant(x, tf.float32))

    def client(change, stddev):
        near = lambda *shape: 1.0 + change * (2.0 + rng.normal(size=shape))
        variances = lambda *shape: (stddev * rng.uniform(0.9, 1.1, shape)) ** 2
        posterior = MeanField((near(3, 2), near(2)), (variances(3, 2), variances(2)))
        return constant(ModelWeights(posterior, (near(2, 2), near(3)), MeanField((near(4),), (variances(4),))))

    return [client(0.1, 0.3) for _ in range(num_clients)], client(0.0, 0.5)


def hostile(local, anchor, mean, variance):
    move = lambda part, start: tf.nest.map_structure(lambda x, a: a + mean * (x - a), part, start)
    pair = lambda q, p: MeanField(move(q.mean, p.mean), tf.nest.map_structure(lambda v: variance * v, q.variance))
    return ModelWeights(
        pair(local.posterior, anchor.posterior), move(local.point, anchor.point), pair(local.moments, anchor.moments)
    )


def test_clipping_by_hand():
    """Change (3, log e = 1) x 3: of norm 3 sqrt(10), clipped to sqrt(10): N(1 + 3, (e)^2)."""
    anchor = MeanField(tf.constant([1.0]), tf.constant([1.0]))
    local = MeanField(tf.constant([10.0]), tf.constant([np.exp(6.0)], tf.float32))
    rule = rules.clipped(rules.naive_weighted_average(), np.sqrt(10))
    pooled, metrics = pool(rule, [local], anchor)
    np.testing.assert_allclose(pooled.mean, [4.0], rtol=1e-6)
    np.testing.assert_allclose(pooled.variance, [np.exp(2.0)], rtol=1e-5)
    assert metrics == {"clipped_clients": 1}
    # With another client at N(3, 1), whose change of 2 is within the bound: the mean of 4 and 3.
    other = MeanField(tf.constant([3.0]), tf.constant([1.0]))
    pooled, metrics = pool(rule, [local, other], anchor)
    np.testing.assert_allclose(pooled.mean, [3.5], rtol=1e-6)
    np.testing.assert_allclose(pooled.variance, [(np.exp(2.0) + 1) / 2], rtol=1e-5)
    assert metrics == {"clipped_clients": 1}


def test_the_norm_is_over_the_whole_model():
    """Changes of 1, 2, 4 and 2 in a mean, a point weight, a moving mean and a log standard deviation: norm 5."""
    none = tf.constant([1.0])
    anchor = ModelWeights(MeanField((0 * none,), (none,)), (0 * none,), MeanField((0 * none,), (none,)))
    local = ModelWeights(MeanField((1 * none,), (np.exp(4.0) * none,)), (2 * none,), MeanField((4 * none,), (none,)))
    np.testing.assert_allclose(change_norm(local, anchor), 5.0, rtol=1e-6)
    rule = rules.clipped(rules.whole_model(rules.conflation()), 1.0)
    pooled, _ = pool(rule, [local], anchor)
    wanted = ModelWeights(
        MeanField((0.2 * none,), (np.exp(0.8) * none,)), (0.4 * none,), MeanField((0.8 * none,), (none,))
    )
    assert_same(pooled, wanted, rtol=1e-5)


@every_rule
def test_a_large_bound_changes_no_bit(name):
    clients, anchor = whole_models(3)
    plain = rules.whole_model(rules.parse_rule(name))
    wanted, metrics = pool(plain, clients, anchor, (1.0, 2.0, 3.0))
    pooled, own = pool(rules.clipped(plain, 1e3), clients, anchor, (1.0, 2.0, 3.0))
    assert_same(pooled, wanted, rtol=0, atol=0)
    assert own == {"clipped_clients": 0, **metrics}


@every_rule
def test_a_clipped_client_is_the_one_on_the_way_to_it(name):
    stacked, weights, anchor = random_case(4, size=20)
    rule, anchor, _ = summaries(name, stacked, weights, anchor)
    coordinates = lambda q: np.concatenate([q.mean, 0.5 * np.log(q.variance)], -1)
    start, change = coordinates(anchor), coordinates(stacked) - coordinates(anchor)
    norms = np.linalg.norm(change, axis=1, keepdims=True)
    bound = np.median(norms)
    moved = start + change * np.minimum(1, bound / norms)
    moved = MeanField(moved[:, :20], np.exp(2 * moved[:, 20:]))
    pooled = rules.aggregate(rules.clipped(rule, bound), stacked, weights, anchor)
    assert_same(pooled, MeanField(*expected(name, moved, weights, anchor)), rtol=1e-9)


@pytest.mark.parametrize("value", [1e30, -1e30, 3e38])
def test_the_largest_numbers_are_clipped_too(value):
    anchor = MeanField(tf.zeros([2]), tf.fill([2], 1e-10))
    local = MeanField(tf.constant([value, 0.0]), tf.constant([1e-10, 1e38]))
    pooled, _ = pool(rules.clipped(rules.naive_weighted_average(), 2.0), [local], anchor)
    np.testing.assert_allclose(pooled.mean, [2 * np.sign(value), 0.0], rtol=1e-6)
    np.testing.assert_allclose(pooled.variance, [1e-10, 1e-10], rtol=1e-5)


def test_moving_variances_of_zero_are_no_change():
    none = MeanField((), ())
    dead = ModelWeights(none, (tf.zeros([1]),), MeanField((tf.zeros([1]),), (tf.zeros([1]),)))
    far = dead._replace(point=(tf.constant([9.0]),))
    pooled, metrics = pool(rules.clipped(rules.whole_model(rules.conflation()), 3.0), [far], dead)
    np.testing.assert_allclose(pooled.point[0], [3.0])
    assert abs(float(pooled.moments.variance[0][0])) < 1e-37 and metrics["clipped_clients"] == 1


@pytest.mark.parametrize("value", [NAN, INF])
def test_what_a_faulty_client_leaves_can_be_zeroed(value):
    """As the round does: selected, not multiplied."""
    anchor = MeanField(tf.zeros([2]), tf.ones([2]))
    rule = rules.clipped(rules.conflation(), 1.0)
    bad = rule.summarise(MeanField(tf.constant([value, 0.0]), tf.ones([2])), anchor, tf.constant(1.0))
    zeroed = tf.nest.map_structure(lambda x: tf.where(False, x, tf.zeros_like(x)), bad)
    good = rule.summarise(MeanField(tf.constant([0.5, 0.0]), tf.ones([2])), anchor, tf.constant(1.0))
    total = rule.merge(good, zeroed)
    assert_same(total, good, rtol=0, atol=0)


# Five clients of one weight; k = 1 for a share of 0.2. The means left are 1, 2, 3, their variances 9, 4, 0.01 limited
# to the middle three of (0.01, 1, 4, 9, 100): to [1, 9].
MEANS = np.array([[2.0], [-50.0], [3.0], [1.0], [70.0]])
VARIANCES = np.array([[4.0], [1.0], [0.01], [9.0], [100.0]])
LEFT = MeanField(np.array([[1.0], [2.0], [3.0]]), np.array([[9.0], [4.0], [1.0]]))
ANCHOR = MeanField(np.array([0.0]), np.array([40.0]))


def test_trimming_by_hand():
    five = MeanField(MEANS, VARIANCES)
    pooled = rules.aggregate(rules.trimmed(rules.naive_weighted_average()), five)
    assert_same(pooled, MeanField(np.array([2.0]), np.array([14 / 3])))
    # Precision 1/9 + 1/4 + 1 = 49/36; mean 36/49 (1/9 + 2/4 + 3) = 130/49.
    pooled = rules.aggregate(rules.trimmed(rules.conflation()), five)
    assert_same(pooled, MeanField(np.array([130 / 49]), np.array([36 / 49])))


@every_rule
def test_the_rule_pools_what_is_left_with_equal_weights(name):
    wanted = MeanField(*expected(name, LEFT, np.ones(3), ANCHOR))
    rule = rules.trimmed(rules.parse_rule(name), 0.2)
    for weights in (None, [1, 2, 3, 4, 500]):
        assert_same(rules.aggregate(rule, MeanField(MEANS, VARIANCES), weights, ANCHOR), wanted)


@every_rule
@pytest.mark.parametrize("num_clients", [1, 2, 3, 6, 7])
def test_the_median(name, num_clients):
    """For odd K the medians of means and variances; for even K the rule on the two middle means, each with its variance
    limited to the two middle ones."""
    stacked, weights, anchor = random_case(num_clients)
    pooled = rules.aggregate(rules.median(rules.parse_rule(name)), stacked, weights, anchor)
    if num_clients % 2:
        assert_same(pooled, MeanField(*(np.median(x, 0) for x in stacked)), rtol=1e-9)
        return
    middle = slice(num_clients // 2 - 1, num_clients // 2 + 1)
    order = np.argsort(stacked.mean, 0)[middle]
    low, high = np.sort(stacked.variance, 0)[middle]
    two = MeanField(
        np.take_along_axis(stacked.mean, order, 0), np.clip(np.take_along_axis(stacked.variance, order, 0), low, high)
    )
    assert_same(pooled, MeanField(*expected(name, two, np.ones(2), anchor)), rtol=1e-9)


@every_rule
@pytest.mark.parametrize(("share", "num_clients"), [(0.0, 6), (0.2, 4), (0.49, 2)])
def test_nobody_trimmed_is_the_rule_with_equal_weights(name, share, num_clients):
    stacked, weights, anchor = random_case(num_clients)
    rule = rules.trimmed(rules.parse_rule(name), share)
    wanted = rules.aggregate(rules.parse_rule(name), stacked, None, anchor)
    assert_same(rules.aggregate(rule, stacked, weights, anchor), wanted, rtol=1e-9)
    assert rule.pool(*in_tensors(stacked, weights, anchor)).metrics["trimmed_clients"] == 0


def in_tensors(*structures):
    return tf.nest.map_structure(tf.constant, structures)


@pytest.mark.parametrize(
    ("share", "num_clients", "dropped"), [(0.29, 100, 58), (0.2, 10, 4), (0.4, 3, 2), (0.45, 9, 8)]
)
def test_number_of_trimmed_clients(share, num_clients, dropped):
    rule = rules.trimmed(rules.conflation(), share)
    metrics = rule.pool(*in_tensors(*random_case(num_clients, size=2))).metrics
    assert metrics == {"trimmed_clients": dropped}


def test_metrics_of_the_rule_come_along():
    rule = rules.distributed_weight_consolidation()
    clients, anchor = whole_models(5)
    wider = [c._replace(posterior=MeanField(c.posterior.mean, anchor.posterior.variance)) for c in clients]
    for text, own in (("clip:1.0", "clipped_clients"), ("median", "trimmed_clients")):
        _, metrics = pool(defended(text, rules.whole_model(rule)), wider, anchor)
        assert set(metrics) == {own, "kept_weights"} and metrics["kept_weights"] == 0


@every_rule
@every_defence
def test_order_of_clients_does_not_matter(name, text):
    """Trimmed, not to a bit: means that many clients share, with other variances, are what an order could tell."""
    stacked, _, anchor = random_case(6)
    stacked.mean[:, :10] = np.round(stacked.mean[:, :10])
    rule = parse_robust(text)(rules.parse_rule(name))
    wanted = rules.aggregate(rule, stacked, None, anchor)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(6)
        shuffled = MeanField(stacked.mean[order], stacked.variance[order])
        pooled = rules.aggregate(rule, shuffled, None, anchor)
        exact = text in ("trimmed:0.2", "median")
        assert_same(pooled, wanted, rtol=0 if exact and name != "distributed_weight_consolidation" else 1e-9)


@every_rule
@every_defence
def test_one_client_is_the_result(name, text):
    clients, anchor = whole_models(1)
    rule = defended(text.replace("0.5", "50"), rules.whole_model(rules.parse_rule(name)))
    assert_same(pool(rule, clients, anchor)[0], clients[0], rtol=1e-5)


ATTACKS = {"scaled": (100, 100), "flipped": (-5, 1), "sure": (-1, 1e-4), "huge": (1e30, 1e30)}


def attacked(attack):
    """Ten honest clients, the same with the first two hostile, and the server's weights."""
    clients, anchor = whole_models(10)
    return clients, [hostile(c, anchor, *ATTACKS[attack]) for c in clients[:2]] + clients[2:], anchor


@pytest.mark.deep(after="tests/rules/test_robust.py")
@every_rule
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("text", ["trimmed:0.2", "median"])
def test_two_of_ten_clients_cannot_leave_the_range_of_the_others(name, attack, text):
    """The pooled means lie between the honest ones; variances too, but for what the rule itself does with K clients."""
    (_, _, *honest), spoiled, anchor = attacked(attack)
    rule = rules.whole_model(rules.parse_rule(name))
    pooled, _ = pool(defended(text, rule), spoiled, anchor)
    bound = tf.nest.map_structure(lambda *x: (tf.reduce_min(tf.stack(x), 0), tf.reduce_max(tf.stack(x), 0)), *honest)

    def check(value, limits, low=1.0, high=1.0):
        for x, (least, most) in zip(value, limits):
            assert (x >= low * least - 1e-6).numpy().all() and (x <= high * most + 1e-6).numpy().all()

    assert_finite = lambda x: np.testing.assert_array_equal(np.isfinite(x), True)
    tf.nest.map_structure(assert_finite, pooled)
    check(pooled.point, bound.point)
    check(pooled.moments.mean, bound.moments.mean)
    if name != "distributed_weight_consolidation":  # which subtracts the anchor, and so extrapolates
        check(pooled.posterior.mean, bound.posterior.mean)
        check(pooled.posterior.variance, bound.posterior.variance, low=1 / 6, high=2)


@every_rule
@pytest.mark.parametrize("attack", ["scaled", "flipped", "huge"])
def test_two_of_ten_clients_undefended_leave_it(name, attack):
    """So that the test above tells something: the point weights, which all rules average."""
    clients, spoiled, anchor = attacked(attack)
    pooled, _ = pool(rules.whole_model(rules.parse_rule(name)), spoiled, anchor)
    points = tf.stack([c.point[0] for c in clients[2:]])
    inside = (pooled.point[0] >= tf.reduce_min(points, 0)) & (pooled.point[0] <= tf.reduce_max(points, 0))
    assert not inside.numpy().all()


@every_rule
@pytest.mark.parametrize("attack", ATTACKS)
def test_clipping_bounds_how_far_an_average_goes(name, attack):
    """Point weights, which all rules average: the change of the mean is no longer than the bound."""
    _, spoiled, anchor = attacked(attack)
    pooled, metrics = pool(defended("clip:0.5", rules.whole_model(rules.parse_rule(name))), spoiled, anchor)
    change = np.concatenate([np.ravel(x - a) for x, a in zip(pooled.point, anchor.point)])
    assert np.linalg.norm(change) <= 0.5 and metrics["clipped_clients"] >= 2


def test_a_stacked_weighting_of_clipped_clients():
    clients, anchor = whole_models(4)
    weigh = lambda stacked: weighting.max_discrepancy_weights(stacked.posterior)
    rule = rules.clipped(rules.whole_model(rules.linear_pool()), 0.5)
    pooled, metrics = pool(rules.gathered(rules.reweighted(rule, weigh)), clients, anchor)
    wanted, _ = pool(rule, clients, anchor, weigh(stack(clients)).numpy())
    assert_same(pooled, wanted, rtol=1e-4, atol=1e-6)
    assert set(metrics) == {"largest_share", "clipped_clients"}


@every_defence
def test_number_of_clients_need_not_be_known(text):
    rule = parse_robust(text)(rules.conflation())
    if isinstance(rule, rules.Rule):
        rule = rules.reweighted(rule, lambda stacked: tf.ones([tf.shape(stacked.mean)[0]]))
    spec = MeanField(*(tf.TensorSpec([None, 4, 3], tf.float32) for _ in range(2)))
    anchor = MeanField(tf.zeros([4, 3]), tf.ones([4, 3]))
    compute = tf.function(lambda q, w: rule.pool(q, w, anchor).weights, input_signature=[spec, tf.TensorSpec([None])])
    for num_clients in (1, 2, 5):
        stacked = MeanField(*(x.reshape(-1, 4, 3) for x in random_case(num_clients, size=12, dtype=np.float32)[0]))
        pooled = compute(stacked, np.ones(num_clients, np.float32))
        assert pooled.mean.shape == (4, 3)
        assert_same(
            pooled, rule.pool(*in_tensors(stacked, np.ones(num_clients, np.float32)), anchor).weights, rtol=1e-5
        )


def test_clipping_is_merged_like_any_rule():
    """A commutative monoid whose zero changes nothing."""
    stacked, weights, anchor = random_case(3)
    rule, anchor, _ = summaries("weighted_conflation", stacked, weights, anchor)
    rule = rules.clipped(rule, 1.0)
    a, b, c = (rule.summarise(MeanField(*q), anchor, tf.constant(w)) for *q, w in zip(*in_tensors(*stacked, weights)))
    assert_same(fold(rule, (a, b, c)), fold(rule, (c, b, a)))
    zeros = tf.nest.map_structure(tf.zeros_like, a)
    assert_same(rule.merge(zeros, a), a, rtol=0, atol=0)


DEFENCES = (functools.partial(rules.clipped, max_norm=1.0), rules.trimmed, rules.median)
BOUND, SHARE = (
    r"max_norm is .*, but must be a finite number above 0",
    r"share is .*, but must be at least 0 and below 0\.5",
)


@pytest.mark.parametrize(
    ("defence", "arguments", "message"),
    [
        *((rules.clipped, (rules.conflation(), x), BOUND) for x in (0, -1.0, NAN, INF, "5", None, True)),
        *((rules.trimmed, (rules.conflation(), x), SHARE) for x in (-0.1, 0.5, 1, NAN, INF, "0.2", None, True)),
        *((x, (rules.conflation,), r"must be a Rule, such as tfp_bfl.rules.conflation.. with") for x in DEFENCES),
        *((x, (None,), "rule must be a Rule") for x in DEFENCES),
        *((x, ("conflaton",), "no rule 'conflaton': did you mean 'conflation'") for x in DEFENCES),
    ],
)
def test_refused(defence, arguments, message):
    refuses(message, defence, *arguments)


def test_clipping_needs_the_anchor():
    with pytest.raises(InvalidArgument, match=r"clipped linear_pool subtracts .*: pass it as anchor"):
        rules.aggregate(rules.clipped(rules.linear_pool(), 1.0), MeanField(MEANS, VARIANCES))


@every_defence
def test_defences_are_read_from_text(text):
    made = parse_robust(text)(rules.conflation())
    by_hand = getattr(rules, {"clip:0.5": "clipped", "trimmed:0.2": "trimmed"}.get(text, text))
    assert made.name == by_hand(rules.conflation(), *([0.5] if text == "clip:0.5" else [])).name
    assert set(named.forms(ROBUST)) == {"clip:MAX_NORM", "trimmed:SHARE", "median", "centered_clip"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trimed:0.2", "no robust aggregator 'trimed': did you mean 'trimmed'"),
        ("clip", "lacks its max_norm: write clip:MAX_NORM"),
        ("trimmed:", "lacks its share: write trimmed:SHARE"),
        ("median:2", "has an argument, but median takes none"),
        ("clip:far", "has the max_norm 'far', but must be clip:MAX_NORM with a number"),
        ("clip:-1", "max_norm is -1.0, but must be a finite number above 0"),
        ("clip:inf", "max_norm is inf"),
        ("trimmed:0.5", "share is 0.5, but must be at least 0 and below 0.5"),
    ],
)
def test_bad_texts(text, message):
    refuses(message, parse_robust, text)
