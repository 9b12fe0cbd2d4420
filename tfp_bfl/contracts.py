"""The contracts between the parts of a federated round: a new part is one of these types.

    message -> ClientWork -> ClientResult -> Rule.summarise, merge, pool -> ServerStep -> the next state

What is sent, `ServerMessage` and `ClientResult`, lies in `tfp_bfl.weights` beside the weights that it holds. A part
that is given an argument outside its range, or another part that does not fit, raises InvalidArgument with one
sentence: docstrings name what else is raised.

Types in brackets state the content: `ClientWork[Sent]` sends what a `ModelRule[Sent, Given]` takes, and the rule gives
what a `ServerStep[Given]` takes. Most have `ModelWeights` in both places. A `Rule[Statistics]` is over a `MeanField`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    cast,
)

import tensorflow as tf
from typing_extensions import TypeVar

from tfp_bfl.posterior import MeanField
from tfp_bfl.tensors import Scalar, TensorTree, is_padded
from tfp_bfl.tensors import is_traced_for_xla as is_traced_for_xla
from tfp_bfl.tensors import traced_for_xla as traced_for_xla
from tfp_bfl.weights import ClientResult, Compact, ModelWeights, Population, RoundSize, ServerMessage
from tfp_bfl.weights.kinds import Given, Kept, Sent, State, Statistics

if TYPE_CHECKING:
    from tfp_bfl.data import ClientData, ClientExamples

# What clients send, rules give and server steps take, where it is not `ModelWeights`.
WEIGHTS, GAUSSIAN, CLIENT_POSTERIOR = "weights", "gaussian", "client posterior"
CURVATURE, SITE_CHANGE, HEAD_SUMS = "curvature", "site change", "head sums"
GRADIENT, SCALED_GRADIENT, CHANGE = "gradient", "scaled gradient", "change"
# What a client work's shapes follow from, for a compiler that must know them beforehand: those of the examples, of
# which rows of client -1 do not count (`num_present`); or values. "" is neither: of the examples, all of which count.
PADDED, DYNAMIC = "padded", "dynamic"
# What a rule makes of whatever clients send.
STACK, TOTAL = "stack", "total"
# What a server step takes besides: a model's weights, with the clients' extra statistics.
EXTENDED = "weights with extra statistics"


def num_present(examples: ClientExamples) -> tf.Tensor:
    """Return the number of a client's examples, int32: without rows that fill up to the size of other clients."""
    if is_padded():
        return tf.math.count_nonzero(examples.client >= 0, dtype=tf.int32)
    return tf.shape(examples.labels)[0]


def stack_of(what: str) -> str:
    """Return the kind that a rule of kind `STACK` gives for clients that send `what`."""
    return f"{STACK} of {what}"


def total_of(what: str) -> str:
    """Return the kind that a rule of kind `TOTAL` gives for clients that send `what`."""
    return f"{TOTAL} of {what}"


_Pooled = TypeVar("_Pooled", default=Any)
# What a `Rule` is over and gives: another structure in a `ModelRule`.
_Local = TypeVar("_Local", default=MeanField)
_Anchor = TypeVar("_Anchor", default=MeanField)
_Pool = TypeVar("_Pool", default=MeanField)

Metrics = dict[str, Any]
Work = Callable[[ServerMessage, "ClientExamples", tf.Tensor], ClientResult[Sent]]


class Stack(Generic[Sent]):
    """The type of what `STACK` stands for: at run time the structure that clients send, with leaves [K, ...]."""


def as_stack(rows: Sent) -> Stack[Sent]:
    """Return a structure with leaves [K, ...] as it is, as a stack for type checkers."""
    return cast("Stack[Sent]", rows)


def rows_of(stacked: Stack[Sent]) -> Sent:
    """Return the structure with leaves [K, ...] that a stack is."""
    return cast(Any, stacked)


class Coding(NamedTuple):
    """The decoding of a client's weights from its `Compact`; the code is sent as bytes.

    Fields:
      expand: (message, compact) -> the weights, to the same bits on both sides.
      encode: (message, the code as arrays) -> bytes.
      decode: (message, bytes) -> the code as arrays.
    """

    expand: Callable[[ServerMessage, Compact], Any]
    encode: Callable[[ServerMessage, Any], bytes]
    decode: Callable[[ServerMessage, bytes], Any]


class Needs(NamedTuple):
    """Needs of a client work or a server step: most of them `simulate` checks before any work.

    Fields:
      num_clients: the number of clients for which it has settings; None for any number.
      most_clients: those who have a place in its state, by their numbers; None for any number.
      most_in_round: for how many clients of a round it is what it says; None for any number.
      burn_in: rounds before those that make the result: a run must have more.
      is_chain: the server's weights are a Markov chain, which has the right law only if all clients are drawn with
        equal probabilities. `simulate` then refuses `popularity`, does not replace faulty clients, and warns if it
        leaves clients out.
      is_private: a client's noise hides examples (differential privacy), so that its seed must be secret.
      keeps_sent: a client's memory must be what it sent, which a compressor would change.
      checks: each raises InvalidArgument for clients (`data.ClientData`) with other examples than the work's own, and
        returns a warning that a run of these clients reports, or None.
      not_compiled: what XLA lacks of it, as a noun phrase, for which the engine compiled refuses it; "" for nothing.
      notice: (a step's state, the server's weights) -> a warning about the result in one sentence, after the last
        round; None for none.
      closed_form: the posterior is computed from the data, not trained: equal standard deviations of all weights, as on
        isotropic features, are then right.
    """

    num_clients: int | None = None
    most_clients: int | None = None
    most_in_round: int | None = None
    burn_in: int = 0
    is_chain: bool = False
    is_private: bool = False
    keeps_sent: bool = True
    checks: tuple[Callable[[ClientData], str | None], ...] = ()
    not_compiled: str = ""
    notice: Callable[[Any, ModelWeights], str | None] = lambda state, weights: None
    closed_form: bool = False


