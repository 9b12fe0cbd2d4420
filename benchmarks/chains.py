"""Cost of a round in one graph beyond its arithmetic: logistic regression, 50 weights, gradient steps, ten clients.

    python benchmarks/chains.py [--rounds 5000] [--repeats 5]

Prints milliseconds a round, medians of repeats that take turns: `simulate_chains` without and with XLA, the same
arithmetic alone in a hand-written loop, compiled alike, and `simulate` on both engines.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.contracts import ClientWork
from tfp_bfl.weights import ClientResult, TrainingMetrics

CLIENTS, EXAMPLES, FEATURES, RATE = 10, 20, 24, 0.1


def model_fn():
    layers = [tf.keras.Input((FEATURES,)), tf.keras.layers.Dense(2)]
    return tf.keras.Sequential(layers, name="logistic_regression")


def gradient(features, labels, kernel, bias):
    """Return the gradient of the mean NLL, and the NLL."""
    logits = tf.matmul(features, kernel) + bias
    residual = (tf.nn.softmax(logits) - tf.one_hot(labels, 2)) / EXAMPLES
    nll = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    return tf.matmul(features, residual, transpose_a=True), tf.reduce_sum(residual, 0), nll


def work(message, examples, seed):
    kernel, bias = message.weights.point
    in_kernel, in_bias, nll = gradient(examples.features, examples.labels, kernel, bias)
    weights = message.weights._replace(point=(kernel - RATE * in_kernel, bias - RATE * in_bias))
    return ClientResult(weights, tf.shape(examples.labels)[0], TrainingMetrics(nll, tf.zeros_like(nll), -nll))


def make():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(CLIENTS * EXAMPLES, FEATURES)).astype(np.float32)
    labels = (features @ rng.normal(size=FEATURES) > 0).astype(np.int32)
    source = bfl.data.Source("made", "train", features, labels, ("no", "yes"))
    parts = [np.arange(k * EXAMPLES, (k + 1) * EXAMPLES) for k in range(CLIENTS)]
    process = bfl.algorithms.compose(
        model_fn, ClientWork(lambda: work), "naive_weighted_average", bfl.servers.replace(), weighting="equal"
    )
    return process, bfl.data.Clients(source, parts)


def arithmetic_alone(process, clients, rounds, xla):
    """Return a function that runs the clients' steps and their mean in a loop, and nothing else of a round."""
    parts = [clients.examples(k) for k in range(CLIENTS)]
    features, labels = (tf.constant(np.stack([getattr(p, name) for p in parts])) for name in ("features", "labels"))
    start = tuple(map(tf.constant, process.local.initialize().weights.point))

    @tf.function(jit_compile=xla, autograph=False)
    def run(kernel, bias):
        def client(k, in_kernel, in_bias):
            more = gradient(features[k], labels[k], kernel_now[0], bias_now[0])
            return k + 1, in_kernel + more[0], in_bias + more[1]

        kernel_now, bias_now = [kernel], [bias]

        def one_round(i, kernel, bias):
            kernel_now[0], bias_now[0] = kernel, bias
            zero = tf.constant(0), tf.zeros_like(kernel), tf.zeros_like(bias)
            _, a, b = tf.while_loop(lambda k, *_: k < CLIENTS, client, zero, parallel_iterations=1)
            return i + 1, kernel - RATE / CLIENTS * a, bias - RATE / CLIENTS * b

        return tf.while_loop(lambda i, *_: i < rounds, one_round, (0, kernel, bias), parallel_iterations=1)[1:]

    return lambda: [x.numpy() for x in run(*start)]


def milliseconds(run, rounds):
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started) / rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    process, clients = make()
    few = max(args.rounds // 50, 20)
    sides = {}
    for xla in (False, True):
        compiled = " by XLA" if xla else ""
        sides[f"chains{compiled}"] = (
            lambda xla=xla: bfl.algorithms.chains.simulate_chains(process, clients, args.rounds, xla=xla),
            args.rounds,
        )
        sides[f"arithmetic alone{compiled}"] = (arithmetic_alone(process, clients, args.rounds, xla), args.rounds)
    for engine in ("local", "tff") if bfl.federated.default_engine() == "tff" else ("local",):
        sides[f"simulate, {engine}"] = (
            lambda engine=engine: bfl.simulate(process, clients, few, engine=engine),
            few,
        )
    for run, _ in sides.values():
        run()  # traces
    taken = {name: [] for name in sides}
    for _ in range(args.repeats):
        for name, (run, rounds) in sides.items():
            taken[name].append(milliseconds(run, rounds))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    for name, value in medians.items():
        print(f"{name:28s} {value:8.4f} ms a round  ({min(taken[name]):.4f} to {max(taken[name]):.4f})")
    for compiled in ("", " by XLA"):
        beyond = medians[f"chains{compiled}"] - medians[f"arithmetic alone{compiled}"]
        print(f"beyond the arithmetic{compiled}: {beyond:.4f} ms a round")


if __name__ == "__main__":
    main()
