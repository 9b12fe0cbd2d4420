"""Sites: what one client learns in closed form, and that the server's posterior is always prior prod_k t_k.

Each example of `exact_table` touches one weight alone, and `signs` draws labels one standard deviation off: then the
estimate of the curvature has no noise, and precisions are those of the conjugate posterior to float32.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import processes
from tests.kit import refuses
from tfp_bfl import algorithms, models
from tfp_bfl.algorithms.factors.factor import Factor
from tfp_bfl.algorithms.factors.work import factors, natural
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import DenseFlipout
from tfp_bfl.training.likelihoods import Likelihood, gaussian
from tfp_bfl.weights import Population, ServerMessage, get_weights, prior

more = pytest.mark.deep(after="tests/algorithms/factors/test_factor_work.py")
NUM_WEIGHTS, NOISE = 4, 0.5
SPEC = ClientExamples(
    tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, NUM_WEIGHTS], tf.float32), tf.TensorSpec([None], tf.float32)
)
PRIOR_PRECISION = 1 / 2.0**2


def _signs(outputs, seed):
    drawn = tf.random.stateless_uniform(tf.shape(outputs)[:1], seed)
    return outputs[:, 0] + NOISE * tf.sign(drawn - 0.5)


signs = Likelihood(gaussian(NOISE).nll, _signs)
EXACT = {"inference": "natural", "decay": 0.5, "likelihood": signs, "batch_size": NUM_WEIGHTS}


def model_fn(**options):
    given = {"prior_stddev": 2.0, "initial_stddev": 0.3, "kernel_initializer": "ones", **options}
    inputs = tf.keras.Input((NUM_WEIGHTS,))
    return tf.keras.Model(inputs, DenseFlipout(1, use_bias=False, **given)(inputs))


def exact_table(client=0, scale=1.0):
    features = np.diag(np.float32(scale) * np.float32([0.5, 1.0, 2.0, 4.0]))
    labels = np.float32([1.0, -2.0, 3.0, 0.5])
    return ClientExamples(np.full(NUM_WEIGHTS, client, np.int32), features, labels)


def likelihood_of(examples):
    """The natural parameters of an exact table's likelihood, [2, D]."""
    x, y = np.float64(np.diag(examples.features)), np.float64(examples.labels)
    return np.stack([x**2, x * y]) / NOISE**2


def random_table(client, number):
    rng = np.random.default_rng([7, client])
    features = np.float32(rng.normal(size=(number, NUM_WEIGHTS)) + 2 * rng.normal(size=NUM_WEIGHTS))
    labels = np.float32(features @ np.linspace(-1, 1, NUM_WEIGHTS) + NOISE * rng.normal(size=number))
    return ClientExamples(np.full(number, client, np.int32), features, labels)


def first_site(work, share=1.0):
    return work.memory(get_weights(model_fn()), share)


def run(work, examples, site, weights=None, round_number=0):
    message = ServerMessage(weights or get_weights(model_fn()), tf.constant(round_number), memory=site)
    return built(work.build)(message, tf.nest.map_structure(tf.constant, examples), tf.constant([3, round_number]))


built = functools.cache(lambda build: build())
flat = lambda q: np.stack([np.float64(x) for x in natural(q)])
prior_of = lambda: flat(prior(model_fn()))
numbers_of = lambda site: np.stack([np.float64(x) for x in site])


@functools.cache
def sites(**options):
    return factors(model_fn, **{"local_epochs": 1, **options})


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_client_alone_reaches_the_posterior_of_its_data(damping, temperature):
    """Precisions to 1e-4. The means' noise falls with the rate to 1 / 30 of a standard deviation, and they are right to
    1 / 10 here."""
    decaying = lambda r: 0.05 / tf.cast(1 + r, tf.float32)
    work = factors(
        model_fn, local_epochs=100, damping=damping, temperature=temperature, learning_rate=decaying, **EXACT
    )
    examples, site, weights = exact_table(), first_site(work), get_weights(model_fn())
    for round_number in range(25):
        result = run(work, examples, site, weights, round_number)
        site, weights = result.memory, result.weights
    wanted = prior_of() + likelihood_of(examples) / temperature
    precision, shift = flat(weights.posterior)
    np.testing.assert_allclose(precision, wanted[0], rtol=1e-4)
    assert np.all(np.abs(shift / precision - wanted[1] / wanted[0]) < 0.1 / np.sqrt(wanted[0]))
    np.testing.assert_allclose(prior_of() + numbers_of(site), [precision, shift], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("step_size", [1.0, 2.0])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_local_optimum_is_of_the_cavity_and_a_power_of_the_likelihood(step_size, temperature):
    """q_k has the precision of natural(q) - t_k / rho and of the likelihood over T rho."""
    work = factors(
        model_fn, local_epochs=200, temperature=temperature, step_size=step_size, damping=0.5, send_site=False, **EXACT
    )
    site = Factor(*(0.5 * x for x in first_site(work)))
    examples, q = exact_table(scale=0.5), flat(get_weights(model_fn()).posterior)
    result = run(work, examples, site)
    wanted = q[0] - site.precision / step_size + likelihood_of(examples)[0] / (temperature * step_size)
    found = flat(result.weights.posterior)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4)
    kept = numbers_of(site) + 0.5 * step_size * (found - q)
    np.testing.assert_allclose(numbers_of(result.memory), kept, rtol=1e-4, atol=1e-4)


