"""The engine on TFF's workers, and a round as a TFF learning process."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import ServerState
from tfp_bfl.engines.tff.context import Runtime, local_workers
from tfp_bfl.engines.tff.installation import require_tff
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.federated.local import Accepts
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import Broadcast, Contribution, Round, summed, zeros

tff = require_tff()


class TffEngine:
    """Runs a process's computations in a runtime's context: an `Engine` of both's functions."""

    accepts: Accepts = "datasets"

    def __init__(self, process: BayesianProcess, runtime: Runtime):
        self.initialize, self.next = process.learning_process.initialize, process.learning_process.next
        self.concurrent_calls, self.replace_dead_workers = runtime.concurrent_calls, runtime.replace_dead_workers


@contextlib.contextmanager
def running(process: BayesianProcess, runtime: Runtime | None) -> Iterator[TffEngine]:
    """Yield the engine over a runtime, with its context installed for this thread, or over a worker of our own."""
    if runtime is None:
        with local_workers() as own:
            yield TffEngine(process, own)
        return
    if not isinstance(runtime, Runtime):
        raise InvalidArgument(
            f"runtime is {shown(runtime)}, but the engine tff needs workers of "
            "engines.tff.local_workers or engines.tff.remote_workers."
        )
    with tff.framework.get_context_stack().install(runtime.context):
        yield TffEngine(process, runtime)


def learning_process(round: Round, model_fn: Callable[[], keras.Model]) -> Any:
    """Return the round as a `tff.learning.templates.LearningProcess`, over any number of clients in constant memory."""
    with _keras_classes_kept(model_fn()):
        return _build(round)


def _build(round: Round) -> Any:
    """Return the process: each function of the round a computation, placed at the server or the clients."""
    initial_state = tff.tensorflow.computation(round.initialize)
    state_type = initial_state.type_signature.result
    dataset_type = tff.SequenceType(tff.types.tensorflow_to_type(round.element_spec))

    # Clients get what they need of the state, and nothing of the step's own.
    broadcast = tff.tensorflow.computation(round.broadcast, state_type)

    @tff.tensorflow.computation(broadcast.type_signature.result, dataset_type)
    def contribute(sent: Broadcast, dataset: tf.data.Dataset) -> Contribution:
        return summed(round.build_client(), round.add, round.element_spec)(sent, dataset)

    total_type = contribute.type_signature.result

    @tff.tensorflow.computation
    def zero() -> Contribution:
        return zeros(tff.types.type_to_tf_tensor_specs(total_type))

    merge = tff.tensorflow.computation(round.add, [total_type, total_type])
    as_it_is = tff.tensorflow.computation(lambda total: total, total_type)
    conclude = tff.tensorflow.computation(round.conclude, [state_type, total_type])

    @tff.federated_computation
    def initialize() -> Any:
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(dataset_type, tff.CLIENTS))
    def next_round(state: object, datasets: object) -> Any:
        sent = tff.federated_broadcast(tff.federated_map(broadcast, state))
        contributions = tff.federated_map(contribute, (sent, datasets))
        total = tff.federated_aggregate(contributions, zero(), merge, merge, as_it_is)
        new_state, metrics = tff.federated_map(conclude, (state, total))
        return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    weights_of = tff.tensorflow.computation(lambda state: state.weights, state_type)

    @tff.tensorflow.computation(state_type, weights_of.type_signature.result)
    def with_weights(state: ServerState, weights: Any) -> ServerState:
        return state._replace(weights=weights)

    return tff.learning.templates.LearningProcess(initialize, next_round, weights_of, with_weights)


@contextlib.contextmanager
def _keras_classes_kept(model: keras.Model) -> Iterator[None]:
    """Undo what TFF's tracing does to Keras.

    It traces in graphs of TensorFlow 1; a Keras model that is built there turns the classes of its layers into those of
    version 1, which breaks every model that exists. Making an object of a class outside turns it back.
    """
    try:
        yield
    finally:
        for kind in {type(layer) for layer in model._flatten_layers()}:
            kind.__new__(kind)  # type: ignore[call-overload]
