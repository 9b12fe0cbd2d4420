"""Sums that hide the clients: of whole numbers, and with clipping and noise."""

import functools
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import rules
from tfp_bfl.algorithms.kernel import kernel_posterior
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

from .forms import CONTRACT
from .reference import expected, random_case

PLAIN_SUMS = {
    **{form: functools.partial(rules.parse_rule, form) for form in CONTRACT if rules.parse_rule(form).units},
    "weighted_conflation": lambda: rules.weighted_conflation(largest_weight=1.0),
    "clipped": lambda: rules.clipped("log_linear_pool", 5.0),
}
every_sum = pytest.mark.parametrize("name", PLAIN_SUMS)
RNG = np.random.default_rng(5)
NOTHING = MeanField((), ())


def constants(structure):
    return tf.nest.map_structure(tf.constant, structure)


def clients_of(stacked):
    return [tf.nest.map_structure(lambda x, k=k: x[k], stacked) for k in range(len(tf.nest.flatten(stacked)[0]))]


def total_of(rule, stacked, anchor, weights):
    parts = [rule.summarise(q, anchor, tf.constant(w)) for q, w in zip(clients_of(constants(stacked)), weights)]
    total = parts[0]
    for part in parts[1:]:
        total = rule.merge(total, part)
    return total


def pooled_by(rule, stacked, anchor, weights):
    return rule.pool(total_of(rule, stacked, anchor, weights), anchor).weights


def models_like(anchor_stddev=0.05, clients=8, size=200):
    """Clients of a whole model a few standard deviations from the anchor, some ten times as sure: float32."""
    normal = lambda *shape: np.float32(RNG.normal(size=shape))
    anchor = ModelWeights(
        MeanField((normal(size),), (np.float32(anchor_stddev**2) * np.exp(normal(size)),)),
        (normal(7),),
        MeanField((normal(3),), (np.exp(normal(3)),)),
    )
    stddev = np.sqrt(anchor.posterior.variance[0])
    stacked = ModelWeights(
        MeanField(
            (anchor.posterior.mean[0] + 2 * stddev * normal(clients, size),),
            (np.float32(anchor.posterior.variance[0] * 10 ** -RNG.uniform(0, 2, (clients, size))),),
        ),
        (anchor.point[0] + 0.1 * normal(clients, 7),),
        MeanField((normal(clients, 3),), (np.exp(normal(clients, 3)),)),
    )
    return stacked, constants(anchor)


@every_sum
@pytest.mark.parametrize("seed", range(3))
def test_sums_of_whole_numbers_are_as_good_as_those_of_floats(name, seed):
    """Each mean within 1e-4 of its posterior's standard deviation, each variance within 1e-4 of itself."""
    del seed  # Another draw of clients each.
    stacked, anchor = models_like()
    weights = np.float32(RNG.integers(1, 60, 8))
    # The public bound of weighted conflation is of weights that are divided by theirs.
    clear = pooled_by(rules.whole_model(PLAIN_SUMS[name]()), stacked, anchor, weights / 60)
    hidden = pooled_by(rules.quantised(PLAIN_SUMS[name](), max_weight=60.0), stacked, anchor, weights)
    stddev = np.sqrt(clear.posterior.variance[0])
    np.testing.assert_array_less(np.abs(hidden.posterior.mean[0] - clear.posterior.mean[0]), 1e-4 * stddev)
    np.testing.assert_allclose(hidden.posterior.variance[0], clear.posterior.variance[0], rtol=1e-4)
    assert_same(hidden[1:], clear[1:], rtol=1e-5, atol=1e-6)


def test_without_the_units_the_same_bits_are_worth_little():
    """The control: a precision of 1 / 0.05^2 is beyond a bound of 8, and 90 % of what clients say is cut."""
    stacked, anchor = models_like()
    plain = rules.whole_model("log_linear_pool")
    raw = rules.ModelRule(*plain[:3], units=lambda a: tf.nest.map_structure(tf.ones_like, plain.units(a)))
    clear, units, none = (
        pooled_by(rule, stacked, anchor, np.ones(8, np.float32)).posterior.variance[0]
        for rule in (plain, rules.quantised(plain, bound=256.0, bits=24), rules.quantised(raw, bound=256.0, bits=24))
    )
    assert np.max(np.abs(units / clear - 1)) < 1e-4 < 1 < np.max(np.abs(none / clear - 1))


PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "secure_aggregation.md").read_text()
OF_DISTANCES = re.search(r"\| 0.01 \| (\S+) \|\n\| 0.001 \| (\S+) \|\n\| 0.0001 \| (\S+) \|", PAGE)


@pytest.mark.parametrize(("distance", "told"), zip((1e-2, 1e-3, 1e-4), OF_DISTANCES.groups()))
def test_without_a_posterior_variances_are_as_good_as_the_page_says(distance, told):
    """The worst of 500 weights of eight clients, over five draws: what the page says, by a factor of two."""
    worst = []
    for seed in range(5):
        draws = np.random.default_rng(seed).normal(size=(9, 500))
        points = np.float32(draws[0] + distance * draws[1:])
        stacked, anchor = (ModelWeights(NOTHING, (x,), NOTHING) for x in (points, np.float32(draws[0])))
        rule = rules.quantised(rules.client_gaussian())
        pooled = pooled_by(rule, stacked, constants(anchor), np.ones(8, np.float32)).posterior
        np.testing.assert_allclose(pooled.mean[0], np.float64(points).mean(0), rtol=1e-6, atol=1e-8)
        worst.append(np.max(np.abs(pooled.variance[0] / np.float64(points).var(0) - 1)))
    assert float(told) / 2 < max(worst) < 2 * float(told)


def test_masks_that_cancel_leave_the_bits_of_the_sum():
    """What is seen of a client is then a uniform number: of pairs one adds what the other takes, modulo 2^64."""
    stacked, anchor = models_like(clients=3)
    rule = rules.quantised("conflation")
    parts = [rule.summarise(q, anchor, tf.constant(1.0)) for q in clients_of(constants(stacked))]
    masked = list(parts)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        mask = tf.nest.map_structure(
            lambda x: RNG.integers(-(2**63), 2**63, x.shape, np.int64, endpoint=False), parts[0].sums
        )
        for k, add in ((i, tf.add), (j, tf.subtract)):
            masked[k] = masked[k]._replace(sums=tf.nest.map_structure(add, masked[k].sums, mask))
    total, hidden = (rule.merge(rule.merge(x[0], x[1]), x[2]) for x in (parts, masked))
    first = tf.nest.flatten(masked[0].sums)[1].numpy()
    assert np.mean(np.abs(first) > 2**61) > 0.5
    assert_same(total, hidden)


def test_numbers_beyond_the_bound_are_counted():
    stacked, anchor = models_like()
    wild = stacked._replace(point=(stacked.point[0] + np.float32([1e6] + [0] * 7)[:, None],))
    rule = rules.quantised("naive_weighted_average")
    told = [rule.pool(total_of(rule, x, anchor, np.ones(8, np.float32)), anchor).metrics for x in (stacked, wild)]
    assert [int(x["clipped_numbers"]) for x in told] == [0, 7]


NOISE = {"clip_norm": 3.0, "noise_multiplier": 1.5, "cohort_size": 8, "variance_clip_norm": 0.5}
CAN_HIDE = [form for form in CONTRACT if (rule := rules.parse_rule(form)).units and not rule.traits.uses_anchor]


private = functools.partial(rules.private, **NOISE)
MORE = [
    *("weighted_conflation", rules.median("conflation"), kernel_posterior(), rules.stacked(), rules.total()),
    rules.weighted_conflation(largest_weight=100.0),  # Both divide the weights by a bound of their own.
]
NO_MEANS = ["distributed_weight_consolidation", rules.clipped("conflation", 1.0), rules.client_gaussian()]


