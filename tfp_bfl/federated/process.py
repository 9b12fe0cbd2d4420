"""An algorithm's process: its round, its model, and what its clients' data must look like."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import PADDED, TOTAL, WEIGHTS, ClientWork, ModelRule, ServerState, ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.display import shows
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import engine
from tfp_bfl.federated.compiled import CompiledEngine
from tfp_bfl.federated.description import describe, settings_of
from tfp_bfl.federated.draws import Thinning
from tfp_bfl.federated.faults import LIMITS, Limits
from tfp_bfl.federated.local import LocalEngine
from tfp_bfl.federated.memory import find_row, with_clients
from tfp_bfl.federated.round import Round, Weigh, make_round, types_of
from tfp_bfl.models import as_model_fn
from tfp_bfl.models.conversion import options_of
from tfp_bfl.privacy import Privacy
from tfp_bfl.weights import (
    ModelWeights,
    Population,
    ServerMessage,
    check_form,
    check_layers,
    check_logits,
    get_weights,
    min_stddev,
    seeded,
)
from tfp_bfl.weights.kinds import Given, Sent


@shows(
    lambda process: {
        "model": process.description["model"],
        "rule": process.settings["rule"],
        "clients": {name: x for name, x in process.settings.items() if name not in ("rule", "temperature")},
        "temperature": process.settings.get("temperature"),
    }
)
class BayesianProcess:
    """A learning process that knows its model and what its clients' data look like.

    Where TensorFlow Federated is installed it is a `tff.learning.templates.LearningProcess`, made when it is first
    asked for what one has: `initialize` and `next` are computations that run in any TFF context. Where it is not, they
    are functions that run in this process. `simulate` takes either engine, whatever is installed.

    Attributes:
      round, client_work, server_step: the round in pure TensorFlow, and two of its parts; model_fn builds the model.
      num_outputs: of the model: C.
      element_spec: of the elements of the datasets, each one client: (client [n], features [n, ...], labels [n]).
      min_examples, min_clients: the fewest that a client and a cohort must have.
      is_sum: its rule needs no more of what clients send than their sum, whoever sees it besides.
      one_shot: its rule is for one round.
      burn_in_rounds: rounds before those that make the result: a run must have more.
      limits: of what clients send, and of the server's weights.
      thinning: of a chain: which rounds are its draws; None for no chain.
      privacy: what its rule's clipping and noise are, None without.
      notices: warnings that a run of several rounds logs and reports.
      description: what a checkpoint must agree with: the library, the model and the rule, in words.
      settings: what it trains with, by the names of options: those of the rule, the model and the client work.
      state_spec: the shapes and types of the state's tensors, leaf by leaf; None for an axis that may grow.
    """

    def __init__(
        self,
        model_fn: Callable[[], keras.Model],
        client_work: ClientWork[Any],
        rule: ModelRule[Any, Any],
        server_step: ServerStep[Any],
        round: Round,
        thinning: Thinning | None,
        limits: Limits = LIMITS,
        weigh: Weigh | None = None,
        privacy: Privacy | None = None,
        notices: Sequence[str] = (),
        model: keras.Model | None = None,
    ):
        model = model or model_fn()
        self.round = round
        self.model_fn = model_fn
        self.server_step = server_step
        self.num_outputs = model.output_shape[-1]
        self.element_spec = round.element_spec
        self.min_examples = limits.min_examples
        self.min_clients = rule.traits.min_clients
        self.is_sum = rule.units is not None or rule.gives == TOTAL
        self.one_shot = rule.traits.one_shot and bool(tf.nest.flatten(round.initialize().weights.posterior))
        burn_in = thinning.burn_in if thinning else 0
        self.burn_in_rounds = max(burn_in, client_work.needs.burn_in, server_step.needs.burn_in)
        self.thinning = thinning
        self.privacy = privacy
        self.notices = tuple(notices)
        self.limits = limits
        self.client_work = client_work
        state = types_of(round.initialize)
        self.state_spec = tf.nest.flatten(state)
        self.description = {
            **describe(model, rule.name, tf.nest.flatten(state.step)),
            **settings_of(work=client_work, step=server_step, rule=rule, limits=limits),
            **(privacy._asdict() if privacy else {}),
        }
        name = getattr(weigh, "__name__", "custom")
        if name not in self.description.get("weighting", ""):  # Client work may have another one.
            self.description["weighting"] = name
        self.settings = {"rule": rule.name, "weighting": name, **options_of(model), **dict(client_work.settings)}
        # Options first: a checkpoint's refusal names the first difference, and others follow from an option.
        options_first = sorted(self.description, key=lambda x: x not in self.settings)
        self.description = {name: self.description[name] for name in options_first}

    @functools.cached_property
    def local(self) -> LocalEngine:
        """The engine of this process, with what it has compiled."""
        return LocalEngine(self.round)

    @functools.cached_property
    def compiled(self) -> CompiledEngine:
        """The engine of this process that compiles whole rounds by XLA; InvalidArgument if XLA lacks a part."""
        if lacks := self.server_step.needs.not_compiled:
            raise InvalidArgument(f"The engine compiled lacks {lacks}: use the engine local.")
        return CompiledEngine(self.round, self.shapes)

    @functools.cached_property
    def shapes(self) -> str:
        """The kind of shapes of a client's work, as of `ClientWork.shapes`.

        BatchNorm takes statistics of all rows, so that a model with it can't be padded.
        """
        has_moments = bool(tf.nest.flatten(self.round.initialize().weights.moments))
        return "" if has_moments and self.client_work.shapes == PADDED else self.client_work.shapes

    @functools.cached_property
    def learning_process(self) -> Any:
        """The `tff.learning.templates.LearningProcess`, for which TensorFlow Federated must be installed."""
        return engine("tff").learning_process(self.round, self.model_fn)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # By this `isinstance` takes it for TFF's own, which need not be imported for those who do not ask.
        return engine("tff").process_type() or BayesianProcess

    @property
    def initialize(self) -> Callable[[], ServerState]:
        """() -> the state before the first round."""
        return self._computations.initialize

    @property
    def next(self) -> Callable[[ServerState, Any], Any]:
        """(state, datasets of clients) -> the next `state`, and the round's `metrics`."""
        return self._computations.next

    @property
    def is_personal(self) -> bool:
        """Whether clients have personal models (`personal_weights`)."""
        return self.client_work.personal is not None

    @property
    def _computations(self) -> Any:
        return self.learning_process if engine("tff").is_installed() else self.local

    def get_model_weights(self, state: ServerState) -> ModelWeights:
        """Return the server's weights."""
        return state.weights

    def set_model_weights(self, state: ServerState, weights: ModelWeights) -> ServerState:
        """Return the state with other weights, from which the server step begins before the first round.

        Clients that have memories of the first weights already (`with_clients`) are refused.
        """
        tf.nest.assert_same_structure(state.weights, weights)
        if int(state.round) > 0:
            return state._replace(weights=weights)
        first = self.client_work.memory
        if first is not None and len(tf.nest.flatten(state.memory)[0]):
            rows = [tf.nest.flatten(tf.nest.map_structure(np.asarray, first(x, 0.5))) for x in (state.weights, weights)]
            if not all(np.array_equal(x, y) for x, y in zip(*rows)):
                raise InvalidArgument(
                    "What the clients keep follows from the first weights: set the weights before with_clients."
                )
        given = tf.nest.map_structure(tf.convert_to_tensor, weights)
        step = self.server_step.initialize(given)
        own = tf.nest.map_structure(np.asarray, (step, self.server_step.begin(step, given)))
        return state._replace(step=own[0], weights=own[1])

    def with_clients(self, state: ServerState, clients: Sequence[int], sizes: Any = (), rounds: int = 0) -> ServerState:
        """Return the state of a federation of these clients' numbers, who hold so many examples each.

        `rounds` are those of the run, over which rates fall (`training.schedules.falling`); 0 where they are not known.

        Where clients keep something over rounds, each has a row: a client that is there keeps its own. A round leaves
        out clients without one, as faulty.
        """
        held = np.asarray(sizes if len(sizes) else np.zeros(len(clients)), np.int64)
        any_weight = np.float32(Population().most_weight)
        federation = Population(np.int32(len(clients)), np.int64(held.sum()), any_weight, np.int32(rounds))
        # Who joins a federation that runs begins with nothing.
        shares = held / max(held.sum(), 1) if int(state.round) == 0 else np.zeros(len(clients))
        return with_clients(state._replace(federation=federation), clients, shares, self.client_work.memory)

    def predictive_weights(self, state: ServerState) -> ModelWeights:
        """Return the weights with which the model predicts after the state's rounds (`ServerStep.predictive`)."""
        step, weights = tf.nest.map_structure(np.asarray, (state.step, state.weights))
        return self.server_step.predictive(step, weights)

    def personal_weights(self, state: ServerState, client: int) -> ModelWeights:
        """Return the weights that predict for a client: its own (`ClientWork.personal`), else those for all."""
        weights = self.predictive_weights(state)
        if self.client_work.personal is None:
            return weights
        step, own = tf.nest.map_structure(np.asarray, (state.step, state.weights))
        extra, (row, _) = self.server_step.send(step, own), find_row(state.memory, tf.constant(client))
        return self.client_work.personal(ServerMessage(weights, state.round, extra, row, state.federation), client)


