"""Clients' own models: what they score before and after adaptation, known clients and others."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.federated import toys
from tests.kit import refuses
from tfp_bfl.algorithms.personal.evaluation import ClientScores, evaluate_clients, summarise_clients

ROWS = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
LABELS = (ROWS[:, 0] > 0).astype(np.int32)
# The second client calls everything by the other name.
LABELS[60:] = 1 - LABELS[60:]
SOURCE = bfl.data.Source("rows", "train", ROWS, LABELS, ("no", "yes"))
TRAIN = bfl.data.Clients(SOURCE, [np.arange(40), np.arange(60, 100)])
TEST = bfl.data.Clients(SOURCE, [np.arange(40, 60), np.arange(100, 120)])


def model_fn():
    return bfl.models.mlp("deterministic", [2], 2, hidden=(), seed=0)


def evaluate(model, features, labels):
    return bfl.evaluation.evaluate(model, features, labels, num_samples=1).metrics


def adaptation(rate=0.5, epochs=10):
    sgd = lambda: tf.keras.optimizers.SGD()
    return bfl.clients.variational(
        model_fn, local_epochs=epochs, batch_size=64, inference="backprop", learning_rate=rate, optimizer_fn=sgd
    )


@pytest.fixture(scope="module")
def trained():
    process = bfl.algorithms.fed_opt(model_fn, element_spec=SOURCE.element_spec, batch_size=16)
    return process, bfl.simulate(process, TRAIN, 3, engine="local")


def test_clients_who_contradict_each_other_agree_with_themselves_after_adaptation(trained):
    scores = evaluate_clients(*trained, TRAIN, TEST, evaluate, adaptation=adaptation(), seed=1)
    assert [score.client for score in scores] == [0, 1]
    for k, score in enumerate(scores):
        assert score.before == evaluate(trained[1].model, *TEST.examples(k)[1:])
        assert score.after["accuracy"] > 0.85
    assert summarise_clients(scores)["least"] < 0.6 < summarise_clients(scores, adapted=True)["least"]


def test_adaptation_is_to_no_more_examples_than_asked_for_and_seeded(trained):
    few = lambda seed: evaluate_clients(
        *trained, TRAIN, TEST, evaluate, adaptation=adaptation(), most_examples=4, seed=seed
    )
    assert few(1) == few(1) != few(2)


def test_one_step_of_adaptation_by_hand(trained):
    """w - rate grad of the mean cross-entropy of all examples."""
    (score, _) = evaluate_clients(*trained, TRAIN, TEST, evaluate, adaptation=adaptation(0.3, 1))
    kernel, bias = trained[1].state.weights.point
    _, rows, labels = TRAIN.examples(0)
    wrong = tf.nn.softmax(rows @ kernel + bias).numpy() - np.eye(2)[labels]
    kernel, bias = kernel - 0.3 * rows.T @ wrong / len(rows), bias - 0.3 * wrong.mean(0)
    _, rows, labels = TEST.examples(0)
    log_probabilities = tf.nn.log_softmax(rows @ kernel + bias).numpy()
    assert score.after["test_nll"] == pytest.approx(-log_probabilities[np.arange(20), labels].mean(), rel=1e-5)


def test_clients_have_models_of_their_own_by_their_numbers():
    """Those of the toy are the server's, with the client's number added to the bias."""
    process = toys.langevin_like(step=toys.descend(0.05))
    clients, _ = toys.CLIENTS.split(2)
    result = bfl.simulate(process, clients, 1, engine="local")
    bias = lambda model, features, labels: {"bias": float(model.trainable_variables[1][0])}
    scores = evaluate_clients(process, result, clients, clients, bias, first=7)
    at = float(result.state.weights.point[1][0])
    assert [score.before["bias"] for score in scores] == pytest.approx([at + 7, at + 8])
    assert [score.client for score in scores] == [7, 8] and scores[0].after is None


def test_means_over_clients_by_hand():
    scores = [ClientScores(0, 10, {"accuracy": 0.5}, {"accuracy": 1.0}), ClientScores(1, 30, {"accuracy": 0.9}, None)]
    found = summarise_clients(scores)
    assert found == pytest.approx({"uniform": 0.7, "weighted": 0.8, "least": 0.5, "greatest": 0.9})
    refuses("no scores of adapted models", summarise_clients, scores, adapted=True)
    refuses("no metric 'ece': choose one of accuracy", summarise_clients, scores, "ece")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": bfl.data.Clients(SOURCE, [np.arange(5)])}, "2 clients but 1 with test examples"),
        ({"first": -1}, "first is -1"),
        ({"most_examples": 0}, "most_examples"),
        ({"adaptation": bfl.algorithms.chains.work.stochastic_gradient(model_fn)}, "sends a model's weights and keeps"),
    ],
)
def test_bad_input_is_answered_before_anything_is_scored(trained, options, message):
    never = lambda *_: pytest.fail("scored")
    refuses(message, evaluate_clients, *trained, TRAIN, evaluate=never, **{"test": TEST, **options})
