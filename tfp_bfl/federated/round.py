"""One round of federated learning in pure TensorFlow, written once: engines carry what is sent, and compute nothing.

    broadcast the server's weights -> client work -> rule.summarise -> rule.merge, wherever it suits
                                                      -> rule.pool -> server step

An algorithm is the three parts that it puts in: client work, rule, server step.
"""

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import WEIGHTS, ClientWork, Metrics, ModelRule, ServerState, ServerStep, Work, num_present
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.faults import Limits, find_fault, infinite_where_unsound, is_sound, posterior_of
from tfp_bfl.federated.memory import anchored, find_row, joined, no_rows, parted, replace_rows, root_mean_square
from tfp_bfl.posterior import MeanField, floor_variance, spread
from tfp_bfl.tensors import Scalar, TensorTree
from tfp_bfl.weights import ClientResult, ModelWeights, Population, RoundSize, ServerMessage, root_mean_square_change
from tfp_bfl.weights.kinds import Given, Sent, Statistics
from tfp_bfl.weights.model_checks import seed_alone

Summed = TypeVar("Summed")
NO_SECRET = (
    "Noise that hides clients or examples follows from a secret seed, and that of the state is zero: pass "
    "state._replace(noise=federated.secret_seed()), or call simulate, which does."
)
Weigh = Callable[[MeanField, MeanField, tf.Tensor], tf.Tensor]


class Broadcast(NamedTuple):
    """The message of the server to all clients of a round: what each gets, but with the memory of all of them."""

    seed: Any
    message: ServerMessage
    noise: Any = ()


class Report(NamedTuple):
    """Facts about each client of a round: vectors over the clients.

    `change` is `weights.root_mean_square_change`, `extra` the root mean square of its extra statistics, and
    `diverged_at` the local step of `weights.TrainingMetrics`.
    """

    client: Any
    fault: Any
    num_examples: Any
    weight: Any
    change: Any
    extra: Any
    nll: Any
    kl: Any
    tempered_elbo: Any
    diverged_at: Any
    counts: Mapping[str, Any]


class Contribution(NamedTuple):
    """The contribution of one client, or the sum of K: merged statistics of the rule, rows of memory, and reports."""

    statistics: Any
    memory: Any
    report: Report


Contribute = Callable[[Broadcast, ClientExamples], Contribution]


class Take(Protocol):
    """Makes a contribution of what a client's work returns; what is wrong with it is found here, not by the client."""

    def __call__(
        self,
        message: ServerMessage,
        result: ClientResult[Any],
        client: Scalar,
        given: Scalar,
        known: bool | tf.Tensor = True,
    ) -> Contribution:
        """Return the contribution of a client with `given` examples, all zeros if it has a fault; `known` is whether it
        has a row where clients keep something.
        """


class Round(NamedTuple):
    """The moments of a round, as pure functions of structures of tensors, and how it begins.

    Fields:
      initialize: () -> the state before the first round.
      broadcast: state -> what all clients are sent.
      build_work: makes a client's variables in the present graph, and returns its work, the function of the message,
        its examples and a key [2] for its noise.
      take: makes a contribution of what that returns: at the server, where clients are sites of their own.
      build_client: both together, where clients are simulated: the function of the broadcast and the examples.
      merge: (statistics, statistics) -> statistics: commutative and associative; all zeros change nothing.
      add: (contribution, contribution) -> contribution: the statistics merged, all else side by side.
      conclude: (state, the contributions' sum) -> the next state and the round's metrics.
      element_spec: of a client's examples.
      seed: of the first state.
    """

    initialize: Callable[[], ServerState]
    broadcast: Callable[[ServerState], Broadcast]
    build_work: Callable[[], Work[Any]]
    take: Take
    build_client: Callable[[], Contribute]
    merge: Callable[[Any, Any], Any]
    add: Callable[[Contribution, Contribution], Contribution]
    conclude: Callable[[ServerState, Contribution], tuple[ServerState, Metrics]]
    element_spec: ClientExamples
    seed: int


