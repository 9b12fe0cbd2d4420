"""Numbers outside their ranges, and options without effect on the weights of a model, are one sentence before work."""

import pytest

from tfp_bfl.app.one_run.job import prepare
from tfp_bfl.app.options.config import class_of, make_config
from tfp_bfl.app.options.own_model import NO_CODE
from tfp_bfl.errors import LARGEST, SMALLEST, InvalidArgument
from tfp_bfl.options.methods import ALGORITHMS

# Option -> an algorithm that has it.
OPTIONS = {
    name: algorithm
    for algorithm in ALGORITHMS
    for name, field in class_of(algorithm).model_fields.items()
    if "float" in str(field.annotation)
}
ABSURD = ["1e-300", "1e300", "-1e300", "1e999", "inf", "-inf", "nan", 1e-300, 1e300, float("inf"), float("nan")]
NOISE = {"algorithm": "variational", "cohort_size": 2}
HIDDEN = {
    "privacy_noise": {**NOISE, "privacy_clip_norm": 1.0},
    "privacy_delta": {**NOISE, "privacy_clip_norm": 1.0},
    "example_noise": {"algorithm": "variational", "example_clip_norm": 1.0},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_absurd_numbers_are_refused(option):
    for value in ABSURD:
        with pytest.raises(InvalidArgument, match=rf"^{option}\S* is .*, but must (be|lie between) "):
            make_config(None, {"algorithm": OPTIONS[option], option: value})


@pytest.mark.parametrize("value", [SMALLEST, LARGEST])
def test_the_ends_of_the_range_are_accepted(value):
    assert make_config(None, {"learning_rate": value}).learning_rate == value


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("temperature", 1e-9, "between 1e-06 and 1: below, each example counts more than a million times"),
        ("temperature", 2.0, "between 1e-06 and 1: .* above, less than once"),
        ("initial_stddev", 50.0, "between 1e-12 and 10: from larger noise of the weights training diverges"),
    ],
)
def test_values_that_can_not_train_are_refused_with_the_reason(option, value, reason):
    with pytest.raises(InvalidArgument, match=f"^{option} is {value}, but must lie {reason}"):
        make_config(None, {option: value})
    make_config(None, {"temperature": 1e-6, "initial_stddev": 10.0})


@pytest.mark.parametrize("option", HIDDEN)
@pytest.mark.parametrize("value", [1e-12, 1e4])
def test_noise_and_delta_are_those_that_the_accountant_can_bear(option, value):
    with pytest.raises(InvalidArgument, match=rf"^{option} is .*, but must (be|lie between)"):
        make_config(None, {**HIDDEN[option], option: value})


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


@pytest.mark.parametrize(
    "options", [{"kind": "deterministic", "rule": "naive_weighted_average"}, {"algorithm": "variational"}]
)
def test_the_average_is_what_point_weights_get(options):
    assert prepared(**options).config.rule


@pytest.mark.parametrize("algorithm", ["fed_opt", "fed_prox", "scaffold", "fed_dyn", "fed_nova", "fed_pa", "fed_kp"])
def test_algorithms_of_point_weights_warn_of_gaussian_ones(algorithm):
    (warning,) = prepared(algorithm=algorithm, kind="flipout").warnings
    assert warning.startswith(f"{algorithm} trains Gaussian weights here") and "--kind deterministic" in warning
    assert prepared(algorithm=algorithm).warnings == ()


def test_the_default_has_no_warning():
    assert prepared().warnings == ()