@pytest.mark.parametrize(
    ("make", "rule", "options", "message"),
    [
        *(
            (make, rule, {}, "needs more of the clients than a sum")
            for make in (rules.quantised, private)
            for rule in MORE
        ),
        *((private, rule, {}, "is no mean of what clients send") for rule in NO_MEANS),
        (rules.quantised, "conflation", {"bits": 7}, "bits is 7, but must be an integer of at least 8"),
        (rules.quantised, "conflation", {"bits": 53}, "at most 52"),
        (rules.quantised, "conflation", {"bound": 0}, "bound is 0"),
    ],
)
def test_refused(make, rule, options, message):
    refuses(message, make, rule, **options)


@pytest.mark.parametrize("name", CAN_HIDE)
def test_without_noise_and_clipping_it_is_the_rule(name):
    stacked, weights, anchor = random_case(6, dtype=np.float64)
    rule = rules.private(name, clip_norm=1e9, noise_multiplier=0, cohort_size=6)
    pooled = pooled_by(rule, stacked, constants(anchor), np.ones(6, np.float32))
    mean, variance = expected(name, stacked, np.ones_like(weights), anchor)
    np.testing.assert_allclose(pooled.mean, mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-6)


def of_parts(rule, found, anchor):
    """The norms of means and of variances in a client's sums."""
    start = tf.nest.flatten(rules.whole_model(rule).summarise(anchor, anchor, tf.constant(1.0)))
    square = [0.0, 0.0]
    for x, s in zip(tf.nest.flatten(found.sums), start):
        positive = np.broadcast_to(np.asarray(s) > 0, x.shape)
        for part, here in enumerate((~positive, positive)):
            square[part] += np.sum(np.square(np.float64(x))[here])
    return np.sqrt(square)


@pytest.mark.parametrize("name", CAN_HIDE)
def test_no_client_moves_the_sum_further_than_the_noise_hides(name):
    """Both norms are at most one, and the noise's standard deviation is sqrt(2) s: together s of a norm of sqrt(2)."""
    stacked, anchor = models_like()
    rule = rules.private(name, **NOISE)
    (mean,), (start,) = stacked.posterior.mean, anchor.posterior.mean
    seen = []
    for scale in (1e-3, 1.0, 1e6):
        sent = stacked._replace(posterior=MeanField((np.float32(start + scale * (mean - start)),), stacked[0].variance))
        for local in clients_of(constants(sent)):
            found = rule.summarise(local, anchor, tf.constant(1.0))
            norms = of_parts(name, found, anchor)
            assert np.all(norms <= 1 + 1e-5)
            seen.append((bool(found.clipped), bool(np.any(norms > 1 - 1e-5))))
    assert all(told == cut for told, cut in seen) and {told for told, _ in seen} == {True}


@pytest.mark.parametrize("value", [3e38, -3e38, np.inf, np.nan])
def test_what_overflows_in_the_units_moves_the_sum_by_no_more_than_the_clip(value):
    """NaN in a sum is not hidden by any noise."""
    stacked, anchor = models_like()
    rule = rules.private("log_linear_pool", **NOISE)
    local = clients_of(constants(stacked))[0]
    mean = tf.concat([[value], local.posterior.mean[0][1:]], 0)
    found = rule.summarise(local._replace(posterior=MeanField((mean,), local[0].variance)), anchor, tf.constant(1.0))
    assert np.all(of_parts("log_linear_pool", found, anchor) <= 1 + 1e-5)


def test_who_sends_the_anchor_or_weighs_nothing_adds_nothing():
    stacked, anchor = models_like()
    rule = rules.private("log_linear_pool", **NOISE)
    nobody = rule.summarise(clients_of(constants(stacked))[0], anchor, tf.constant(0.0))
    for found in (rule.summarise(anchor, anchor, tf.constant(1.0)), nobody):
        assert all(np.all(x == 0) for x in map(np.asarray, tf.nest.flatten(found.sums)))
    pooled = rule.pool(nobody, anchor).weights
    np.testing.assert_allclose(pooled.posterior.mean[0], anchor.posterior.mean[0], rtol=1e-6)
    np.testing.assert_allclose(pooled.posterior.variance[0], anchor.posterior.variance[0], rtol=1e-6)