def make_round(
    first: ModelWeights,
    *,
    client_work: ClientWork[Sent],
    weigh: Weigh,
    rule: ModelRule[Sent, Given, Statistics],
    server_step: ServerStep[Given],
    element_spec: ClientExamples,
    seed: int,
    limits: Limits,
) -> Round:
    """Return the round of a client work, a rule and a server step, from the first weights; as of `build_process`.

    The limits' floor of standard deviations is also that of what the server step returns.
    """
    # Whether an example is finite is what noise hides; one that is not adds nothing.
    if not client_work.needs.is_private:
        client_work = client_work.around(_of_finite)

    def initialize() -> ServerState:
        weights = tf.nest.map_structure(tf.constant, first)
        memory = no_rows(client_work.memory(weights, 0.0) if client_work.memory else ())
        nobody = Population(*map(tf.constant, (0, np.int64(0), Population().most_weight, 0)))
        step = server_step.initialize(weights)
        weights = server_step.begin(step, weights)
        noise = tf.zeros([2], tf.int32) if rule.randomise is not None or client_work.needs.is_private else ()
        return ServerState(tf.constant(0), tf.constant(seed, tf.int32), weights, step, memory, nobody, noise)

    def broadcast(state: ServerState) -> Broadcast:
        extra = server_step.send(state.step, state.weights)
        message = ServerMessage(state.weights, state.round, extra, state.memory, state.federation)
        return Broadcast(state.seed, message, _secret(state.noise))

    def take(
        message: ServerMessage,
        result: ClientResult[Sent],
        client: Scalar,
        given: Scalar,
        known: bool | tf.Tensor = True,
    ) -> Contribution:
        anchor = message.weights
        importance = weigh(posterior_of(result.weights), anchor.posterior, result.num_examples)
        fault = find_fault(result, anchor, importance, limits, given, known)
        importance = tf.minimum(importance, message.federation.most_weight)
        sent = joined(client_work, result.weights, result.extra)
        statistics = rule.summarise(sent, anchored(client_work, anchor), importance)
        statistics = tf.nest.map_structure(lambda x: tf.where(is_sound(fault), x, tf.zeros_like(x)), statistics)
        counts = dict(result.counts)
        change = root_mean_square_change(result.weights, anchor)
        size = root_mean_square(result.extra)
        report = Report(client, fault, result.num_examples, importance, change, size, *result.metrics, counts)
        alone = lambda structure: tf.nest.map_structure(lambda x: tf.expand_dims(x, 0), structure)
        return Contribution(statistics, alone(result.memory), alone(report))

    def build_work() -> Work[Sent]:
        return functools.partial(seed_alone, "client work", client_work())

    def build_client() -> Contribute:
        work = build_work()

        def contribute(sent: Broadcast, examples: ClientExamples) -> Contribution:
            message = sent.message
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))  # -1: it has neither examples nor number.
            row, known = find_row(message.memory, client)
            secret = tf.unstack(sent.noise) if client_work.needs.is_private else ()
            result = work(message._replace(memory=row), examples, fold(sent.seed, message.round, client, *secret))
            return take(message, result, client, num_present(examples), known)

        return contribute

    def add(a: Contribution, b: Contribution) -> Contribution:
        join = lambda x, y: tf.nest.map_structure(lambda *each: tf.concat(each, 0), x, y)
        return Contribution(rule.merge(a.statistics, b.statistics), join(a.memory, b.memory), join(a.report, b.report))

    def conclude(state: ServerState, total: Contribution) -> tuple[ServerState, Metrics]:
        sound = is_sound(total.report.fault)
        statistics = total.statistics
        if rule.randomise is not None:
            statistics = rule.randomise(statistics, fold(state.seed, state.round, -3, *tf.unstack(state.noise)))
        anchor = anchored(client_work, state.weights)
        pooled, reported = seed_alone(f"rule {rule.name}", rule.pool, statistics, anchor)
        pooled, extra = parted(client_work, pooled)
        pooled = infinite_where_unsound(pooled) if rule.gives == WEIGHTS else pooled
        metrics = _round_metrics(total.report, client_work.needs.is_private)
        federation, size = _sizes(state.federation, sound, metrics["num_examples"])
        met = server_step.meet(state.step, size)
        given, more = (state.weights, pooled, fold(state.seed, state.round, -2)), (extra,) if client_work.extra else ()
        step, weights = seed_alone("server step", server_step.next, met, *given, *more)
        weights = weights._replace(posterior=floor_variance(weights.posterior, limits.min_stddev))
        # A rule with noise hides whether there was anybody.
        learnt = tf.reduce_any(sound) | (rule.randomise is not None)
        step, weights = tf.cond(learnt, lambda: (step, weights), lambda: (state.step, state.weights))
        # In a private round without clients one of them works for nothing.
        counted = sound & (state.federation.most_weight > 0)
        memory = replace_rows(state.memory, total.report.client, total.memory, counted)
        metrics.update({**spread(weights.posterior, limits.min_stddev)._asdict(), **reported})
        metrics.update(server_step.metrics(step, weights, extra))
        return ServerState(state.round + 1, state.seed, weights, step, memory, federation, state.noise), metrics

    return Round(initialize, broadcast, build_work, take, build_client, rule.merge, add, conclude, element_spec, seed)


