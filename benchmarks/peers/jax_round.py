"""Time a round of small clients that is written by hand in JAX: the least that a compiler needs for the arithmetic.

Prints one line of JSON: milliseconds of a round by `lax.scan` over the clients, and by `vmap`. Each client takes one
step of gradient descent on its examples from the weights of the server, which are then the mean of the clients'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEARNING_RATE = 0.03


def loss(weights: list[Any], features: Any, labels: Any) -> Any:
    """Return the mean cross-entropy of a perceptron with rectified units."""
    *hidden, last = weights
    for kernel, bias in hidden:
        features = jax.nn.relu(features @ kernel + bias)
    logits = features @ last[0] + last[1]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def step(weights: list[Any], features: Any, labels: Any) -> list[Any]:
    """Return a client's weights after its step."""
    gradient = jax.grad(loss)(weights, features, labels)
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradient)


def rounds(features: Any, labels: Any) -> dict[str, Callable[[list[Any]], list[Any]]]:
    """Return the compiled rounds, from weights to weights."""

    def scan(weights: list[Any]) -> list[Any]:
        add = lambda total, rows: (jax.tree.map(jnp.add, total, step(weights, *rows)), None)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), (features, labels))
        return jax.tree.map(lambda x: x / len(labels), total)

    def vmap(weights: list[Any]) -> list[Any]:
        return jax.tree.map(lambda x: x.mean(0), jax.vmap(step, (None, 0, 0))(weights, features, labels))

    return {"scan": jax.jit(scan), "vmap": jax.jit(vmap)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--sizes", type=int, nargs="+", default=[150, 64, 2], help="Units of the layers, inputs first.")
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    features = rng.normal(size=(chosen.clients, chosen.examples, chosen.sizes[0])).astype(np.float32)
    layers = zip(chosen.sizes[:-1], chosen.sizes[1:])
    weights = [(0.1 * rng.normal(size=shape).astype(np.float32), np.zeros(shape[1], np.float32)) for shape in layers]
    found = {}
    for name, one in rounds(jnp.asarray(features), jnp.asarray((features[..., 0] > 0).astype(np.int32))).items():
        times = []
        for _ in range(1 + chosen.rounds):
            started = time.perf_counter()
            jax.block_until_ready(one(weights))
            times.append(1000 * (time.perf_counter() - started))
        found[name] = statistics.median(times[1:])
    print(json.dumps({"jax": jax.__version__, **found}))


if __name__ == "__main__":
    main()