def test_a_client_without_information_gives_its_site_back():
    """Features of zero: q_k is the cavity, and of the site is left what damping leaves."""
    work = factors(model_fn, local_epochs=200, damping=0.3, learning_rate=0.2, **EXACT)
    site = first_site(work, 0.6)
    result = run(work, exact_table(scale=0.0), site)
    kept = numbers_of(result.memory)
    np.testing.assert_allclose(kept[0], 0.7 * site.precision, rtol=1e-4)
    np.testing.assert_allclose(kept[1], 0.7 * site.shift, rtol=2e-2)


def test_a_client_sends_the_posterior_with_its_new_site():
    work = factors(model_fn, local_epochs=3, damping=0.3, **EXACT)
    site, q = first_site(work, 0.4), flat(get_weights(model_fn()).posterior)
    result = run(work, exact_table(), site)
    sent = q - numbers_of(site) + numbers_of(result.memory)
    np.testing.assert_allclose(flat(result.weights.posterior), sent, rtol=1e-5, atol=1e-5)
    local = run(factors(model_fn, local_epochs=3, damping=0.3, send_site=False, **EXACT), exact_table(), site)
    np.testing.assert_allclose(numbers_of(local.memory), numbers_of(result.memory), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(q + 0.3 * (flat(local.weights.posterior) - q), sent, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shares", [[1.0], [0.25, 0.75], [0.1, 0.2, 0.3, 0.4]])
def test_first_rows_are_shares_of_the_first_posterior(shares):
    work, start = sites(), get_weights(model_fn()).posterior
    rows = [numbers_of(first_site(work, share)) for share in shares]
    np.testing.assert_allclose(prior_of() + sum(rows), flat(start), rtol=1e-6)
    np.testing.assert_allclose(rows[0], shares[0] * sum(rows), rtol=1e-6)


RECIPES = {
    "partitioned_vi": functools.partial(algorithms.partitioned_vi, damping=0.5),
    "bayesian_admm": functools.partial(algorithms.bayesian_admm, damping=0.5),
    "bayesian_admm, empty": functools.partial(algorithms.bayesian_admm, damping=0.5, empty_sites=True),
}
OPTIONS = {"element_spec": SPEC, "likelihood": f"gaussian:{NOISE}", "batch_size": 8, "temperature": 1.0}
COHORTS = ((0, 1, 2), (1,), (0, 2), (2, 1), (0, 1, 2), (0,), (1, 2), (0, 2))
TABLES = [random_table(k, n) for k, n in enumerate((3, 10, 20))]


def dataset(examples):
    return tf.data.Dataset.from_tensors(tf.nest.map_structure(tf.constant, examples))


@pytest.fixture(scope="module")
def engine():
    with processes.in_this_process():
        yield


def product_of(name, state):
    """What the server holds of prior prod_k t_k."""
    if name == "partitioned_vi":
        return flat(state.weights.posterior)
    return np.stack([np.ravel(np.float64(part)) for part in (state.step.precision, state.step.shift)])


@pytest.mark.parametrize("name", ["partitioned_vi", "bayesian_admm", pytest.param("bayesian_admm, empty", marks=more)])
@pytest.mark.parametrize(
    "inference", ["natural", pytest.param("ivon", marks=more), pytest.param("backprop", marks=more)]
)
def test_prior_and_sites_make_the_servers_posterior_after_every_round(name, inference, engine):
    """To 1e-4 of each precision, whoever is in the round and whoever is faulty: that client's row stays, as do those of
    the absent; and no site's precision falls below zero."""
    steps = {"inference": inference, **({"optimizer_fn": "adam"} if inference == "backprop" else {})}
    process = RECIPES[name](model_fn, local_epochs=5, learning_rate=0.05, **steps, **OPTIONS)
    state = process.with_clients(process.initialize(), range(3), [len(t.labels) for t in TABLES])
    for number, cohort in enumerate(COHORTS):
        broken = {cohort[0]} if number in (2, 4) else set()
        factors_of = [np.float32(np.nan if k in broken else 1) for k in cohort]
        data = [dataset(TABLES[k]._replace(labels=x * TABLES[k].labels)) for k, x in zip(cohort, factors_of)]
        before, output = state, process.next(state, data)
        state = output.state
        assert output.metrics["num_faulty"] == len(broken)
        wanted = prior_of() + sum(numbers_of(Factor(*(x[k] for x in state.memory.rows))) for k in range(3))
        found = product_of(name, state)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4)
        np.testing.assert_allclose(found[1] / found[0], wanted[1] / wanted[0], rtol=1e-4, atol=1e-4)
        assert np.min(state.memory.rows.precision) >= 0
        for k in range(3):
            stays = [(a[k] == b[k]).all() for a, b in zip(before.memory.rows, state.memory.rows)]
            assert stays == [k not in cohort or k in broken] * 2


@pytest.mark.parametrize("damping", [0.2, 1.0])
def test_no_precision_below_zero_where_a_client_learns_to_be_unsure(damping):
    """One step of backprop takes s from 0.3 to more than the prior's 2: q_k then has the precision of its cavity."""
    options = {"inference": "backprop", "learning_rate": 12.0, "optimizer_fn": tf.keras.optimizers.SGD}
    work = factors(model_fn, local_epochs=1, damping=damping, likelihood=signs, **options)
    site = first_site(work)
    result = run(work, exact_table(scale=0.01), site)
    kept = numbers_of(result.memory)
    np.testing.assert_allclose(kept[0], (1 - damping) * site.precision, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(flat(result.weights.posterior)[0], PRIOR_PRECISION + kept[0], rtol=1e-5)


def test_who_joins_later_begins_without_a_site(engine):
    process = RECIPES["partitioned_vi"](model_fn, local_epochs=2, **OPTIONS)
    state = process.with_clients(process.initialize(), [0, 2], [3, 20])
    state = process.next(state, [dataset(TABLES[0]), dataset(TABLES[2])]).state
    before = state.memory
    state = process.with_clients(state, range(3), [3, 10, 20])
    for old, new in zip(before.rows, state.memory.rows):
        np.testing.assert_array_equal(new[[0, 2]], old)
        np.testing.assert_array_equal(new[1], 0 * new[1])
    state = process.next(state, [dataset(TABLES[1])]).state
    total = prior_of() + numbers_of(Factor(*(x.sum(0) for x in state.memory.rows)))
    np.testing.assert_allclose(flat(state.weights.posterior), total, rtol=1e-4, atol=1e-4)


def test_a_client_without_a_row_is_faulty(engine):
    process = RECIPES["partitioned_vi"](model_fn, local_epochs=1, **OPTIONS)
    state = process.with_clients(process.initialize(), [0, 2], [3, 20])
    output = process.next(state, [dataset(TABLES[1])])
    assert output.metrics["num_faulty"] == 1
    np.testing.assert_array_equal(flat(output.state.weights.posterior), flat(state.weights.posterior))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"damping": 1.5}, "damping is 1.5, but must be above 0 and at most 1"),
        ({"step_size": 0.0}, "step_size is 0.0, but must be"),
        ({"temperature": 0.0}, "temperature is 0.0, but must be"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"inference": "vi"}, "no inference 'vi'"),
        ({"noise": "none"}, "no noise 'none'"),
        ({"decay": 1.0}, "decay is 1.0, but must be at least 0 and below 1"),
        ({"likelihood": "poisson"}, "no likelihood 'poisson'"),
        ({"empty": True}, "Sites that are empty at first can't be sent"),
    ],
)
def test_numbers_and_names_out_of_range(given, message):
    refuses(message, factors, model_fn, **given)