@pytest.mark.statistical
def test_the_noise_is_what_the_guarantee_counts_on():
    """sqrt(2) s of sums that are one long, s without a posterior, of 4,000 numbers at least: within 6 %, 5.4 standard
    errors, and so wrong once in 1e7."""
    _, anchor = models_like(size=4000)
    rule = rules.private("log_linear_pool", **NOISE)
    for like, stddev in ((anchor, 1.5 * 2**0.5), (anchor._replace(posterior=NOTHING, moments=NOTHING), 1.5)):
        like = like._replace(point=(tf.zeros([4000]),))
        nothing = rule.summarise(like, like, tf.constant(1.0))
        one, again, other = (rule.randomise(nothing, tf.constant(seed)).sums for seed in ([1, 2], [1, 2], [1, 3]))
        leaves = [np.ravel(x) for x in tf.nest.flatten(one) if x.shape.rank]
        together = np.concatenate(leaves)
        assert len(together) >= 4000
        assert abs(together.std() / stddev - 1) < 0.06 and abs(together.mean()) < 6 * stddev / np.sqrt(len(together))
        assert len(leaves) == 1 or abs(np.corrcoef(leaves[0], leaves[1])[0, 1]) < 0.1
        assert [float(part.weight) for part in one] == [0, 0, 0]
        for a, b, c in zip(leaves, *([x for x in tf.nest.flatten(s) if x.shape.rank] for s in (again, other))):
            assert np.array_equal(a, np.ravel(b)) and not np.array_equal(a, np.ravel(c))


@pytest.mark.parametrize("name", CAN_HIDE)
def test_noise_changes_no_variance_by_more_than_its_factor(name):
    stacked, anchor = models_like()
    rule = rules.private(name, clip_norm=3.0, noise_multiplier=50.0, cohort_size=8)
    total = rule.randomise(total_of(rule, stacked, anchor, np.ones(8, np.float32)), tf.constant([0, 1]))
    pooled = rule.pool(total, anchor).weights.posterior
    assert np.all(np.isfinite(pooled.mean[0]))
    # Rules for one round give an eighth besides; the linear pool's is a difference, which a round raises to its floor.
    share = pooled.variance[0] / anchor.posterior.variance[0] * (8 if rule.traits.one_shot else 1)
    assert np.all(share < 4.001) and (name == "linear_pool" or np.all(share > 0.2499))


def test_the_sum_counts_as_so_many_clients_however_many_came():
    stacked, anchor = models_like()
    rule = rules.private("naive_weighted_average", clip_norm=1e6, noise_multiplier=0.0, cohort_size=16)
    pooled = pooled_by(rule, stacked, anchor, np.ones(8, np.float32)).posterior.mean[0]
    whole = pooled_by(rules.whole_model("naive_weighted_average"), stacked, anchor, np.ones(8, np.float32)).posterior
    np.testing.assert_allclose(
        pooled - anchor.posterior.mean[0], (whole.mean[0] - anchor.posterior.mean[0]) / 2, atol=1e-6
    )


def test_sums_in_a_dictionary_are_those_of_a_tuple():
    """The noise leaves out the number of clients, which the server knows, in either form."""
    average = rules.naive_weighted_average()
    kind = type(average.units(MeanField((), ())))
    listed = average._replace(
        summarise=lambda *given: average.summarise(*given)._asdict(),
        pool=lambda total, anchor: average.pool(kind(**total), anchor),
        units=lambda anchor: average.units(anchor)._asdict(),
    )
    stacked, anchor = models_like()
    weights = np.ones(8, np.float32)
    options = {"clip_norm": 1.0, "cohort_size": 8}
    quiet = [rules.private(rule, noise_multiplier=0.0, **options) for rule in (average, listed)]
    tf.nest.map_structure(np.testing.assert_array_equal, *(pooled_by(x, stacked, anchor, weights) for x in quiet))
    loud = rules.private(listed, noise_multiplier=1.0, **options)
    total = total_of(loud, stacked, anchor, weights)
    before, after = (x.sums.posterior for x in (total, loud.randomise(total, tf.constant([1, 2]))))
    assert before["weight"] == after["weight"] and np.all(before["first"][0] != after["first"][0])
