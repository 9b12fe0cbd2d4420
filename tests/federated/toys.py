"""Small processes without training, whose rounds can be computed by hand: a vector of two weights, a mean a client."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tfp_bfl import federated, rules, servers, weighting
from tfp_bfl.contracts import ClientWork, ServerStep
from tfp_bfl.data import Clients, Source
from tfp_bfl.layers.noise import standard_normal
from tfp_bfl.weights import ClientResult, TrainingMetrics

NUM_CLIENTS = 4
# Client k holds three rows of (k, 10 + k).
FEATURES = np.repeat(np.array([[k, 10 + k] for k in range(NUM_CLIENTS)], np.float32), 3, 0)
LABELS = np.tile(np.array([0, 1, 0], np.int32), NUM_CLIENTS)
SOURCE = Source("made", "train", FEATURES, LABELS, ("no", "yes"))
CLIENTS = Clients(SOURCE, [np.arange(3 * k, 3 * k + 3) for k in range(NUM_CLIENTS)])
UNEQUAL = Clients(SOURCE, [np.arange(0, 2), np.arange(2, 6), np.arange(6, 7), np.arange(7, 12)])


def spoilt(source, features):
    """The source with features that none would take, as if they had been spoilt since."""
    found = dataclasses.replace(source)
    object.__setattr__(found, "features", features)
    return found


def model_fn():
    """Its point weights are a kernel [2, 2] of zeros and a bias [2] of zeros."""
    layers = [tf.keras.Input((2,)), tf.keras.layers.Dense(2, kernel_initializer="zeros")]
    return tf.keras.Sequential(layers, name="linear")


def no_metrics():
    return TrainingMetrics(tf.constant(1.0), tf.constant(0.0), tf.constant(-1.0))


def client_mean(examples):
    return tf.reduce_mean(examples.features, 0)


def towards(message, examples, seed):
    """Half way from the server's bias to the client's mean, with a little noise of its own on the kernel."""
    kernel, bias = message.weights.point
    kernel = 0.5 * kernel + 0.01 * tf.reshape(standard_normal(4, seed), [2, 2])
    weights = message.weights._replace(point=(kernel, bias + 0.5 * (client_mean(examples) - bias)))
    return ClientResult(weights, tf.shape(examples.labels)[0], no_metrics())


@functools.cache
def process(work=towards, step=None, rule=None, memory=None, sends="weights", personal=None, **options):
    return federated.build_process(
        model_fn,
        client_work=ClientWork(lambda: work, memory=memory, sends=sends, personal=personal),
        weigh=options.pop("weigh", weighting.equal),
        rule=rule or rules.whole_model(rules.naive_weighted_average()),
        server_step=step or servers.replace(),
        **options,
    )


def counting(message, examples, seed):
    """Keeps how often it has come, and moves the server's bias by that."""
    times = message.memory + 1.0
    kernel, bias = message.weights.point
    weights = message.weights._replace(point=(kernel, bias + times))
    return ClientResult(weights, tf.shape(examples.labels)[0], no_metrics(), memory=times)


def gradient(message, examples, seed):
    """Sends no weights and no posterior: the gradient of N / 2 ||bias - mean||^2 at what the server tells."""
    number = tf.cast(tf.shape(examples.labels)[0], tf.float32)
    force = number * (message.extra - client_mean(examples))
    bits = tf.constant(64.0)
    return ClientResult({"force": force}, tf.shape(examples.labels)[0], no_metrics(), counts={"bits": bits})


def total():
    """The plain sum of what clients send."""
    return rules.total()._replace(gives="force")


@functools.cache
def descend(step_size):
    """bias <- bias - step_size sum_k force_k; tells the bias."""

    def advance(state, weights, pooled, seed):
        kernel, bias = weights.point
        return state + 1.0, weights._replace(point=(kernel, bias - step_size * pooled["force"]))

    send, name = lambda state, weights: weights.point[1], f"descend (step size {step_size:g})"
    return ServerStep(lambda weights: tf.constant(0.0), advance, send=send, takes="force", name=name)


def personal(message, client):
    """The server's weights, moved by the client's number."""
    kernel, bias = message.weights.point
    return message.weights._replace(point=(kernel, bias + client))


langevin_like = functools.partial(process, gradient, rule=total(), sends="force", personal=personal)
