"""Scores of clients' personal models, and personal models of clients that come later."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import WEIGHTS, ClientWork, ServerState
from tfp_bfl.data import ClientExamples, Clients
from tfp_bfl.errors import InvalidArgument, check_count, lookup
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import fold
from tfp_bfl.federated.simulation import SimulationResult
from tfp_bfl.models.conversion import without_noise
from tfp_bfl.weights import ModelWeights, Pruned, ServerMessage, predictive_model

logger = logging.getLogger(__name__)

# No round has this number: the noise of adaptation is its own.
_ADAPTATION = -3
EVALUATION_NOISES = {
    "own": "each client's model with its own noise",
    "none": "predictions by the means of the weights; adaptation has the noise of the model",
    "another": "client k has the standard deviations of client k + 1, the last one those of the first",
}


class ClientScores(NamedTuple):
    """A client's model on the client's own test examples.

    Fields:
      client: its number in the federation.
      num_examples: that it holds for training.
      before: the metrics of the model as the server gives it.
      after: the same after adaptation; None without any.
    """

    client: int
    num_examples: int
    before: dict[str, float]
    after: dict[str, float] | None = None


def evaluate_clients(
    process: BayesianProcess,
    result: SimulationResult,
    train: Clients,
    test: Clients,
    evaluate: Callable[[keras.Model, Any, Any], dict[str, float]],
    *,
    adaptation: ClientWork | None = None,
    most_examples: int | None = None,
    first: int = 0,
    seed: int = 0,
    weights: Sequence[ModelWeights] | None = None,
    noise: str = "own",
) -> list[ClientScores]:
    """Score each client's own model (`process.personal_weights`) on its test examples, before and after adaptation.

    Clients who were never in training are numbered after those who were: `first` is then the number of the latter, and
    a personal method has its rule for them. For fair comparisons all methods get the same adaptation, such as one step
    on a batch of 64:

        one_step = bfl.clients.variational(model_fn, local_epochs=1, batch_size=64, inference="backprop",
                                           learning_rate=0.02,
                                           optimizer_fn=lambda: tf.keras.optimizers.SGD(global_clipnorm=5.0))
        evaluate = lambda model, features, labels: bfl.evaluation.evaluate(model, features, labels).metrics
        scores = evaluate_clients(process, result, train, test, evaluate, adaptation=one_step, most_examples=64)

    Args:
      process, result: of a simulation.
      train: the clients' training examples, to adapt to.
      test: their test examples, client by client, such as `test_source.partition(data.like(train), seed)`.
      evaluate: model, features, labels -> metrics, such as above.
      adaptation: client work that sends a model's weights and keeps nothing; None for none.
      most_examples: of a client's training examples that it adapts to, drawn by the seed; None for all.
      first: the number of the first of these clients in the federation.
      seed: of adaptation.
      weights: of each client before adaptation, such as `fit_newcomers` gives; None for those of the process.
      noise: of the models, one of `EVALUATION_NOISES`. "another" is a control: scores as good as with "own" show that
        it does not matter which client the noise belongs to. Clients that never trained have the same noise, unless
        `weights` differ.

    Returns:
      The scores of each client, in order.
    """
    if train.num_clients != test.num_clients:
        raise InvalidArgument(
            f"There are {train.num_clients} clients but {test.num_clients} with test examples: partition the test data "
            "by data.like(train)."
        )
    if weights is not None and len(weights) != train.num_clients:
        raise InvalidArgument(f"There are {len(weights)} weights for {train.num_clients} clients: give each its own.")
    if first < 0:
        raise InvalidArgument(f"first is {first}, but must be the number of a client, at least 0.")
    if most_examples is not None:
        check_count(most_examples, "most_examples")
    starts = _starts(process, result, train.num_clients, first, noise, weights)
    adapt = _adapted(process, result, adaptation) if adaptation is not None else None
    local = train if most_examples is None else train.limit(most_examples, seed)
    model, scores = process.model_fn(), []
    silent = without_noise if noise == "none" else lambda model: model
    built = lambda weights: silent(predictive_model(model, weights))
    for k in range(train.num_clients):
        of_client = lambda model, k=k: evaluate(model, *test.examples(k)[1:])
        start = starts(k)
        common = noise == "own" and weights is None and not process.is_personal
        before = of_client(result.model if common else built(start))
        after = None
        if adapt is not None:
            examples = local.examples(k)._replace(client=np.full(len(local.indices[k]), first + k, np.int32))
            adapted = adapt(start, examples, fold(seed, first + k, _ADAPTATION))
            after = of_client(built(adapted))
        scores.append(ClientScores(first + k, len(train.indices[k]), before, after))
    return scores


def _starts(
    process: BayesianProcess,
    result: SimulationResult,
    number: int,
    first: int,
    noise: str,
    weights: Sequence[ModelWeights] | None,
) -> Callable[[int], ModelWeights]:
    """Return the function from a client's place among those evaluated to its weights before adaptation."""
    lookup(EVALUATION_NOISES, noise, "noise of evaluation")
    if noise == "another" and (number < 2 or (weights is None and not process.is_personal)):
        raise InvalidArgument(
            "noise='another' gives a client the noise of another one: evaluate at least two clients of an algorithm "
            "that gives each its own, such as meta_vd."
        )

    def own(k: int) -> ModelWeights:
        if weights is not None:
            return weights[k]
        if process.is_personal:
            return process.personal_weights(result.state, first + k)
        return result.averaged.weights if result.averaged else result.state.weights

    def with_anothers(k: int) -> ModelWeights:
        mine, other = own(k).posterior, own((k + 1) % number).posterior
        # A pruned weight is 0. It keeps the client's own noise, and so does one that the other client pruned.
        variance = tf.nest.map_structure(
            lambda m, v, n, w: tf.where((m == 0) | (n == 0), v, w), mine.mean, mine.variance, other.mean, other.variance
        )
        return own(k)._replace(posterior=mine._replace(variance=variance))

    if noise == "another":
        leaves = [[np.asarray(x) for x in tf.nest.flatten(own(k).posterior.variance)] for k in range(number)]
        same = [all(map(np.array_equal, mine, other)) for mine, other in zip(leaves, [*leaves[1:], leaves[0]])]
        if all(same):
            raise InvalidArgument(
                "noise='another' gives a client the noise of another one, but all clients here have the same, such as "
                "clients that never trained have: evaluate clients of a run that gives each its own variances."
            )
        if any(same):
            logger.warning(
                "%d of %d clients have the same noise as the next one, so that noise='another' changes nothing for "
                "them: they may have been in no round yet.",
                *(sum(same), number),
            )
    return with_anothers if noise == "another" else own