class ClientWork(NamedTuple, Generic[Sent, Kept]):
    """The work of a client in a round.

    Fields:
      build: makes its variables in the present graph, and returns the function of the message, the client's examples
        (features [N, ...], labels [N], client [N]) and a seed [2] int32.
      sends: `WEIGHTS`, or the name of another structure that goes to the rule.
      memory: (weights, share) -> what a client that comes for the first time has kept: a structure of tensors, which
        `ServerMessage.memory` gives it and `ClientResult.memory` replaces. `share` is the client's of all examples
        where the federation begins with it, and 0 where it joins later. None for work that keeps nothing.
      shapes: `PADDED`, `DYNAMIC` or "".
      personal: (the message to a client, with the server's predictive weights, and its number) -> the weights that
        predict for it, or for one that was never in a round; None where all clients have the same.
      coding: of its results' `sent`; None where they have none.
      extra: the server's weights -> zeros in the structure of `ClientResult.extra`, of which the server step gets the
        mean by the clients' weights; None for work that sends none.
        What guards point weights guards these statistics too: robust aggregation, bounds, privacy, secure sums.
      settings: the options that it trains with, all defaults filled in, by the names of options ("temperature",
        "inference", "optimizer", "learning_rate"), a mapping or pairs: what a run states in its summary, report and
        model card, and what a checkpoint compares.
      needs: what it needs of a run.
    """

    build: Callable[[], Work[Sent]]
    sends: str = WEIGHTS
    memory: Callable[[ModelWeights, Scalar], Kept] | None = None
    shapes: str = ""
    personal: Callable[[ServerMessage, int], ModelWeights] | None = None
    coding: Coding | None = None
    extra: Callable[[ModelWeights], TensorTree] | None = None
    settings: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    needs: Needs = Needs()

    def __call__(self) -> Work[Sent]:
        return self.build()

    def around(self, run: Callable[..., ClientResult[Sent]]) -> ClientWork[Sent, Kept]:
        """Return client work that calls this work as a part of it, of the same `shapes`.

        Args:
          run: (what `build` returns, message, examples, seed) -> the result.
        """

        def build() -> Work[Sent]:
            return tf.function(functools.partial(run, self.build()), autograph=False)

        return self._replace(build=build)


class Memory(NamedTuple):
    """The memory of clients between rounds: a row for each client that took part, in the order of their numbers.

    Fields:
      client: int32 [M].
      rows: leaves [M, ...].
    """

    client: Any
    rows: Any


class ServerState(NamedTuple):
    """The state of the server between rounds.

    Fields:
      round: rounds done, int32.
      seed: of the run, int32. All noise is a function of (seed, round, client, step).
      weights: `ModelWeights`.
      step: the server step's own state.
      memory: a `Memory`, or () where clients keep nothing.
      federation: its size.
      noise: the seed [2] of noise that hides clients or examples (differential privacy), int32; () without any.
        `simulate` takes it from the operating system, and checkpoints alone hold it: whoever has it can remove the
        noise. Zeros in the first state, with which no round runs (`federated.secret_seed`).
    """

    round: Any
    seed: Any
    weights: ModelWeights
    step: Any
    memory: Any = ()
    federation: Population = Population()
    noise: Any = ()


class Pooled(NamedTuple, Generic[_Pooled]):
    """Hold what a rule makes of the clients' statistics.

    Fields:
      weights: what it gives, such as the pooled `MeanField` or `ModelWeights`.
      metrics: scalars to report with the round.
    """

    weights: _Pooled
    metrics: Mapping[str, TensorTree] = {}


class Traits(NamedTuple):
    """Facts about a rule, which another around it keeps as far as they still hold.

    Fields:
      uses_anchor: the equation itself holds the anchor (otherwise it only centres the sums).
      min_clients: the fewest for whom the rule is what its name says.
      one_shot: it is for one round: where all clients send what they were given, it gives something else. Any other
        rule is idempotent, and may be repeated.
      linear: for given variances and weights of the clients its means are affine in theirs, and its variances hold
        none of them: noise without bias in what they send has none in the pool.
      averages: "precision" or "variance", of which its sums and what it pools are linear in the clients'; "" for
        neither: noise without bias in that has none in what it pools.
    """

    uses_anchor: bool = False
    min_clients: int = 1
    one_shot: bool = False
    linear: bool = False
    averages: str = ""


