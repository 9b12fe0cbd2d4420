"""Runs of one program with one seed are equal, also where the model's initializers have no seed."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import assert_same, flat


def unseeded():
    return tf.keras.Sequential([tf.keras.layers.Dense(4, "relu", input_shape=(30,)), bfl.layers.DenseFlipout(2)])


def clients():
    return bfl.data.load("breast_cancer").subset(40, seed=0).partition(bfl.data.iid(2), seed=0)


def weights(seed=None, rounds=0, run_seed=None):
    process = bfl.algorithms.variational(
        unseeded, "naive_weighted_average", local_epochs=1, **({} if seed is None else {"seed": seed})
    )
    state = process.local.initialize()
    if rounds:
        state = bfl.simulate(process, clients(), rounds, seed=run_seed, engine="local").state
    return flat(state.weights)


def test_first_weights_follow_from_the_process_seed():
    """Equal float32 numbers by chance in one of the kernels' 128 places: once in 10^5 or so."""
    first, other = weights(seed=0), weights(seed=1)
    np.testing.assert_array_equal(weights(seed=0), first)
    np.testing.assert_array_equal(weights(), first)
    assert (first != other).sum() >= 128


def test_runs_are_equal_whatever_the_program_drew_before():
    tf.keras.utils.set_random_seed(1)
    first = weights(rounds=2, run_seed=5)
    tf.keras.utils.set_random_seed(2)
    np.testing.assert_array_equal(weights(rounds=2, run_seed=5), first)
    assert (weights(rounds=2, run_seed=6) != first).any()


def test_the_seed_of_a_run_leaves_the_first_weights_alone():
    process = bfl.algorithms.variational(unseeded, "naive_weighted_average", local_epochs=1)
    first = process.local.initialize().weights
    found = []
    bfl.simulate(process, clients(), 1, seed=3, engine=lambda *given: spied(found, *given))
    assert_same(first, found[0].weights)


def spied(found, process, runtime):
    from tfp_bfl.federated.engines import ENGINES

    found.append(process.local.initialize())
    return ENGINES["local"](process, runtime)


def test_seeded_builders_keep_their_weights():
    model_fn = lambda: bfl.models.mlp("flipout", (3,), 2, hidden=(4,), seed=6)
    process = bfl.algorithms.variational(model_fn, "naive_weighted_average", seed=2)
    assert_same(process.local.initialize().weights, bfl.weights.get_weights(model_fn()))


@pytest.mark.deep(after="tests/federated/test_initial_weights.py")
def test_two_fresh_programs_are_equal():
    script = textwrap.dedent("""
        import tests.federated.test_initial_weights as program
        print(program.weights(rounds=1, run_seed=4).tobytes().hex())
    """)
    run = lambda: subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    first, second = run(), run()
    assert len(first) > 100 and first == second