def _of_finite(
    work: Work[Sent], message: ServerMessage, examples: ClientExamples, seed: tf.Tensor
) -> ClientResult[Sent]:
    """Return a client's result, NaN where a feature is not finite: a ReLU gives 0 for NaN, and would hide it."""
    result = work(message, examples, seed)
    if not examples.features.dtype.is_floating:
        return result
    finite = tf.reduce_all(tf.math.is_finite(examples.features))
    mark = lambda x: tf.where(finite, x, tf.cast(np.nan, x.dtype)) if x.dtype.is_floating else x
    weights, sent = tf.nest.map_structure(mark, (result.weights, result.sent))
    return result._replace(weights=weights, sent=sent)


def _sizes(known: Population, sound: tf.Tensor, num_examples: tf.Tensor) -> tuple[Population, RoundSize]:
    """Return the largest federation yet, and it with the present round's own."""
    any_weight = tf.constant(Population().most_weight)
    present = Population(tf.math.count_nonzero(sound, dtype=tf.int32), num_examples, any_weight, tf.constant(0))
    federation = tf.nest.map_structure(tf.maximum, known, present)
    sized = (known.num_clients == 0) | (known.num_examples > 0)
    of_all = federation.num_clients, federation.num_examples, federation.most_weight
    return federation, RoundSize(*of_all, present, sized, federation.rounds)


def _secret(noise: TensorTree) -> TensorTree:
    """Return a secret seed that is not zero, checked where the graph runs, or () of a process that is not private."""
    if not tf.nest.flatten(noise):
        return noise
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_any(tf.not_equal(noise, 0)), [NO_SECRET])]):
        return tf.identity(noise)


def check_secret(state: ServerState) -> None:
    """Raise InvalidArgument for a state of a private process without a secret seed."""
    if not isinstance(state.noise, tuple) and not np.any(state.noise):
        raise InvalidArgument(NO_SECRET)


def summed(
    contribute: Contribute, add: Callable[[Contribution, Contribution], Contribution], spec: ClientExamples
) -> Callable[..., Any]:
    """Return the function of a broadcast and a dataset of clients that adds up what they contribute, one
    after another.
    """

    def over(sent: Broadcast, dataset: tf.data.Dataset) -> Contribution:
        once, specs = _once(contribute, add, spec, sent)

        @tf.function(autograph=False)
        def loop() -> Contribution:
            # Not `for examples in dataset`: that becomes a reduction, and its body is made anew at every call.
            iterator = iter(dataset.with_options(_without_autotuning()))

            def a_client(total: Contribution, element: tf.experimental.Optional) -> Any:
                return add(total, once(element.get_value())), iterator.get_next_as_optional()

            start = zeros(specs), iterator.get_next_as_optional()
            shapes = tf.nest.map_structure(lambda x: x.shape, specs), start[1]._type_spec
            more = lambda total, element: element.has_value()
            return tf.while_loop(more, a_client, start, shapes, parallel_iterations=1)[0]

        return loop()

    return over


def summed_rows(
    contribute: Contribute, add: Callable[[Contribution, Contribution], Contribution], spec: ClientExamples
) -> Callable[..., Any]:
    """Return the function of a broadcast, examples and ends (`data.ClientRows`) that adds up as `summed` does.

    The iterator of a dataset takes milliseconds at every call, whatever the clients compute.
    """

    def over(sent: Broadcast, examples: ClientExamples, ends: tf.Tensor) -> Contribution:
        once, specs = _once(contribute, add, spec, sent)
        starts = tf.concat([[0], ends[:-1]], 0)

        def a_client(k: tf.Tensor, total: Contribution) -> Any:
            rows = tf.nest.map_structure(lambda x: x[starts[k] : ends[k]], examples)
            return k + 1, add(total, once(rows))

        shapes = tf.TensorShape([]), tf.nest.map_structure(lambda x: x.shape, specs)
        more = lambda k, total: k < tf.size(ends)
        return tf.while_loop(more, a_client, (tf.constant(0), zeros(specs)), shapes, parallel_iterations=1)[1]

    return over


