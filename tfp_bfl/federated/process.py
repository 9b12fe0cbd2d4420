"""The one federated round, as a TFF learning process.

    broadcast the server's weights -> client work -> rule.summarise -> rule.merge in federated_aggregate
                                                      -> rule.pool -> server step

An algorithm is the three parts that it puts in: client work, rule, server step.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfp_bfl.data import ClientExamples
from tfp_bfl.federated._installation import require_tff
from tfp_bfl.federated.faults import find_fault, is_sound
from tfp_bfl.models import ClientResult, ModelWeights, ServerMessage, check_layers, get_weights, min_stddev
from tfp_bfl.posterior import MeanField, floor_variance, spread

tff = require_tff()


class ServerState(NamedTuple):
    """What the server carries from round to round.

    Fields:
      round: rounds done, int32.
      seed: of the run, int32. All noise is a function of (seed, round, client, step).
      weights: `ModelWeights`.
      step: the server step's own state.
    """

    round: Any
    seed: Any
    weights: ModelWeights
    step: Any


class _Report(NamedTuple):
    """What each client says of itself: vectors over the clients of the round, [1] from one of them."""

    client: Any
    fault: Any
    num_examples: Any
    weight: Any
    nll: Any
    kl: Any
    elbo: Any


class _Contribution(NamedTuple):
    statistics: Any
    report: _Report


class BayesianProcess(tff.learning.templates.LearningProcess):  # type: ignore[name-defined,misc]
    """A TFF `LearningProcess` that knows its model and what its clients' data look like.

    Attributes:
      model_fn: builds the Keras model.
      element_spec: of the one element of a client's dataset: (client [n], features [n, ...], labels [n]).
    """

    def __init__(self, model_fn: Callable[[], tf.keras.Model], element_spec: Any, *computations: Any):
        super().__init__(*computations)
        self.model_fn = model_fn
        self.element_spec = element_spec


def build_process(
    model_fn: Callable[[], tf.keras.Model],
    *,
    client_work: Callable[[ServerMessage, Any, tf.Tensor], ClientResult],
    weigh: Callable[[MeanField, MeanField, tf.Tensor], tf.Tensor],
    rule: Any,
    server_step: Any,
    element_spec: Any = None,
    seed: int = 0,
) -> BayesianProcess:
    """Builds the process; its round runs in any TFF context, over any number of clients in constant server memory.

    Args:
      model_fn: builds the Keras model whose weights the first state has.
      client_work: (message, examples, seed) -> `ClientResult`.
      weigh: (local posterior, anchor, number of examples) -> the client's weight.
      rule: over `ModelWeights` (`tfp_bfl.rules.whole_model`).
      server_step: of `tfp_bfl.servers`.
      element_spec: of the clients' datasets, each of one element (client [n], features [n, ...], labels [n]); None for
        uint8 images or float32 tables in the model's input shape.
      seed: of the first state.
    """
    with _keras_classes_kept(model_fn):
        return _build(model_fn, client_work, weigh, rule, server_step, element_spec, seed)


def _build(
    model_fn: Any, client_work: Any, weigh: Any, rule: Any, server_step: Any, element_spec: Any, seed: int
) -> BayesianProcess:
    model = model_fn()
    check_layers(model)
    element_spec = element_spec or _client_spec(model)
    floor = min_stddev(model)
    first = tf.nest.map_structure(lambda x: x.numpy(), get_weights(model))

    @tff.tensorflow.computation
    def initial_state() -> ServerState:
        weights = tf.nest.map_structure(tf.constant, first)
        return ServerState(tf.constant(0), tf.constant(seed, tf.int32), weights, server_step.initialize(weights))

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(state_type, tff.SequenceType(tff.types.tensorflow_to_type(element_spec)))
    def client_update(state: ServerState, dataset: tf.data.Dataset) -> _Contribution:
        examples = dataset.get_single_element()
        client = examples.client[0]
        result = client_work(
            ServerMessage(state.weights, state.round), examples, _fold(state.seed, state.round, client)
        )
        anchor = state.weights
        weight = weigh(result.weights.posterior, anchor.posterior, result.num_examples)
        fault = find_fault(result.weights, weight)
        statistics = rule.summarise(result.weights, anchor, weight)
        sound = is_sound(fault)
        statistics = tf.nest.map_structure(lambda x: tf.where(sound, x, tf.zeros_like(x)), statistics)
        report = _Report(client, fault, result.num_examples, weight, *result.metrics)
        return _Contribution(statistics, tf.nest.map_structure(lambda x: x[tf.newaxis], report))

    contribution_type = client_update.type_signature.result
    one = tff.types.type_to_tf_tensor_specs(contribution_type)
    any_number = tf.nest.map_structure(lambda x: tf.TensorSpec([None], x.dtype), one.report)
    total_type = tff.types.tensorflow_to_type(one._replace(report=any_number))

    @tff.tensorflow.computation
    def zero() -> _Contribution:
        empty = lambda x: tf.zeros([0 if n is None else n for n in x.shape], x.dtype)
        return tf.nest.map_structure(empty, one._replace(report=any_number))

    def add(a: _Contribution, b: _Contribution) -> _Contribution:
        report = tf.nest.map_structure(lambda x, y: tf.concat([x, y], 0), a.report, b.report)
        return _Contribution(rule.merge(a.statistics, b.statistics), report)

    accumulate = tff.tensorflow.computation(add, [total_type, contribution_type])
    merge = tff.tensorflow.computation(add, [total_type, total_type])
    as_it_is = tff.tensorflow.computation(lambda total: total, total_type)

    @tff.tensorflow.computation(state_type, total_type)
    def server_update(state: ServerState, total: _Contribution) -> tuple[ServerState, Any]:
        pooled = rule.pool(total.statistics, state.weights)
        pooled = pooled._replace(posterior=floor_variance(pooled.posterior, floor))
        step, weights = server_step.next(state.step, state.weights, pooled)
        anyone = tf.reduce_any(is_sound(total.report.fault))
        keep = lambda new, old: tf.where(anyone, new, old)
        step, weights = tf.nest.map_structure(keep, (step, weights), (state.step, state.weights))
        metrics = _round_metrics(total.report)
        metrics.update(spread(weights.posterior, floor)._asdict())
        metrics.update(rule.metrics(total.statistics, state.weights))
        return ServerState(state.round + 1, state.seed, weights, step), metrics

    @tff.federated_computation
    def initialize() -> Any:
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(tff.SequenceType(tff.types.tensorflow_to_type(element_spec)), tff.CLIENTS),
    )
    def next_round(state: Any, datasets: Any) -> Any:
        contributions = tff.federated_map(client_update, (tff.federated_broadcast(state), datasets))
        total = tff.federated_aggregate(contributions, zero(), accumulate, merge, as_it_is)
        new_state, metrics = tff.federated_map(server_update, (state, total))
        return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    weights_of = tff.tensorflow.computation(lambda state: state.weights, state_type)
    with_weights = tff.tensorflow.computation(
        lambda state, weights: state._replace(weights=weights), [state_type, weights_of.type_signature.result]
    )
    return BayesianProcess(model_fn, element_spec, initialize, next_round, weights_of, with_weights)


@contextlib.contextmanager
def _keras_classes_kept(model_fn: Callable[[], tf.keras.Model]) -> Iterator[None]:
    """Undoes what TFF's tracing does to Keras.

    It traces in graphs of TensorFlow 1; a Keras model that is built there turns the classes of its layers into those of
    version 1, which breaks every model that exists. Building one outside turns them back.
    """
    try:
        yield
    finally:
        model_fn()


def _client_spec(model: tf.keras.Model) -> ClientExamples:
    shape = model.input_shape[1:]
    features = tf.TensorSpec([None, *shape], tf.uint8 if len(shape) == 3 else tf.float32)
    number = tf.TensorSpec([None], tf.int32)
    return ClientExamples(client=number, features=features, labels=number)


def _fold(seed: tf.Tensor, *numbers: tf.Tensor) -> tf.Tensor:
    """A seed [2] from the run's seed and the numbers, one folded into the other."""
    key = tf.stack([seed, 0])
    for number in numbers:
        key = tf.random.experimental.stateless_fold_in(key, number)
    return key


def _round_metrics(report: _Report) -> collections.OrderedDict:
    """The clients' reports in the order of their numbers, and the mean metrics of the sound ones by examples."""
    report = tf.nest.map_structure(lambda x: tf.gather(x, tf.argsort(report.client)), report)
    sound = is_sound(report.fault)
    share = tf.where(sound, tf.cast(report.num_examples, tf.float32), 0.0)
    share = tf.math.divide_no_nan(share, tf.reduce_sum(share))
    mean = lambda x: tf.reduce_sum(tf.where(sound, share * x, 0.0))
    return collections.OrderedDict(
        nll=mean(report.nll),
        kl=mean(report.kl),
        elbo=mean(report.elbo),
        num_clients=tf.size(report.client),
        num_faulty=tf.math.count_nonzero(~sound, dtype=tf.int32),
        num_examples=tf.reduce_sum(tf.where(sound, report.num_examples, 0)),
        clients=collections.OrderedDict(report._asdict()),
    )
