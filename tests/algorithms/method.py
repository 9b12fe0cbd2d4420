"""What the contract of all methods asks of one, and client work outside any engine."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import layers, models, servers
from tfp_bfl.contracts import ClientWork
from tfp_bfl.data import Clients, Source, iid, load
from tfp_bfl.training import cosine_decay
from tfp_bfl.weights import ModelWeights, Population, ServerMessage, get_weights

FLOOR = 1e-3
SEED = 3
# Of the noise of private processes.
SECRET = (5, 6)
SOURCE = load("breast_cancer")
CLIENTS = Clients(SOURCE, [np.arange(0, 9), np.arange(9, 30), np.arange(30, 45)])
# A client of one class alone has a posterior that says so: the product of few such clients does not classify.
ALIKE = SOURCE.partition(iid(3), seed=0)
SIZES = [len(rows) for rows in CLIENTS.indices]


class Method(NamedTuple):
    """An algorithm with its options.

    Fields:
      model_fn: builds the model.
      build: () -> the process, with the seed `SEED`.
      work: the client work, to be built.
      pool: (the clients' results in the order of their numbers, the server's first weights) -> the state's step and
        weights after the first round.
      alone: (a client's result, the server's first weights) -> the weights that predict after a round of it alone; None
        for those that `pool` gives.
      weigh: number of examples -> the client's weight.
      data: clients of which it learns something,
      rounds: in so many rounds.
      metrics: that it reports besides those of every process, each with its largest value.
      moves: it changes the weights' means; False for a posterior about the weights as they are.
    """

    model_fn: Callable[[], tf.keras.Model]
    build: Callable[[], Any]
    work: Callable[[], Any]
    pool: Callable[[Any, ModelWeights], Any]
    alone: Callable[[Any, ModelWeights], ModelWeights] | None = None
    weigh: Callable[[Any], Any] = lambda num_examples: num_examples
    data: Clients = CLIENTS
    rounds: int = 10
    metrics: Mapping[str, int] = MappingProxyType({})
    moves: bool = True

    def predicts(self, result, anchor):
        """The weights that predict after a round of one client."""
        return self.pool([result], anchor)[1] if self.alone is None else self.alone(result, anchor)


@functools.cache
def mlp(kind):
    return lambda: models.mlp(kind, hidden=(3,), initial_stddev=0.05, min_stddev=FLOOR, prior_stddev=1.0)


def body():
    """A frozen network of layers that would change and draw if they trained, one of them set to train again."""
    glorot, constant = tf.keras.initializers.GlorotNormal(seed=5), tf.keras.initializers.Constant(0.1)
    inputs = tf.keras.Input((30,))
    x = tf.keras.layers.Dense(30, "tanh", kernel_initializer=glorot)(inputs)
    x = tf.keras.layers.BatchNormalization(moving_mean_initializer=constant)(x)
    x = tf.keras.layers.Dropout(0.5)(layers.MCDropout(0.5)(layers.DenseFlipout(30, kernel_initializer=glorot)(x)))
    model = tf.keras.Model(inputs, x, name="body")
    model.trainable, model.layers[2].trainable = False, True
    return model


@functools.cache
def on_body(model_fn):
    """The layers of a model on those of `body`."""

    def build():
        inputs = tf.keras.Input((30,))
        x = body()(inputs)
        for layer in model_fn().layers[1:]:
            x = layer(x)
        return tf.keras.Model(inputs, x, name="on_body")

    return build


def after_body(source):
    """The source with the features that `body` makes of its own."""
    with layers.sampling("mean"):
        features = body()(source.features).numpy()
    return Source(source.name, source.split, features, source.labels, source.class_names)


@functools.cache
def built(work):
    return work()


def half_way(given, build):
    """`given` under SGD of the server, by `build(server_optimizer)`: at first half way to where it goes without."""
    optimizer = servers.server_optimizer("sgd", cosine_decay(0.5, given.rounds, last=0), momentum=0.5)
    trained = lambda weights: (weights.posterior.mean, weights.point)
    half = lambda a, b: np.float32((np.float64(a) + b) / 2)

    def towards(weights, anchor):
        mean, point = tf.nest.map_structure(half, trained(anchor), trained(weights))
        return weights._replace(posterior=weights.posterior._replace(mean=mean), point=point)

    def pool(results, anchor):
        own, pooled = given.pool(results, anchor)
        # The first round's velocity is the gradient, w - pool.
        velocity = tf.nest.map_structure(lambda a, b: np.float32(a - b), trained(anchor), trained(pooled))
        state = {"accumulator": velocity, "round": np.int32(1)}
        return state if own == () else own._replace(inner=state), towards(pooled, anchor)

    alone = lambda result, anchor: towards(given.predicts(result, anchor), anchor)
    return given._replace(build=lambda: build(server_optimizer=optimizer), pool=pool, alone=alone)


def begin(process):
    """The state before the first round of a federation of all three clients; of a private process with `SECRET`."""
    state = process.with_clients(process.local.initialize(), range(len(SIZES)), SIZES)
    return state if isinstance(state.noise, tuple) else state._replace(noise=np.int32(SECRET))


@functools.cache
def result_of(work, model_fn, client):
    """Client work outside TFF, with the seed that a round folds from the run's seed, the round and the client."""
    weights, federation = get_weights(model_fn()), Population(len(SIZES), sum(SIZES))
    row = work.memory(weights, SIZES[client] / sum(SIZES)) if isinstance(work, ClientWork) and work.memory else ()
    message = ServerMessage(weights, tf.constant(0), memory=row, federation=federation)
    secret = SECRET if isinstance(work, ClientWork) and work.needs.is_private else ()
    return built(work)(message, tf.nest.map_structure(tf.constant, CLIENTS.examples(client)), fold(0, client, *secret))


def fold(*numbers):
    """The seed [2] that a round folds from the run's seed and these."""
    seed = tf.constant([SEED, 0])
    for number in numbers:
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    return seed


def unflat(flat, like):
    ends = np.cumsum([np.size(x) for x in like])
    return [part.reshape(np.shape(x)) for part, x in zip(np.split(np.float64(flat), ends[:-1]), like)]


def of_points(point, like):
    return like._replace(point=tuple(np.float32(x) for x in point))
