"""Posterior averaging with what it can not use: refused before work starts, or counted and named in the round."""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.method import CLIENTS, SOURCE
from tests.federated.toys import spoilt
from tfp_bfl import algorithms, federated, models, servers
from tfp_bfl.algorithms.averaging.work import posterior_averaging
from tfp_bfl.algorithms.chains.step import langevin
from tfp_bfl.algorithms.kernel import KernelModes, kernel_modes
from tfp_bfl.data import Clients
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.weights import get_weights

NAN, INF = float("nan"), float("inf")
MODEL = functools.partial(models.mlp, "deterministic", hidden=(3,))
NUM_WEIGHTS = sum(int(tf.size(w)) for w in get_weights(MODEL()).point)
TRAINING = {"local_epochs": 2, "batch_size": 16, "learning_rate": 0.1}
EIGHT = Clients(SOURCE, np.split(np.arange(80), 8))
# Seven clients of one and the same example, and one of another: no weight has an interquartile range.
TIED = Clients(SOURCE, [[0]] * 7 + [[int(np.flatnonzero(SOURCE.labels != SOURCE.labels[0])[0])]])


class Untouched:
    """An engine that no work may reach."""

    def __getattr__(self, name):
        raise AssertionError(f"work started: {name} was asked for")


def refused(process, data, rounds, message, **options):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InvalidArgument, match=message):
        patch.setitem(vars(process), "local", Untouched())
        federated.simulate(process, data, rounds, **options)


def values_of(data):
    """What the clients of the first round send, [S, D], by rounds of them alone."""
    process = averaging()
    state = process.initialize()
    alone = [process.next(state, [data.dataset(k)]).state.weights.point for k in range(data.num_clients)]
    return np.stack([np.concatenate([np.ravel(w) for w in point]) for point in alone])


@functools.cache
def averaging():
    return algorithms.fed_opt(MODEL, **TRAINING)


def counted(row):
    return {name: row[name] for name in KernelModes._fields[1:]}


BURNING = {
    "fed_pa": functools.partial(algorithms.fed_pa, MODEL),
    "fed_kppa": functools.partial(algorithms.fed_kppa, MODEL),
    "fed_sgld": functools.partial(algorithms.fed_sgld, MODEL),
}


@functools.cache
def burning(name, burn_in_rounds):
    return BURNING[name](burn_in_rounds=burn_in_rounds, **TRAINING)