def build_process(
    model_fn: Callable[[], keras.Model],
    *,
    client_work: ClientWork[Sent] | Callable[[], Work[Sent]],
    weigh: Weigh,
    rule: ModelRule[Sent, Given],
    server_step: ServerStep[Given],
    element_spec: ClientExamples | None = None,
    seed: int = 0,
    limits: Limits = LIMITS,
    thinning: Thinning | None = None,
    privacy: Privacy | None = None,
    notices: Sequence[str] = (),
) -> BayesianProcess:
    """Build the process; its round runs in any engine, over any number of clients in constant server memory.

    A dataset of a round holds one client, or several, who then work one after another and share the fixed cost of one
    call: which clients lie together changes the result by the rounding of sums alone.

    Args:
      model_fn: builds the Keras model with the weights of the first state; or such a model.
      client_work: a `ClientWork`, or a function that builds its variables in the present graph and returns
        (message, examples, seed) -> `ClientResult`.
      weigh: (local posterior, anchor, number of examples) -> the client's weight.
      rule: over a model (`tfp_bfl.rules.whole_model`).
      server_step: of `tfp_bfl.servers`.
      element_spec: of the elements of the datasets, each one client: (client [n], features [n, ...], labels [n]); None
        for uint8 images or float32 tables in the model's input shape.
      seed: Random seed of the initial weights, as far as initializers have no seed of their own (`weights.seeded`), and
        of the noise where `simulate` names no other seed.
      limits: a client beyond them is faulty; `simulate` refuses one with fewer examples before the first round. The
        floor of standard deviations is the model's own.
      thinning: for a chain with rounds that are samples of a posterior over point weights: which `simulate` keeps.
      privacy: what the rule's clipping and noise are (`rules.private`), by which `simulate` draws clients and accounts.
      notices: warnings that a run of several rounds logs and reports.

    Faulty clients are left out of the sums, counted and named (`federated.faults`).

    Raises:
      InvalidArgument: a rule over a posterior alone, or arguments out of their ranges.
    """
    model_fn = as_model_fn(model_fn)
    work = client_work if isinstance(client_work, ClientWork) else ClientWork(client_work)
    if not isinstance(rule, ModelRule):
        raise InvalidArgument(
            f"A round pools whole models, and {getattr(rule, 'name', rule)!r} is no rule over one: wrap it in "
            "tfp_bfl.rules.whole_model, or use tfp_bfl.algorithms.compose, which does."
        )
    limits.checked(work.sends == WEIGHTS)
    with seeded(seed):
        model = model_fn()
    check_form(model)
    check_layers(model)
    check_logits(model, element_spec is None or element_spec.labels.dtype.is_integer)
    limits = limits._replace(min_stddev=min_stddev(model))
    round = make_round(
        tf.nest.map_structure(lambda x: x.numpy(), get_weights(model)),
        client_work=work,
        weigh=weigh,
        rule=rule,
        server_step=server_step,
        element_spec=element_spec or _client_spec(model),
        seed=seed,
        limits=limits,
    )
    return BayesianProcess(model_fn, work, rule, server_step, round, thinning, limits, weigh, privacy, notices, model)


def _client_spec(model: keras.Model) -> ClientExamples:
    shape = model.input_shape[1:]
    features = tf.TensorSpec([None, *shape], tf.uint8 if len(shape) == 3 else tf.float32)
    number = tf.TensorSpec([None], tf.int32)
    return ClientExamples(client=number, features=features, labels=number)
