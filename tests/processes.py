"""What makes processes cheap in tests: the engine of this process, and client work that many of them share."""

from __future__ import annotations

import contextlib
import functools
import os

import pytest
import tensorflow as tf

from tfp_bfl import clients
from tfp_bfl.algorithms import averaging
from tfp_bfl.contracts import ClientWork
from tfp_bfl.engines import tff


@contextlib.contextmanager
def in_this_process():
    """Processes run as where TensorFlow Federated is not installed, a client at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tff, "is_installed", lambda: False)
        patch.setattr(os, "sched_getaffinity", lambda pid: {0})
        yield


def weights_after(rounds, process, parts):
    """The server's weights when all of the clients `parts` were in each of the rounds, of which it knows the number."""
    everyone = range(parts.num_clients)
    with in_this_process():
        state = process.with_clients(process.initialize(), everyone, parts.sizes, rounds)
        for _ in range(rounds):
            state = process.next(state, parts.shards(everyone, 1)).state
    return state.weights


@contextlib.contextmanager
def shared_client_work():
    """Recipes that are called in it with the same model_fn and options share the client work, which is traced once:
    most of what a process costs. For processes that run one after another, and a client at a time.
    """
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), recipe in SHARED.items():
            patch.setattr(module, name, recipe)
        yield


def _once(recipe):
    @functools.wraps(recipe)
    def shared(model_fn, **options):
        return built(model_fn, tuple(sorted(options.items())))

    @functools.cache
    def built(model_fn, options):
        work = recipe(model_fn, **dict(options))
        work = work if isinstance(work, ClientWork) else ClientWork(work)
        traced = functools.cache(lambda: tf.function(work.build(), autograph=False, reduce_retracing=True))
        return work._replace(build=traced)

    return shared


PARTS = ((clients, "variational"), (averaging.recipe, "posterior_averaging"))
SHARED = {(module, name): _once(getattr(module, name)) for module, name in PARTS}
