"""Options that have no effect on the weights of a model are named: with them the run is the same, to the bit."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.app.one_run.job import prepare
from tfp_bfl.app.options.config import make_config
from tfp_bfl.app.options.own_model import NO_CODE

pytestmark = pytest.mark.cpu_seconds(60)

COMMON = {"dataset": "breast_cancer", "model": "mlp", "clients": 3, "rounds": 1, "local_epochs": 1, "engine": "local"}
OF_POSTERIOR = {"rule": "conflation", "temperature": 0.5, "kl": "client", "noise": "flipout", "inference": "backprop"}
OF_GAUSSIANS = {"prior_stddev": 0.1, "initial_stddev": 0.1, "min_stddev": 0.01, "variational_layers": "dense"}
OF_DROPOUT = {"dropout_rate": 0.5}
OF_NOISE = {"parametrization": "log_alpha"}


@functools.cache
def trained(kind, options):
    """Return the weights after a round [D], and the notes on options without effect."""
    job = prepare(make_config(None, {**COMMON, "kind": kind, **dict(options)}), None, NO_CODE)
    result = bfl.simulate(job.process, job.clients, rounds=1, seed=0, engine="local")
    weights = np.concatenate([np.ravel(x) for x in tf.nest.flatten(result.state.weights)])
    return weights, tuple(note for note in job.notes if "effect" in note)


@pytest.mark.parametrize(
    ("kind", "given", "weights"),
    [
        ("deterministic", {**OF_POSTERIOR, **OF_GAUSSIANS, **OF_DROPOUT, **OF_NOISE}, "point weights"),
        ("mc_dropout", {**OF_POSTERIOR, **OF_GAUSSIANS, **OF_NOISE}, "Monte Carlo dropout"),
        ("flipout", {**OF_DROPOUT, **OF_NOISE}, "Gaussian weights"),
    ],
)
def test_options_without_effect_are_named(kind, given, weights):
    found, (note,) = trained(kind, tuple(given.items()))
    assert note.endswith(f" have no effect: the model has {weights}.")
    named = note.partition(" have")[0].replace(" and ", ", ").split(", ")
    assert sorted(named) == sorted(given)
    plain, notes = trained(kind, ())
    assert notes == ()
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("flipout", {"rule": "conflation"}),
        ("flipout", {"temperature": 0.5}),
        ("flipout", {"initial_stddev": 0.1}),
        ("flipout", {"variational_layers": "dense"}),
        ("mc_dropout", {"dropout_rate": 0.5}),
        ("mc_dropout", {"output_dropout": True}),
    ],
)
def test_options_with_an_effect_are_not_named(kind, given):
    found, notes = trained(kind, tuple(given.items()))
    plain, _ = trained(kind, ())
    assert notes == () and (found.shape != plain.shape or np.any(found != plain))


@pytest.mark.parametrize("options", [{"kind": "deterministic", "rule": "naive_weighted_average"}, {}])
def test_the_average_is_what_point_weights_get(options):
    config = {**COMMON, **options}
    assert not [note for note in prepare(make_config(None, config), None, NO_CODE).notes if "effect" in note]


def test_one_option_without_effect_has_a_sentence_of_its_own():
    _, (note,) = trained("deterministic", (("initial_stddev", 0.1),))
    assert note == "initial_stddev has no effect: the model has point weights."
