"""Options without effect on the weights of a model are refused; algorithms of point weights warn of Gaussian ones."""

import pytest

from tfp_bfl.app.one_run.job import prepare
from tfp_bfl.app.options.config import make_config
from tfp_bfl.app.options.own_model import NO_CODE
from tfp_bfl.errors import InvalidArgument

COMMON = {"dataset": "breast_cancer", "model": "mlp", "clients": 3, "rounds": 1, "local_epochs": 1, "engine": "local"}
OF_POSTERIOR = {"rule": "conflation", "temperature": 0.5, "kl": "client", "noise": "flipout", "inference": "backprop"}
OF_GAUSSIANS = {"prior_stddev": 0.1, "initial_stddev": 0.1, "min_stddev": 0.001, "variational_layers": "dense"}
OF_DROPOUT = {"dropout_rate": 0.5}
OF_NOISE = {"parametrization": "log_alpha"}


def prepared(**options):
    return prepare(make_config(None, {**COMMON, **options}), None, NO_CODE)


@pytest.mark.parametrize(
    ("kind", "options", "weights"),
    [
        ("deterministic", {**OF_POSTERIOR, **OF_GAUSSIANS, **OF_DROPOUT, **OF_NOISE}, "point weights"),
        ("mc_dropout", {**OF_POSTERIOR, **OF_GAUSSIANS, **OF_NOISE}, "Monte Carlo dropout"),
        ("flipout", {**OF_DROPOUT, **OF_NOISE}, "Gaussian weights"),
        ("variational_dropout", {**OF_DROPOUT, "prior_stddev": 0.1, "min_stddev": 0.001}, "Gaussian weights"),
    ],
)
def test_an_option_without_effect_is_refused(kind, options, weights):
    for name, value in options.items():
        with pytest.raises(InvalidArgument) as error:
            prepared(kind=kind, **{name: value})
        assert str(error.value) == f"{name} has no effect on a model of kind {kind} with {weights}: leave it out."


def test_several_stand_in_one_sentence():
    with pytest.raises(InvalidArgument, match=r"^temperature and min_stddev have no effect on .*: leave them out.$"):
        prepared(kind="deterministic", temperature=0.5, min_stddev=0.001)


@pytest.mark.parametrize("options", [{"kind": "deterministic", "rule": "naive_weighted_average"}, {}])
def test_the_average_is_what_point_weights_get(options):
    assert prepared(**options).config.rule


@pytest.mark.parametrize("algorithm", ["fed_opt", "fed_prox", "scaffold", "fed_dyn", "fed_nova", "fed_pa", "fed_kp"])
def test_algorithms_of_point_weights_warn_of_gaussian_ones(algorithm):
    (warning,) = prepared(algorithm=algorithm, kind="flipout").warnings
    assert warning.startswith(f"{algorithm} trains Gaussian weights here") and "--kind deterministic" in warning
    assert prepared(algorithm=algorithm).warnings == ()


def test_the_default_has_no_warning():
    assert prepared().warnings == ()
