"""The one federated round, as a TFF learning process.

    broadcast the server's weights -> client work -> rule.summarise -> rule.merge in federated_aggregate
                                                      -> rule.pool -> server step

An algorithm is the three parts that it puts in: client work, rule, server step.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import ClientWork, ServerState
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import check_count
from tfp_bfl.federated.description import describe
from tfp_bfl.federated.faults import check_max_change_norm, find_fault, is_sound
from tfp_bfl.federated.tff.installation import require_tff
from tfp_bfl.models import ModelWeights, ServerMessage, check_layers, get_weights, min_stddev
from tfp_bfl.posterior import MeanField, floor_variance, spread

tff = require_tff()


class _Report(NamedTuple):
    """What each client says of itself: vectors over the clients."""

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
      num_outputs: of the model: C.
      element_spec: of the elements of the datasets, each one client: (client [n], features [n, ...], labels [n]).
      min_examples: the fewest that a client must have.
      min_clients: the fewest that a cohort must have.
      burn_in_rounds: rounds before those that make the result: a run must have more.
      description: what a checkpoint must agree with: the library, the model and the rule, in words.
      state_spec: the shapes and types of the state's tensors, leaf by leaf; None for an axis that may grow.
    """

    def __init__(
        self,
        model_fn: Callable[[], tf.keras.Model],
        server_step: Any,
        num_outputs: int,
        element_spec: Any,
        min_examples: int,
        min_clients: int,
        burn_in_rounds: int,
        description: dict[str, str],
        *computations: Any,
    ):
        super().__init__(*computations)
        self.description = description
        self.model_fn = model_fn
        self.num_outputs = num_outputs
        self.element_spec = element_spec
        self.min_examples = min_examples
        self.min_clients = min_clients
        self.burn_in_rounds = burn_in_rounds
        state_type = computations[0].type_signature.result.member
        self.state_spec = tf.nest.flatten(tff.types.type_to_tf_tensor_specs(state_type))
        self._predictive = server_step.predictive

    def predictive_weights(self, state: ServerState) -> ModelWeights:
        """The weights with which the model predicts after the state's rounds (`servers.ServerStep.predictive`)."""
        step, weights = tf.nest.map_structure(np.asarray, (state.step, state.weights))
        return self._predictive(step, weights)


def build_process(
    model_fn: Callable[[], tf.keras.Model],
    *,
    client_work: ClientWork,
    weigh: Callable[[MeanField, MeanField, tf.Tensor], tf.Tensor],
    rule: Any,
    server_step: Any,
    element_spec: Any = None,
    seed: int = 0,
    max_change_norm: Optional[float] = None,
    min_examples: int = 1,
    burn_in_rounds: int = 0,
) -> BayesianProcess:
    """Builds the process; its round runs in any TFF context, over any number of clients in constant server memory.

    A dataset of a round holds one client, or several, who then work one after another and share the fixed cost of one
    TFF call: which clients lie together changes the result by the rounding of sums alone.

    Args:
      model_fn: builds the Keras model whose weights the first state has.
      client_work: builds its variables in the present graph and returns (message, examples, seed) -> `ClientResult`.
      weigh: (local posterior, anchor, number of examples) -> the client's weight.
      rule: over `ModelWeights` (`tfp_bfl.rules.whole_model`).
      server_step: of `tfp_bfl.servers`.
      element_spec: of the elements of the datasets, each one client: (client [n], features [n, ...], labels [n]); None
        for uint8 images or float32 tables in the model's input shape.
      seed: of the first state.
      max_change_norm: a client whose weights moved further than this, by `models.change_norm`, is faulty; None for
        any distance.
      min_examples: a client with fewer is faulty, and `simulate` refuses it before the first round.
      burn_in_rounds: of the client work or the server step: `simulate` refuses runs of no more rounds.

    Faulty clients are left out of the sums, counted and named (`federated.faults`).
    """
    check_max_change_norm(max_change_norm)
    model = model_fn()
    check_layers(model)
    with _keras_classes_kept(model):
        return _build(
            model_fn,
            model,
            client_work,
            weigh,
            rule,
            server_step,
            element_spec,
            seed,
            max_change_norm,
            check_count(min_examples, "min_examples"),
            check_count(burn_in_rounds, "burn_in_rounds", 0),
        )