def summarise_clients(
    scores: Sequence[ClientScores], metric: str = "accuracy", adapted: bool = False
) -> dict[str, float]:
    """Return a metric over clients: "uniform" mean, mean "weighted" by training examples, "least" and "greatest".

    Args:
      scores: of `evaluate_clients`.
      metric: one that `evaluate` gave.
      adapted: of the models after adaptation.
    """
    rows = [score.after if adapted else score.before for score in scores]
    if not rows or any(row is None for row in rows):
        raise InvalidArgument(
            "There are no scores of adapted models: give evaluate_clients an adaptation, and clients."
        )
    if metric not in rows[0]:  # type: ignore[operator]
        raise InvalidArgument(f"There is no metric {metric!r}: choose one of {', '.join(rows[0])}.")  # type: ignore
    values = np.array([row[metric] for row in rows])  # type: ignore[index]
    return {
        "uniform": float(values.mean()),
        "weighted": float(np.average(values, weights=[score.num_examples for score in scores])),
        "least": float(values.min()),
        "greatest": float(values.max()),
    }


def _adapted(process: BayesianProcess, result: SimulationResult, adaptation: ClientWork) -> Any:
    """Return the function (weights, examples, seed) -> the weights after adaptation."""
    if adaptation.memory is not None or adaptation.sends != WEIGHTS:
        raise InvalidArgument(
            "adaptation must be client work that sends a model's weights and keeps nothing, such as "
            "clients.variational(model_fn)."
        )
    work, state = adaptation.build(), result.state
    has_rows = hasattr(state.step, "parameters")
    # Work with statistics of its own, such as that of the training, gets the message of the server.
    is_plain = has_rows and adaptation.extra is None
    message_of_step = process.server_step.send(state.step, state.weights)

    @tf.function(autograph=False, reduce_retracing=True)
    def run(weights: ModelWeights, examples: ClientExamples, seed: tf.Tensor) -> ModelWeights:
        kept = [tf.cast(tf.reshape(x != 0, [-1]), x.dtype) for x in tf.nest.flatten(weights.posterior.mean)]
        # A pruned weight is 0, and adaptation leaves it so.
        given = Pruned(tf.concat(kept, 0)) if is_plain else message_of_step
        message = ServerMessage(weights, tf.convert_to_tensor(state.round), given, (), state.federation)
        adapted = work(message, examples, seed).weights
        if not has_rows:
            return adapted
        each, before, after = tf.nest.map_structure, weights.posterior, adapted.posterior
        restored = [each(lambda m, x, y: tf.where(m == 0, x, y), before.mean, *pair) for pair in zip(before, after)]
        return adapted._replace(posterior=after._replace(mean=restored[0], variance=restored[1]))

    tensors = lambda structure: tf.nest.map_structure(tf.convert_to_tensor, structure)
    return lambda weights, examples, seed: run(tensors(weights), tensors(examples), seed)