class Rule(NamedTuple, Generic[Statistics, _Local, _Pool, _Anchor]):
    """An aggregation rule over a posterior, as pure functions of structures of tensors.

    `tfp_bfl.rules.whole_model` lifts it to all of a model's weights.

    Fields:
      summarise: (local, anchor, weight) -> statistics of one client. `local` and `anchor` are `MeanField`s (of a
        `ModelRule`: `ModelWeights`), `weight` a positive scalar that need not be normalised.
      merge: (statistics, statistics) -> statistics. Commutative and associative; all zeros change nothing.
      pool: (total, anchor) -> `Pooled`.
      name: as users spell it.
      traits: facts about it.
      takes: of a `ModelRule`: what its clients must send; None for any structure.
      gives: what its server step must take; `STACK` and `TOTAL` are of what clients send.
      units: anchor -> statistics of the size of one client's at weight one, by the anchor's standard deviations: in
        these units they are numbers near one, which can be rounded, encrypted or given noise. None where to merge is no
        plain sum.
      randomise: (total, a seed [2] for this round) -> the total with the server's noise; None for none.
    """

    summarise: Callable[[_Local, _Anchor, tf.Tensor], Statistics]
    merge: Callable[[Statistics, Statistics], Statistics]
    pool: Callable[[Statistics, _Anchor], Pooled[_Pool]]
    name: str = "custom"
    traits: Traits = Traits()
    takes: str | None = WEIGHTS
    gives: str = WEIGHTS
    units: Callable[[_Anchor], Statistics] | None = None
    randomise: Callable[[Statistics, tf.Tensor], Statistics] | None = None


class ModelRule(Rule[Statistics, Sent, Given, ModelWeights], Generic[Sent, Given, Statistics]):
    """A `Rule` over all that clients send, such as a model's weights: what a round takes."""

    __slots__ = ()


class GatherRule(NamedTuple, Generic[_Local, _Pool, _Anchor]):
    """A rule over the stack of all posteriors. The server's memory is clients x weights: `Rule`s need that of one.

    `tfp_bfl.rules.whole_model` lifts it as a `Rule`.

    `simulate` joins a worker's stack within one computation. TFF keeps all partial stacks of a process's `next` that is
    given a dataset for each client: clients^2 / 2 x weights.

    Fields:
      pool: (stacked, importance [K], anchor) -> `Pooled`; `stacked` has leaves [K, ...], K unknown in a
        graph, and `importance` is the clients' weights.
      name, traits, takes, gives: as of `Rule`.
    """

    pool: Callable[[_Local, tf.Tensor, _Anchor], Pooled[_Pool]]
    name: str = "custom"
    traits: Traits = Traits()
    takes: str | None = WEIGHTS
    gives: str = WEIGHTS


class ModelGatherRule(GatherRule[Sent, Given, ModelWeights], Generic[Sent, Given]):
    """A `GatherRule` over the stack of all that clients send, such as models' weights."""

    __slots__ = ()


# A rule by its name, one over posteriors, or one over what clients send: `AnyRule` alone is over a model's weights.
AnyRule = str | Rule | GatherRule | ModelRule[Sent, Given, Any] | ModelGatherRule[Sent, Given]


class ServerStep(NamedTuple, Generic[Given, State]):
    """The update of the server from the pooled weights, as pure functions of structures of tensors.

    Fields:
      initialize: weights -> the step's own state.
      next: (state, the server's weights, what the rule pooled, a seed [2] for this round) -> (state, the server's next
        weights). Where it takes `EXTENDED`, a fifth argument is the clients' extra statistics, pooled.
      predictive: (state, the server's weights) -> the weights that predict, outside any graph; those of the server
        unless the step has better ones. They may hold a posterior over point weights.
      send: (state, the server's weights) -> what is sent to clients besides the weights, a structure of tensors.
      meet: (state, a `RoundSize`) -> state, before each `next`.
      takes: what the rule must give: `WEIGHTS`, `EXTENDED` of clients who send extra statistics (`ClientWork.extra`),
        `GAUSSIAN`, or `stack_of` or `total_of` what clients send.
      metrics: (state, the server's next weights, the pooled extra statistics or ()) -> scalars to report with the
        round, after `next`.
      name: name for users, with the step size if there is one, for messages about divergence.
      begin: (state, weights) -> the server's weights before the first round, from the step's own first state.
      needs: what it needs of a run.
    """

    initialize: Callable[[ModelWeights], State]
    next: Callable[Concatenate[State, ModelWeights, Given, tf.Tensor, ...], tuple[State, ModelWeights]]
    predictive: Callable[[State, ModelWeights], ModelWeights] = lambda state, weights: weights
    send: Callable[[State, ModelWeights], TensorTree] = lambda state, weights: ()
    meet: Callable[[State, RoundSize], State] = lambda state, size: state
    takes: str = WEIGHTS
    metrics: Callable[[State, ModelWeights, Any], Metrics] = lambda state, weights, extra: {}
    name: str = "custom"
    begin: Callable[[State, ModelWeights], ModelWeights] = lambda state, weights: weights
    needs: Needs = Needs()