def _once(contribute: Contribute, add: Any, spec: ClientExamples, sent: Broadcast) -> tuple[Any, Contribution]:
    """Return the work of a client, traced once, and the type of a sum over any number of clients."""
    once = tf.function(lambda examples: contribute(sent, examples), input_signature=[spec], autograph=False)
    return once, summed_spec(types_of(once), add)


def summed_spec(one: Summed, add: Callable[[Summed, Summed], Summed]) -> Summed:
    """Return the type of a sum over any number of clients, from those of one and of two: an axis that grew has no size.

    The sum of weights [3] stays [3]; numbers of clients [1] become [2], and so their type is [None].
    """
    two = types_of(add, one, one)
    grown = lambda x, y: tf.TensorSpec([m if m == n else None for m, n in zip(x.shape, y.shape)], x.dtype)
    return tf.nest.map_structure(grown, one, two)


def types_of(function: Callable[..., TensorTree], *args: TensorTree) -> Any:
    """Return the shapes and types of what a function gives, by tracing it."""
    traced: Any = function
    if not hasattr(function, "get_concrete_function"):  # A new function: TensorFlow warns of one that is traced often.
        traced = tf.function(lambda *args: function(*args), autograph=False)
    outputs = traced.get_concrete_function(*args).structured_outputs
    return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), outputs)


def zeros(specs: TensorTree) -> Any:
    """Return the neutral contribution: zeros, and vectors of no clients."""
    return tf.nest.map_structure(lambda x: tf.zeros([0 if n is None else n for n in x.shape], x.dtype), specs)


def fold(seed: Scalar, *numbers: Scalar) -> tf.Tensor:
    """Return a seed [2] from the run's seed and the numbers, one folded into the other."""
    key = tf.stack([seed, 0])
    for number in numbers:
        key = tf.random.experimental.stateless_fold_in(key, number)
    return key


def _without_autotuning() -> tf.data.Options:
    """Return options without autotuning: an iterator would end only when its tuning thread wakes."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def _round_metrics(report: Report, is_private: bool) -> collections.OrderedDict:
    """Return the clients' reports in the order of their numbers, and the mean metrics of the sound ones by examples.

    Client work with example privacy withholds its loss: there is neither a mean loss nor a bound made of it.
    """
    if is_private:
        absent = tf.fill(tf.shape(report.nll), np.float32(np.nan))
        report = report._replace(nll=absent, tempered_elbo=absent)
    report = tf.nest.map_structure(lambda x: tf.gather(x, tf.argsort(report.client)), report)
    sound = is_sound(report.fault)
    share = tf.where(sound, tf.cast(report.num_examples, tf.float32), 0.0)
    share = tf.math.divide_no_nan(share, tf.reduce_sum(share))
    mean = lambda x: tf.reduce_sum(tf.where(sound, share * x, 0.0))
    fields = report._asdict()
    counts = fields.pop("counts")
    metrics = collections.OrderedDict(
        nll=mean(report.nll),
        kl=mean(report.kl),
        tempered_elbo=mean(report.tempered_elbo),
        num_clients=tf.size(report.client),
        num_faulty=tf.math.count_nonzero(~sound, dtype=tf.int32),
        num_examples=_total(report.num_examples, sound),
        **{name: _total(x, sound) for name, x in sorted(counts.items())},
        clients=collections.OrderedDict(**fields, **counts),
    )
    if is_private:
        del metrics["nll"], metrics["tempered_elbo"]
    return metrics


def _total(values: tf.Tensor, sound: tf.Tensor) -> tf.Tensor:
    """Return the sum over sound clients; whole numbers as int64, which the counts of two clients do not exceed."""
    values = tf.cast(values, tf.int64) if values.dtype.is_integer else values
    return tf.reduce_sum(tf.where(sound, values, tf.zeros_like(values)))
