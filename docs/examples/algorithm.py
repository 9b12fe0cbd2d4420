"""An algorithm: client work with a statistic beside the weights, a server step with a state, and their recipe."""

import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.algorithms.compose import split_options
from tfp_bfl.contracts import ServerStep

each = tf.nest.map_structure


def with_distance(work):  # the client work with ||w_k - w||^2 besides
    def build():
        train = work.build()

        def run(message, examples, seed):
            result = train(message, examples, seed)
            square = lambda a, b: tf.reduce_sum(tf.square(a - b))
            return result._replace(extra=tf.add_n(each(square, result.weights.point, message.weights.point)))

        return run

    return work._replace(build=build, extra=lambda weights: tf.constant(0.0))


def momentum_step(m):  # v <- m v + (pooled - w),   w <- w + (1 - m) v
    def step(v, weights, pooled, seed, extra):  # `extra` is the clients' mean
        v = each(lambda v, p, w: m * v + p - w, v, pooled.point, weights.point)
        return v, pooled._replace(point=each(lambda w, v: w + (1 - m) * v, weights.point, v))

    zeros, metrics = lambda weights: each(tf.zeros_like, weights.point), lambda extra: {"squared_distance": extra}
    return ServerStep(zeros, step, extra=True, metrics=metrics, name="momentum")


def fed_momentum(model_fn, *, momentum=0.9, **options):
    work, process = split_options(fed_momentum, bfl.clients.variational, options)
    local = with_distance(bfl.clients.variational(model_fn, **work))
    return bfl.algorithms.compose(model_fn, local, "naive_weighted_average", momentum_step(momentum), **process)
