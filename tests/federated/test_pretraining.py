"""Training on the server's share before the federation: the best epoch is kept, and the rounds start from it."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import federated
from tfp_bfl.data import Clients
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.weights import get_weights

from .test_simulation import CLIENTS, SOURCE, build

SERVER = Clients(SOURCE, [np.arange(40)])


def scripted(accuracies):
    """An evaluation with given results, which records the weights that it receives."""
    seen, left = [], list(accuracies)

    def evaluate(model):
        seen.append(tf.nest.map_structure(lambda x: x.numpy(), get_weights(model)))
        return {"accuracy": left.pop(0)}

    return evaluate, seen


@pytest.fixture
def simulate(runtime):
    return functools.partial(federated.simulate, build(), CLIENTS, runtime=runtime)


@pytest.fixture
def pretrain(runtime):
    return functools.partial(federated.pretrain, build(), SERVER, runtime=runtime)


@pytest.mark.parametrize(
    ("accuracies", "best", "epochs"),
    [([0.1, 0.3, 0.2, 0.3, 0.25, 0.9], 2, 4), ([0.1, 0.2, 0.3, 0.4], 4, 4), ([0.5, 0.5, 0.5, 0.6], 1, 3)],
)
def test_best_epoch_is_kept_and_training_ends_patience_epochs_after_it(pretrain, accuracies, best, epochs):
    evaluate, seen = scripted(accuracies)
    result = pretrain(evaluate, max_epochs=4, patience=2)
    assert (result.epoch, len(result.rounds), result.accuracy) == (best, epochs, accuracies[best - 1])
    assert_same(result.weights, seen[best - 1])


def test_several_clients_or_no_patience_are_refused(pretrain, runtime):
    refuses("patience", pretrain, lambda model: {"accuracy": 0.0}, patience=0)
    with pytest.raises(InvalidArgument, match="as one client, but there are 5"):
        federated.pretrain(build(), CLIENTS, lambda model: {"accuracy": 0.0}, runtime=runtime)


def test_rounds_start_from_given_weights(simulate):
    whole = simulate(rounds=3, seed=1)
    first = simulate(rounds=1, seed=1)
    other = simulate(rounds=1, seed=1, start=first.state.weights)
    assert_same(simulate(rounds=1, seed=1, start=build().initialize().weights).state, first.state)
    assert other.state.round == 1 and other.rounds[0]["nll"] < first.rounds[0]["nll"]
    assert whole.rounds[0]["nll"] == first.rounds[0]["nll"]


def test_stop_ends_the_simulation_early(simulate):
    result = simulate(rounds=5, seed=1, stop=lambda row: row["round"] == 2)
    assert len(result.rounds) == 2 and result.state.round == 2
    assert_same(result.state.weights, simulate(rounds=2, seed=1).state.weights)
    assert_same(get_weights(result.model), result.state.weights, rtol=1e-5, atol=1e-6)