@pytest.mark.parametrize("name", BURNING)
@pytest.mark.parametrize("rounds", [4, 3])
def test_a_burn_in_of_the_whole_run_is_refused(name, rounds, tmp_path):
    process = burning(name, 4)
    assert process.burn_in_rounds == 4
    message = rf"^burn_in_rounds is 4, but the run has {rounds} rounds: ask for more rounds, or for fewer of burn-in\.$"
    refused(process, CLIENTS, rounds, message, checkpoint_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.deep(after="tests/algorithms/test_contract.py")
@pytest.mark.parametrize("name", BURNING)
def test_one_round_after_the_burn_in_will_do(name, runtime):
    assert len(federated.simulate(burning(name, 1), CLIENTS, 2, runtime=runtime).rounds) == 2


def test_a_composition_has_the_burn_in_of_its_parts():
    step = langevin(servers.replace(), 1e-6)
    step, work = step._replace(needs=step.needs._replace(burn_in=5)), posterior_averaging(MODEL, burn_in_rounds=4)
    process = algorithms.compose(MODEL, work, "naive_weighted_average", step)
    refused(process, CLIENTS, 5, "burn_in_rounds is 5, but the run has 5 rounds")
    assert algorithms.fed_opt(MODEL).burn_in_rounds == 0


@pytest.mark.deep(after="tests/algorithms/averaging/test_averaging_inputs.py")
def test_a_run_that_goes_on_says_which_of_the_two_is_too_few(runtime, tmp_path):
    process, folder = burning("fed_pa", 2), tmp_path / "run"
    federated.simulate(process, CLIENTS, 4, checkpoint_dir=folder, runtime=runtime)
    with pytest.raises(InvalidArgument, match="holds a run of 4 rounds: ask for that many or more"):
        federated.simulate(process, CLIENTS, 3, checkpoint_dir=folder, runtime=runtime)
    refused(process, CLIENTS, 2, "burn_in_rounds is 2, but the run has 2 rounds", checkpoint_dir=folder)
    assert len(federated.simulate(process, CLIENTS, 5, checkpoint_dir=folder, runtime=runtime).rounds) == 5


@functools.cache
def adaptive():
    return algorithms.fed_kp(MODEL, kernel_options={"bandwidth": "adaptive"}, **TRAINING)


@pytest.mark.parametrize(("data", "cohort_size"), [(EIGHT, 4), (CLIENTS, None)])
def test_cohorts_smaller_than_the_adaptive_bandwidth_needs_are_refused(data, cohort_size):
    assert (adaptive().min_clients, algorithms.fed_kp(MODEL).min_clients) == (5, 1)
    size = cohort_size or data.num_clients
    message = f"^A round has {size} clients, but the rule, kernel posterior .adaptive., needs at least 5: "
    refused(adaptive(), data, 1, message, cohort_size=cohort_size)


@pytest.mark.deep(after="tests/algorithms/kernel/test_bandwidths.py")
def test_where_clients_stay_away_the_adaptive_bandwidth_falls_back_and_is_counted(runtime):
    """Of eight clients five are faulty: Scott's bandwidth for every weight on which the other three differ."""
    features = SOURCE.features.copy()
    features[[EIGHT.indices[k][0] for k in range(5)]] = np.nan
    spoiled = Clients(spoilt(SOURCE, features), EIGHT.indices)
    for data, fallbacks in ((spoiled, True), (EIGHT, False)):
        row = federated.simulate(adaptive(), data, 1, runtime=runtime).rounds[0]
        assert row["num_fallbacks"] == (NUM_WEIGHTS - row["num_zero_spread"] if fallbacks else 0)
        assert row["num_zero_spread"] < NUM_WEIGHTS


@pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
def test_bandwidths_of_zero_reach_the_rounds_metrics(runtime):
    process = algorithms.fed_kp(MODEL, **TRAINING)
    result = federated.simulate(process, TIED, 1, runtime=runtime)
    counts = counted(result.rounds[0])
    assert counts["num_zero_bandwidths"] > 20
    assert counts["num_zero_bandwidths"] + counts["num_zero_spread"] == NUM_WEIGHTS
    values = values_of(TIED)
    assert np.abs(values - values[0]).max() > 1e-3
    point = np.concatenate([np.ravel(w) for w in result.state.weights.point])
    np.testing.assert_allclose(point, values.mean(0), rtol=1e-5, atol=1e-7)


@pytest.mark.deep(after="tests/algorithms/kernel/test_bandwidths.py")
@pytest.mark.parametrize(("bandwidth", "cohort_size"), [("plug_in", 3), ("cross_validated", 8), ("silverman", 8)])
def test_fallbacks_reach_the_rounds_metrics(runtime, bandwidth, cohort_size):
    """As many as the same values give outside a round."""
    data = Clients(SOURCE, EIGHT.indices[:cohort_size])
    process = algorithms.fed_kp(MODEL, kernel_options={"bandwidth": bandwidth}, **TRAINING)
    counts = counted(federated.simulate(process, data, 1, runtime=runtime).rounds[0])
    wanted = kernel_modes(values_of(data), start="clients", bandwidth=bandwidth)
    assert counts == {name: int(getattr(wanted, name)) for name in counts}
    assert (counts["num_fallbacks"] > 0) is (bandwidth != "silverman")


@pytest.mark.deep(after="tests/algorithms/averaging/test_averaging_work.py")
def test_a_client_of_too_few_steps_for_a_sample_is_faulty_and_named(runtime, caplog):
    """Two epochs of 9, 21 and 15 examples by 8 are 4, 6 and 4 steps."""
    options = {**TRAINING, "batch_size": 8}
    process = algorithms.fed_pa(MODEL, steps_per_sample=5, burn_in_rounds=1, **options)
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        result = federated.simulate(process, CLIENTS, 2, runtime=runtime)
    assert [row["faulty_clients"] for row in result.rounds] == [{}, {"0": "not finite", "2": "not finite"}]
    assert "Round 2 continues without faulty clients: client 0: not finite; client 2" in caplog.text
    assert all(np.all(np.isfinite(w)) for w in result.state.weights.point)


FEATURES = SOURCE.features[:9]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fed_pa", {"local_epochs": 3, "local_burn_in_epochs": 3}, "all 3 local epochs are burn-in"),
        ("fed_kppa", {"local_burn_in_epochs": 6}, "all 5 local epochs are burn-in"),
        ("fed_pa", {"burn_in_rounds": -1}, "burn_in_rounds is -1"),
        ("fed_sgld", {"burn_in_rounds": -1}, "burn_in_rounds is -1"),
        ("fed_sgld", {"step_size": "hot"}, "step_size is 'hot', but must be a finite number above 0"),
        ("fed_prox", {"proximal": "0.1"}, "proximal is '0.1'"),
        ("fed_kp", {"kernel_options": {"scale": 0}}, "a bandwidth of zero finds no mode"),
        ("fed_kp", {"kernel_options": {"bandwith": "scott"}}, "no option of the kernel 'bandwith': did you mean"),
        ("fed_kppa", {"kernel_options": {"x": 1}}, "'x': choose one of 'bandwidth', 'kernel', 'max_iterations'"),
        ("fed_kp", {"kernel_options": {"start": "mean"}}, "no option of the kernel 'start'"),
        ("fed_kp", {"kernel_options": "gaussian"}, "options of the kernel are 'gaussian', but must be a dictionary"),
        ("fed_kp", {"start": "median"}, "There is no start 'median'"),
        ("fed_kp", {"kernel_options": {"bandwidth": "adaptive"}, "robust": "median"}, "needs at least 5: use trimmed"),
        ("fed_ag", {"robust": "median"}, "A median leaves one or two values of each weight, but the rule client_gau"),
        ("fed_be", {"likelihood": "heteroscedastic"}, "fed_be distils the probabilities of classes"),
        ("fed_be", {"ensemble": {"num_model": 3}}, "no option of the ensemble 'num_model': did you mean 'num_models'"),
        ("fed_be", {"ensemble": {"server_step": None}}, "no option of the ensemble 'server_step'"),
        ("fed_be", {"features": None}, "features are None, but must be numbers"),
        ("fed_be", {"features": [[1.0], [1.0, 2.0]]}, r"features are \[\[1.0\], \[1.0, 2.0\]\], but must be numbers"),
        ("fed_be", {"features": np.array([["a"] * 30])}, "but must be numbers"),
        ("fed_be", {"features": FEATURES[:, :29]}, r"has shape \[29\], but the model takes \[30\]"),
        ("fed_be", {"features": FEATURES[0]}, r"has shape \[\], but the model takes \[30\]"),
        ("fed_opt", {"server_optimizer": "adam"}, "optimizer must have initialize and next.* but is 'adam'"),
        ("fed_ag", {"server_optimizer": 0.5}, "optimizer must have initialize and next.* but is 0.5"),
        ("fed_kp", {"server_optimizer": {}}, "optimizer must have initialize and next"),
    ],
)
def test_bad_options_of_recipes(name, options, message):
    with pytest.raises(InvalidArgument, match=message) as caught:
        getattr(algorithms, name)(MODEL, **({"features": FEATURES, **options} if name == "fed_be" else options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("popularity", [0, 0.0, -1.0, NAN, INF, "1", True])
def test_bad_popularity(popularity, tmp_path):
    message = "popularity is .*, but must be a finite number above 0"
    options = {"cohort_size": 2, "checkpoint_dir": tmp_path / "run"}
    refused(averaging(), EIGHT, 1, message, popularity=popularity, **options)
    refused(averaging(), EIGHT, 1, message, popularity=popularity)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({"robust": "trimmed:0.3"}, EIGHT, r"A round has 8 clients, but the rule, trimmed kernel.*at least 11"),
        ({}, Clients(SOURCE, np.split(np.arange(80), 4)), r"A round has 4 clients, but the rule, kernel.*at least 5"),
    ],
)
def test_an_adaptive_bandwidth_needs_five_values_that_are_left(options, data, message):
    """Leave 5 of 11 clients, and 4 of 8, when 0.3 are trimmed at each end."""
    process = algorithms.fed_kp(MODEL(), kernel_options={"bandwidth": "adaptive"}, **options, **TRAINING)
    refused(process, data, 1, message)


def test_fed_ag_needs_two_clients_a_round():
    refused(algorithms.fed_ag(MODEL(), **TRAINING), EIGHT, 1, "A round has 1 clients, but the rule", cohort_size=1)