@pytest.mark.parametrize("kind", ["deterministic", "mc_dropout"])
def test_point_weights_have_no_sites(kind):
    refuses("has point weights only: build it with kind 'flipout'", factors, functools.partial(models.mlp, kind))


def test_a_first_posterior_wider_than_the_prior():
    with pytest.raises(InvalidArgument, match=r"above its prior's, 0.2, .* build the model with a smaller"):
        factors(functools.partial(model_fn, prior_stddev=0.2))


def test_a_first_posterior_as_wide_as_the_prior_is_no_site():
    as_wide = functools.partial(model_fn, initial_stddev=2.0)
    site = factors(as_wide).memory(get_weights(as_wide()), 1.0)
    np.testing.assert_allclose(site.precision, 0, atol=1e-6)


@pytest.mark.parametrize(("federation", "size"), [((0, 0), 4), ((3, 40), 40)])
def test_the_reported_elbo_is_that_of_all_data(federation, size):
    """KL / N with the N of all clients, where somebody has said it."""
    work = factors(model_fn, local_epochs=1, **EXACT, temperature=0.5)()
    message = ServerMessage(get_weights(model_fn()), tf.constant(0), memory=first_site(factors(model_fn)))
    message = message._replace(federation=Population(*map(tf.constant, federation)))
    metrics = work(message, tf.nest.map_structure(tf.constant, exact_table()), tf.constant([3, 0])).metrics
    np.testing.assert_allclose(metrics.tempered_elbo, -(metrics.nll + 0.5 * metrics.kl / size), rtol=1e-6)
    assert metrics.kl > 0


def test_a_first_site_is_made_in_another_graph():
    """TensorFlow Federated builds one of its own, which captures no tensor from outside."""
    model = models.mlp(kind="flipout", input_shape=(2,), num_classes=2, hidden=(3,))
    memory = factors(model).memory
    weights = tf.nest.map_structure(np.asarray, get_weights(model))
    expected = memory(weights, 0.5)
    with tf.Graph().as_default():
        site = memory(weights, 0.5)
        found = tf.compat.v1.Session().run(site)
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
