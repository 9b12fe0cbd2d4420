"""Seed the initializers that have no seed, without a trace in the program's own random generators."""

import contextlib
import inspect
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from tensorflow.python.eager import context
from tensorflow.python.framework.random_seed import DEFAULT_GRAPH_SEED

from tfp_bfl import keras


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from the global random generators by `seed` inside the block, and restore them after it.

        with bfl.weights.seeded(0):
            model = model_fn()

    Models from the same function and seed have the same initial weights, also where its initializers have no seed.
    Initializers with a seed of their own give the weights that they give outside the block. The generators are Python's
    `random`, `np.random`, Keras' initializers without a seed and TensorFlow's operations without one, which follow the
    program's `tf.random.set_seed` besides. Generators that a function makes itself (`np.random.default_rng()`,
    `tf.random.Generator`) are not reached.

    The first operation of TensorFlow without a seed resets the operations with one, as `tf.random.set_seed` does. No
    initializer of Keras runs such an operation.

    Args:
      seed: an integer.
    """
    generator, eager = random.Random(f"initial weights {int(seed)}"), context.context()
    # Where Keras keeps the generator of initializers without a seed, one for each thread.
    kept: Any = inspect.getmodule(keras.utils.set_random_seed).backend._SEED_GENERATOR  # type: ignore[union-attr]
    python, numpy = random.getstate(), np.random.get_state()
    tensorflow, by_keras = (eager._seed, getattr(eager, "_rng", None)), getattr(kept, "generator", None)
    random.setstate(generator.getstate())
    np.random.seed(generator.getrandbits(32))
    # The global seed that operations with a seed of their own meet stays the same: without one TensorFlow takes this.
    eager._seed = DEFAULT_GRAPH_SEED if eager._seed is None else eager._seed
    eager._rng = _OperationSeeds(generator.getrandbits(32))
    kept.generator = random.Random(generator.getrandbits(32))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        eager._seed, eager._rng = tensorflow
        kept.generator = by_keras


class _OperationSeeds(random.Random):
    """Seeds for operations without one. The first of them resets operations that ran by the same seeds before."""

    _fresh = False

    def randint(self, a: int, b: int) -> int:
        if not self._fresh:
            self._fresh = True
            context.context().clear_kernel_cache()
        return super().randint(a, b)
