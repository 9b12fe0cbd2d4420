"""The algorithm default: its clients' work, what it composes with, and rest at the exact posterior.

The problems are those of `tests/test_truth.py`.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tests.processes import in_this_process
from tests.test_truth import EQUAL, OF_DATA, SIZES, exact, model_fn, problem, rms
from tfp_bfl import algorithms, clients, federated, models
from tfp_bfl.algorithms.default import FIRST_STDDEV
from tfp_bfl.algorithms.drift import with_flat_values
from tfp_bfl.data import ClientExamples, iid, load
from tfp_bfl.posterior import MeanField
from tfp_bfl.privacy import Privacy
from tfp_bfl.training.schedules import falling
from tfp_bfl.weights import Population, RoundSize, ServerMessage, get_weights, layout
from tfp_bfl.weights.exchange import AtTemperature

from .drift_methods import NUM_WEIGHTS, values
from .method import CLIENTS, mlp
from .method import SIZES as OF_CLIENTS

SMALL = {"local_epochs": 1, "batch_size": 8}
NUM_VARIANCES = 30 * 3 + 3 * 2
ROUNDS = 60


def reached(steps, momentum=0.9):
    """The sum of the coefficients of the gradients after so many steps."""
    return sum((1 - momentum ** (j + 1)) / (1 - momentum) for j in range(steps))


def found_and_alone(client, **options):
    """Return what a client of the algorithm sends in round 20 of 40, one of the plain work, and the server's."""
    of_model = mlp("flipout")
    weights, examples = get_weights(of_model()), tf.nest.map_structure(tf.constant, CLIENTS.examples(client))
    message = ServerMessage(weights, tf.constant(20), federation=Population(3, sum(OF_CLIENTS), rounds=tf.constant(40)))
    work = algorithms.default(of_model, variance_bits=32, **options).client_work
    rates = {"learning_rate": falling(0.03, 3, 3e-3), "first_stddev": FIRST_STDDEV, "temperature": 0.06}
    alone = clients.variational(of_model, **options, **rates)
    return *(x()(message, examples, tf.constant([1, 2])).weights for x in (work, alone)), weights