def _build(
    model_fn: Any,
    model: Any,
    client_work: Any,
    weigh: Any,
    rule: Any,
    server_step: Any,
    element_spec: Any,
    seed: int,
    max_change_norm: Optional[float],
    min_examples: int,
    burn_in_rounds: int,
) -> BayesianProcess:
    element_spec = element_spec or _client_spec(model)
    floor = min_stddev(model)
    first = tf.nest.map_structure(lambda x: x.numpy(), get_weights(model))

    @tff.tensorflow.computation
    def initial_state() -> ServerState:
        weights = tf.nest.map_structure(tf.constant, first)
        return ServerState(tf.constant(0), tf.constant(seed, tf.int32), weights, server_step.initialize(weights))

    state_type = initial_state.type_signature.result

    # Clients get what they need of the state, and nothing of the step's own.
    @tff.tensorflow.computation(state_type)
    def message_of(state: ServerState) -> ServerState:
        return state._replace(step=())

    message_type = message_of.type_signature.result

    @tff.tensorflow.computation(message_type, tff.SequenceType(tff.types.tensorflow_to_type(element_spec)))
    def train_clients(state: ServerState, dataset: tf.data.Dataset) -> _Contribution:
        work = client_work()

        def train(examples: Any) -> _Contribution:
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))  # -1: it has neither examples nor number.
            result = work(ServerMessage(state.weights, state.round), examples, _fold(state.seed, state.round, client))
            weight = weigh(result.weights.posterior, state.weights.posterior, result.num_examples)
            fault = find_fault(result, state.weights, weight, max_change_norm, min_examples)
            statistics = rule.summarise(result.weights, state.weights, weight)
            sound = is_sound(fault)
            statistics = tf.nest.map_structure(lambda x: tf.where(sound, x, tf.zeros_like(x)), statistics)
            report = _Report(client, fault, result.num_examples, weight, *result.metrics)
            return _Contribution(statistics, tf.nest.map_structure(lambda x: x[tf.newaxis], report))

        return _sum_over(dataset, element_spec, train, functools.partial(_add, rule))

    total_type = train_clients.type_signature.result

    @tff.tensorflow.computation
    def zero() -> _Contribution:
        return _zeros(tff.types.type_to_tf_tensor_specs(total_type))

    merge = tff.tensorflow.computation(functools.partial(_add, rule), [total_type, total_type])
    as_it_is = tff.tensorflow.computation(lambda total: total, total_type)

    @tff.tensorflow.computation(state_type, total_type)
    def server_update(state: ServerState, total: _Contribution) -> tuple[ServerState, Any]:
        pooled, reported = rule.pool_with_metrics(total.statistics, state.weights)
        pooled = pooled._replace(posterior=floor_variance(pooled.posterior, floor))
        step, weights = server_step.next(
            state.step, state.weights, pooled, _fold(state.seed, state.round, tf.constant(-2))
        )
        anyone = tf.reduce_any(is_sound(total.report.fault))
        step, weights = tf.cond(anyone, lambda: (step, weights), lambda: (state.step, state.weights))
        metrics = _round_metrics(total.report)
        metrics.update(spread(weights.posterior, floor)._asdict())
        metrics.update(reported)
        return ServerState(state.round + 1, state.seed, weights, step), metrics

    @tff.federated_computation
    def initialize() -> Any:
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(tff.SequenceType(tff.types.tensorflow_to_type(element_spec)), tff.CLIENTS),
    )
    def next_round(state: Any, datasets: Any) -> Any:
        message = tff.federated_broadcast(tff.federated_map(message_of, state))
        contributions = tff.federated_map(train_clients, (message, datasets))
        total = tff.federated_aggregate(contributions, zero(), merge, merge, as_it_is)
        new_state, metrics = tff.federated_map(server_update, (state, total))
        return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    weights_of = tff.tensorflow.computation(lambda state: state.weights, state_type)
    with_weights = tff.tensorflow.computation(
        lambda state, weights: state._replace(weights=weights), [state_type, weights_of.type_signature.result]
    )
    computations = initialize, next_round, weights_of, with_weights
    return BayesianProcess(
        model_fn,
        server_step,
        model.output_shape[-1],
        element_spec,
        min_examples,
        rule.min_clients,
        burn_in_rounds,
        describe(model, rule.name, tf.nest.flatten(tff.types.type_to_tf_tensor_specs(state_type).step)),
        *computations,
    )


@contextlib.contextmanager
def _keras_classes_kept(model: tf.keras.Model) -> Iterator[None]:
    """Undoes what TFF's tracing does to Keras.

    It traces in graphs of TensorFlow 1; a Keras model that is built there turns the classes of its layers into those of
    version 1, which breaks every model that exists. Making an object of a class outside turns it back.
    """
    try:
        yield
    finally:
        for kind in {type(layer) for layer in model._flatten_layers()}:
            kind.__new__(kind)  # type: ignore[call-overload]


def _client_spec(model: tf.keras.Model) -> ClientExamples:
    shape = model.input_shape[1:]
    features = tf.TensorSpec([None, *shape], tf.uint8 if len(shape) == 3 else tf.float32)
    number = tf.TensorSpec([None], tf.int32)
    return ClientExamples(client=number, features=features, labels=number)


def _sum_over(
    dataset: tf.data.Dataset, element_spec: Any, train: Callable[[Any], _Contribution], add: Callable[..., Any]
) -> _Contribution:
    """The sum of what `train` gives for each element."""
    once = tf.function(train, input_signature=[element_spec], autograph=False)
    add = tf.autograph.experimental.do_not_convert(add)
    one = once.get_concrete_function().structured_outputs
    two = tf.function(add, autograph=False).get_concrete_function(one, one).structured_outputs
    specs = tf.nest.map_structure(_growing, one, two)

    @tf.function
    def loop() -> _Contribution:
        # Not `for examples in dataset`: that becomes a reduction, whose body is made anew at every call.
        iterator = iter(dataset.with_options(_without_autotuning()))
        total, element = _zeros(specs), iterator.get_next_as_optional()
        while element.has_value():
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(total, tf.nest.map_structure(lambda x: x.shape, specs))]
            )
            total = add(total, once(element.get_value()))
            element = iterator.get_next_as_optional()
        return total

    return loop()


def _without_autotuning() -> tf.data.Options:
    """An iterator ends when its tuning thread wakes: after 10, 30, 70, 150, ... ms, which a client would wait for."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def _add(rule: Any, a: _Contribution, b: _Contribution) -> _Contribution:
    report = tf.nest.map_structure(lambda x, y: tf.concat([x, y], 0), a.report, b.report)
    return _Contribution(rule.merge(a.statistics, b.statistics), report)


def _growing(one: tf.TensorSpec, two: tf.TensorSpec) -> tf.TensorSpec:
    """The type of a sum over any number of clients, from those over one and two: an axis that grew has no size."""
    return tf.TensorSpec([m if m == n else None for m, n in zip(one.shape, two.shape)], one.dtype)


def _zeros(specs: Any) -> Any:
    """What adds nothing: zeros, and vectors of no clients."""
    return tf.nest.map_structure(lambda x: tf.zeros([0 if n is None else n for n in x.shape], x.dtype), specs)


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