# No round has this number: the noise is that of no client in training.
_NEWCOMER = -4


def fit_newcomers(
    process: BayesianProcess, state: ServerState, clients: Clients, *, rounds: int = 20, seed: int = 0
) -> list[ModelWeights]:
    """Return the weights for clients that were never in training, by rows of their own: embeddings fitted to their
    examples.

    e <- e - rate (d l / d e)^T (l - l'),   rate = ||l - l'||^2 / ||(d l / d e)^T (l - l')||^2

    from the mean of all rows on, with l' the logits after the client's work from l = h(e); the weights and what all
    clients share of h stay. Without it (`BayesianProcess.personal_weights`) a newcomer has the mean of all rows.

    Args:
      process: its clients have rows, such as `algorithms.meta_vd`.
      state: of a run.
      clients: the newcomers, with the examples to fit to.
      rounds: steps of e.
      seed: of the clients' work.

    Returns:
      The weights of each, in order.

    Source: Jeon et al. 2023 (arXiv:2510.20225): their step of e_m, alone.
    """
    check_count(rounds, "rounds")
    step, weights = tf.nest.map_structure(tf.convert_to_tensor, (state.step, state.weights))
    parameters, personal = getattr(step, "parameters", None), process.client_work.personal
    if process.client_work.extra is None or parameters is None or personal is None or parameters.rows == ():
        raise InvalidArgument(
            "A newcomer's row requires a process with rows of clients, such as algorithms.meta_vd with a hypernetwork: "
            "use personal_weights(state, client) for any other."
        )
    number = parameters.rows.shape[0]
    # All rows are the newcomer's, who comes in the place of client 0.
    same = lambda row: parameters._replace(rows=tf.repeat(row[tf.newaxis], number, 0))
    message = lambda row: ServerMessage(weights, tf.convert_to_tensor(state.round), same(row), (), state.federation)
    work = process.client_work.build()

    @tf.function(autograph=False, reduce_retracing=True)
    def moved(row: tf.Tensor, examples: ClientExamples, key: tf.Tensor) -> tf.Tensor:
        sent = work(message(row), examples, key).extra
        gradient = sent.rows[0]
        return row - gradient * tf.math.divide_no_nan(sent.moved, tf.reduce_sum(tf.square(gradient)))

    fitted = []
    for k in range(clients.num_clients):
        data = clients.examples(k)._replace(client=np.zeros(len(clients.indices[k]), np.int32))
        data, row = tf.nest.map_structure(tf.convert_to_tensor, data), tf.reduce_mean(parameters.rows, 0)
        for i in range(rounds):
            row = moved(row, data, fold(seed, i, k, _NEWCOMER))
        fitted.append(personal(message(row), number))
    return fitted