@pytest.mark.deep(after="tests/algorithms/test_default.py")
@pytest.mark.parametrize("client", range(3))
def test_a_client_sends_its_training_as_of_a_client_of_mean_size(client):
    """Two, three and two batches; the mean size is 15 examples, two batches."""
    found, wanted, weights = found_and_alone(client, **SMALL)
    share = reached(2) / reached(-(-OF_CLIENTS[client] // 8))
    moved = lambda x: values(x) - values(weights)
    np.testing.assert_allclose(moved(found), share * moved(wanted), rtol=1e-3, atol=1e-7)
    assert (share == 1) == (client != 1) and np.abs(moved(wanted)).max() > 1e-3
    assert_same(found.posterior.variance, wanted.posterior.variance, rtol=1e-6)


@pytest.mark.deep(after="tests/algorithms/test_default.py")
@pytest.mark.parametrize("client", range(3))
def test_a_client_of_more_estimates_moves_the_precision_as_one_of_mean_size(client):
    """Two estimates, three and two of batches of one example, each with a tenth of an eighth or a 21st; and two."""
    found, wanted, weights = (x.posterior for x in found_and_alone(client, local_epochs=1, batch_size=1))
    share = lambda steps: 1 - np.prod([1 - max(1 / (21 + j), 0.1 * 0.5**3) for j in range(-(-steps // 8))])
    ratio = share(sum(OF_CLIENTS) // 3) / share(OF_CLIENTS[client])
    for a, b, start in zip(found.variance, wanted.variance, weights.variance):
        a, b, start = (1 / np.float64(x) for x in (a, b, start))
        np.testing.assert_allclose(a, start + ratio * (b - start), rtol=1e-5)
    assert (ratio == 1) == (client != 1)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_server_s_steps_are_those_of_its_equations(steps):
    """Rounds 12 to 14 of 40 in NumPy; three clients, of which one of mean size has so many steps."""
    of_model, rng = mlp("flipout"), np.random.default_rng(0)
    step, weights = algorithms.default(of_model, local_epochs=steps, batch_size=64).server_step, get_weights(of_model())
    present = Population(3, sum(OF_CLIENTS))
    size = RoundSize(3, sum(OF_CLIENTS), 1.0, present, rounds=tf.constant(40))
    state = step.initialize(weights)
    state = state._replace(adam={**state.adam, "step": tf.constant(12)})
    w, mean, square = np.float64(values(weights)), 0.0, 0.0
    unit = lambda x: np.full(x.shape, np.sqrt(2 / np.prod(x.shape[:-1])) if x.ndim > 1 else 0.1)
    units = np.concatenate([np.ravel(unit(np.asarray(x))) for x in (*weights.posterior.mean, *weights.point)])
    carried = sum(0.7**j for j in range(1, steps + 1)) / 0.3 / reached(steps)
    for done in range(12, 15):
        d = 1e-3 * rng.normal(size=w.shape)
        share = (1 + np.cos(np.pi * done / 40)) / 2
        rate, before = 0.03 * share**3, mean
        mean, square = 0.7 * mean - 0.3 * d / rate, 0.99 * square + 0.01 * (d / rate) ** 2
        adam = mean / (1 - 0.7 ** (done + 1)) / (np.sqrt(square / (1 - 0.99 ** (done + 1))) + 1e-7)
        start = weights
        pooled = with_flat_values(weights, np.float32(values(weights) + d))
        state, weights = step.next(step.meet(state, size), start, pooled, tf.constant([1, 2]), tf.constant(0.1))
        w += (1 - share / 2) * (d - rate * carried * before) - 0.1 * share * units * adam
        np.testing.assert_allclose(values(weights), w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "bits"),
    [
        ({}, 32 * NUM_WEIGHTS + 8 * NUM_VARIANCES + 3 * 32),
        ({"variance_bits": 32}, None),
        ({"robust": "median"}, None),
        ({"robust": "clip:0.5"}, None),
        ({"secure_sums": float(max(OF_CLIENTS))}, None),
        ({"weighting": "equal", "privacy": Privacy(1e6, 0.0, len(OF_CLIENTS))}, None),
        ({"weighting": "distance"}, None),
        ({"compressor": "quantiser:16"}, 0.6 * 32 * NUM_WEIGHTS),
    ],
    ids=lambda x: "-".join(x) or "alone" if isinstance(x, dict) else None,
)
@pytest.mark.deep(after="tests/algorithms/test_default.py")
def test_two_rounds_with_each_way_to_change_what_clients_send(options, bits):
    """Eight bits for variances where nothing else of the process looks at them: `bits` is the most of a client."""
    process = algorithms.default(mlp("flipout"), **SMALL, **options)
    cohort = len(OF_CLIENTS) if "privacy" in options else None
    result = federated.simulate(process, CLIENTS, 2, cohort, engine="local")
    sent = result.rounds[-1].get("upload_bits")
    assert sent is bits is None or sent <= 3 * bits
    assert (result.state.step.adam["step"], result.state.step.rounds) == (2, 2)
    start = values(process.initialize().weights)
    assert np.abs(values(result.state.weights) - start).max() > 0.01


@pytest.mark.deep(after="tests/algorithms/test_default.py")
@pytest.mark.parametrize("kind", ["deterministic", "mc_dropout"])
def test_models_without_gaussian_weights_have_the_same_steps(kind):
    result = federated.simulate(algorithms.default(mlp(kind), **SMALL), CLIENTS, 2, engine="local")
    losses = [row["nll"] for row in result.rounds]
    assert losses[1] < losses[0] and not result.state.weights.posterior.mean


@pytest.mark.parametrize(
    ("loss", "done", "wanted"),
    [
        (0.03, 0, 0.045),
        (0.001, 30, 0.01),
        (0.15, 59, 0.27),
        (0.9, 0, 0.06 * (0.5 / 0.06) ** ((0.5 - 0.5 * np.cos(np.pi / 60)) ** 2)),
        (0.9, 29, 0.06 * (0.5 / 0.06) ** 0.25),
        (0.9, 59, 0.5),
    ],
)
def test_the_temperature_follows_from_the_loss_and_the_precisions_of_the_data_with_it(loss, done, wanted):
    """After round `done` of 60."""
    of_model = mlp("flipout")
    step, weights = algorithms.default(of_model, **SMALL).server_step, get_weights(of_model())
    state = step.initialize(weights)
    state = state._replace(
        rounds=tf.constant(60), most=tf.constant(0.5), adam={**state.adam, "step": tf.constant(done)}
    )
    still = lambda step, *more: step.next(state, weights, weights, tf.constant([1, 2]), *more)[1]
    after, moved = step.next(state, weights, weights, tf.constant([1, 2]), tf.constant(loss))
    assert float(after.temperature) == pytest.approx(wanted, rel=1e-5)
    assert float(step.send(after, moved).temperature) == float(after.temperature)
    assert float(step.metrics(after, moved, ())["temperature"]) == float(after.temperature)
    alone = still(algorithms.default(of_model, temperature=0.06, **SMALL).server_step)
    of_prior = [1 / w.prior**2 for w in layout(of_model()).variational]
    for new, old, prior in zip(moved.posterior.variance, alone.posterior.variance, of_prior):
        np.testing.assert_allclose(1 / new - prior, 0.06 / wanted * (1 / old - prior), rtol=2e-4)
    np.testing.assert_array_equal(values(moved), values(alone))
    lower = step.next(after, moved, moved, tf.constant([1, 2]), tf.constant(2 * loss))[0]
    assert float(lower.loss) == pytest.approx(loss)


def test_a_client_sends_its_loss_as_a_share_of_a_guess_s_and_trains_at_the_temperature_of_the_message():
    weights, examples = get_weights(mlp("flipout")()), tf.nest.map_structure(tf.constant, CLIENTS.examples(0))
    message = ServerMessage(weights, tf.constant(0), federation=Population(3, sum(OF_CLIENTS), rounds=tf.constant(40)))
    results = {}
    for given, sent in ((None, 0.06), (None, 0.03), (0.03, None)):
        work = algorithms.default(mlp("flipout"), temperature=given, variance_bits=32, **SMALL).client_work
        extra = () if sent is None else AtTemperature(tf.constant(sent))
        results[given, sent] = work()(message._replace(extra=extra), examples, tf.constant([1, 2]))
    cold, warm, fixed = (results[key] for key in ((None, 0.03), (None, 0.06), (0.03, None)))
    assert float(cold.extra) == pytest.approx(float(cold.metrics.nll) / np.log(2)) and fixed.extra == ()
    precision = lambda x: 1 / np.concatenate([np.ravel(v) for v in x.weights.posterior.variance])
    np.testing.assert_allclose(precision(cold), precision(fixed), rtol=1e-6)
    np.testing.assert_allclose(precision(cold) - 1, 2 * (precision(warm) - 1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("flipout", {"temperature": 0.06}),
        ("flipout", {"likelihood": "heteroscedastic"}),
        ("flipout", {"weighting": "equal", "privacy": Privacy(1e6, 0.0, len(OF_CLIENTS))}),
        ("mc_dropout", {}),
    ],
)
def test_a_temperature_that_does_not_follow_needs_no_number_of_the_clients(kind, options):
    process = algorithms.default(mlp(kind), **SMALL, **options)
    assert process.client_work.extra is None and process.initialize().step.temperature == ()
    assert isinstance(process.settings["temperature"], float)


@pytest.mark.deep(after="tests/algorithms/test_default.py")
@pytest.mark.statistical
def test_labels_without_information_leave_the_temperature_high():
    """Twenty rounds on digits: 0.057 with their labels, 0.5 with shuffled ones, and 0.06 with 900 of them."""
    found, source = [], load("digits")
    shuffled = np.random.default_rng(0).permutation(source.labels)
    for labels, rows in ((source.labels, 1400), (shuffled, 1400), (shuffled, 900)):
        some = dataclasses.replace(source, features=source.features[:rows], labels=labels[:rows])
        process = algorithms.default(lambda: models.mlp("flipout", input_shape=(8, 8, 1), num_classes=10))
        rounds = federated.simulate(process, some.partition(iid(4), seed=0), 20, engine="local").rounds
        found.append(rounds[-1]["temperature"])
    np.testing.assert_allclose(found[1:], [0.5, 0.06], rtol=0.05)
    assert found[0] < 0.08


def test_options_that_are_its_own_are_refused():
    for name in ("optimizer", "inference", "first_stddev", "kl", "proximal", "rule"):
        refuses(f"no option of default '{name}'", algorithms.default, mlp("flipout"), **{name: "sgd"})


@pytest.mark.parametrize("name", ["learning_rate", "server_learning_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_rates_that_are_none_are_refused(name, value):
    refuses(f"^{name} is .*, but must be a finite number above 0", algorithms.default, mlp("flipout"), **{name: value})


@functools.cache
def near_the_end(sizes, seed, done):
    """Errors of the mean [5] in standard deviations, and ratios of the variances, in rounds from the exact posterior.

    The state is that of a run of 60 rounds, of which so many are done.
    """
    with in_this_process():
        process = algorithms.default(model_fn, **OF_DATA)
        mean, variance = exact(seed, sizes)
        first = process.initialize()
        shape = first.weights.posterior.mean[0].shape
        at = MeanField(*((np.float32(np.reshape(x, shape)),) for x in (mean, variance)))
        state = process.with_clients(first, range(len(sizes)), sizes, ROUNDS)
        step = state.step._replace(rounds=np.int32(ROUNDS), adam={**state.step.adam, "step": np.int32(done)})
        state = state._replace(round=np.int32(done), step=step, weights=state.weights._replace(posterior=at))
        data = [
            tf.data.Dataset.from_tensors(ClientExamples(np.full(len(y), k, np.int32), x, y))
            for k, (x, y) in enumerate(zip(*problem(seed, sizes)))
        ]
        found = []
        for _ in range(ROUNDS - done):
            state = process.next(state, data).state
            m, v = (np.ravel(x) for x in state.weights.posterior)
            found.append((rms((m - mean) / np.sqrt(variance)), np.exp(np.mean(np.log(v / variance)))))
    return np.transpose(found)


@pytest.mark.deep(after="tests/algorithms/test_default.py")
@pytest.mark.statistical
@pytest.mark.parametrize("sizes", [EQUAL, SIZES], ids=["equal", "unequal"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_at_the_exact_posterior_the_last_rounds_stay(sizes, seed):
    """Started there with 10 of 60 rounds to go, in which both rates fall to zero, and with an empty state of Adam, of
    which the first steps are longer than those of a run.

    Means are .15, .24 and .21 standard deviations off at the end on problems 0 to 2 with equal clients, at most .23,
    .27 and .44 in between; with unequal ones .14, .18 and .15, and at most .21, .22 and .29. Variances are .98 to 1.02
    times the exact ones, and .96 to 1.03 with unequal clients.
    """
    errors, ratios = near_the_end(sizes, seed, ROUNDS - 10)
    assert errors.max() < 0.6 and errors[-1] < 0.3, errors
    assert ratios.min() > 0.85 and ratios.max() < 1.1, ratios


@pytest.mark.deep(after="tests/algorithms/test_default.py")
@pytest.mark.statistical
def test_in_the_middle_of_a_run_it_does_not_stay():
    """The same start with half of the rounds to go, where rates are high: the error rises to 1.3, and falls to .11."""
    errors, _ = near_the_end(EQUAL, 0, ROUNDS // 2)
    assert errors.max() > 0.4 > 0.25 > errors[-1]
