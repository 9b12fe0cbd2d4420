"""Training that diverges: its round, client and local step are named, and the rate to try."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tests.federated.toys import spoilt
from tfp_bfl import algorithms, federated, models
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.data import Clients, Source
from tfp_bfl.errors import Diverged, Error
from tfp_bfl.federated.attempts import NO_CLIENTS, Attempted
from tfp_bfl.federated.faults import FAULTS
from tfp_bfl.federated.notices import divergence_clause, smaller_rate
from tfp_bfl.training import ExamplePrivacy

NUM_CLIENTS, NUM_EXAMPLES = 3, 8
FEATURES = np.random.RandomState(0).normal(size=(NUM_CLIENTS * NUM_EXAMPLES, 2)).astype(np.float32)
SOURCE = Source("made", "train", FEATURES, (FEATURES[:, 0] > 0).astype(np.int32), ("no", "yes"))
CLIENTS = Clients(SOURCE, np.arange(NUM_CLIENTS * NUM_EXAMPLES).reshape(NUM_CLIENTS, -1))


def model(kind="deterministic"):
    return lambda: models.mlp(kind, input_shape=(2,), hidden=(4,), num_classes=2, seed=1)


def process(kind="deterministic", **options):
    return algorithms.variational(model(kind), **{"local_epochs": 3, "batch_size": NUM_EXAMPLES, **options})


def diverged_at(process, clients=CLIENTS):
    local = process.local
    state = process.with_clients(local.initialize(), range(NUM_CLIENTS), clients.sizes)
    if not isinstance(state.noise, tuple):
        state = state._replace(noise=np.int32([1, 2]))
    report = local.next(state, clients.shards(range(NUM_CLIENTS), most=2)).metrics["clients"]
    return report["diverged_at"].tolist()


@pytest.mark.parametrize(("learning_rate", "step"), [(0.01, 0), (1e9, 2)])
def test_the_first_step_with_a_loss_beyond_all_bounds(learning_rate, step):
    """The loss of a step is that before its weights move."""
    assert diverged_at(process(learning_rate=learning_rate, optimizer_fn="sgd")) == [step] * NUM_CLIENTS


def test_a_last_step_that_leaves_weights_that_are_not_finite():
    """Its loss was finite; those of client 1 stay finite."""
    features = spoilt(SOURCE, 1e3 * FEATURES)
    options = {"local_epochs": 1, "learning_rate": lambda rounds: tf.constant(3e38), "optimizer_fn": "sgd"}
    assert diverged_at(process(**options), Clients(features, CLIENTS.indices)) == [1, 0, 1]


def test_client_work_with_private_examples_does_not_report_the_step():
    privacy = ExamplePrivacy(clip_norm=1e15, noise_multiplier=1.0)
    assert diverged_at(process(learning_rate=1e15, optimizer_fn="sgd", example_privacy=privacy)) == [0] * NUM_CLIENTS


@pytest.mark.parametrize("algorithm", ["variational", "partitioned_vi"])
def test_natural_steps_that_diverge(algorithm):
    """In which round and step numbers overflow depends on the processor's rounding."""
    options = {"local_epochs": 3, "batch_size": NUM_EXAMPLES, "inference": "natural", "learning_rate": 1e5}
    unstable = getattr(algorithms, algorithm)(model("flipout"), **options)
    with pytest.raises(
        Error,
        match=r"^No training succeeded in round [12], in 1 attempt: every client was faulty: client 0: .*; "
        r"training diverged first at client 0, in local step [13](, the first one: check the size of its features "
        r"too)?; where all fail at once, look at learning_rate "
        r"\(100000.0\).* first: training diverges at too large a rate, try a tenth of learning_rate 100000, 10000\.$",
    ):
        federated.simulate(unstable, CLIENTS, 3, engine="local")


def test_the_log_names_the_client_and_its_local_step(caplog):
    features = FEATURES.copy()
    features[NUM_EXAMPLES : 2 * NUM_EXAMPLES] = np.nan
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        clients = Clients(spoilt(SOURCE, features), CLIENTS.indices)
        result = federated.simulate(process(learning_rate=0.01), clients, 1, engine="local")
    assert result.rounds[0]["faulty_clients"] == {"1": "not finite"}
    diverged = "client 1: not finite; training diverged first at client 1, in local step 1, the first one: check the"
    assert f"{diverged} size of its features too." in caplog.text


@pytest.mark.parametrize("driver", [federated.simulate, simulate_chains], ids=lambda x: x.__name__)
def test_a_server_step_that_diverges_names_the_rate_to_try(driver):
    chain = algorithms.qlsd(model(), step_size=1e4, batch_size=4)
    options = {"engine": "local"} if driver is federated.simulate else {}
    with pytest.raises(Diverged, match=r"after round \d+, .* clients \(try a tenth of step_size 10000, 1000\); the"):
        driver(chain, CLIENTS, 50, **options)


@pytest.mark.parametrize(
    ("settings", "clause"),
    [
        ({"learning_rate": "0.03"}, "try a tenth of learning_rate 0.03, 0.003"),
        ({"learning_rate": "1e-05, 0.002", "step_size": "9.0"}, "try a tenth of learning_rate 0.002, 0.0002"),
        ({"learning_rate": "None", "step_size": "0.5"}, "try a tenth of step_size 0.5, 0.05"),
        ({"learning_rate": "None"}, ""),
        ({"rule": "replace"}, ""),
    ],
)
def test_the_rate_to_try(settings, clause):
    assert smaller_rate(settings) == clause


def test_the_first_divergence_of_several():
    assert divergence_clause({4: 0, 7: 3, 2: 3, 5: 9}) == "; training diverged first at client 2, in local step 3"
    assert divergence_clause({4: 0}) == divergence_clause({}) == ""


@pytest.mark.parametrize("fault", [x for x in FAULTS if x])
def test_the_learning_rate_is_named_where_changes_are_not_finite_or_huge(fault):
    report = {"client": np.int32([4]), "fault": np.int32([FAULTS.index(fault)]), "diverged_at": np.int32([0])}
    size = ("no examples", "fewer examples than min_examples", "more examples than it was given")
    others = (*size, "a standard deviation below min_stddev", "the server's state has no memory of it")
    assert Attempted(None, {"clients": report}).diverges == (fault not in others)


def test_a_computation_that_raised_says_nothing_of_the_rate():
    assert not Attempted(None, {"clients": NO_CLIENTS}, {3: "A computation failed: Type mismatch"}).diverges
