"""Numbers of options have ranges: a value outside is one sentence before any work."""

import pytest

from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.options.config import class_of, make_config
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
        ("temperature", 1e-9, "between 1e-06 and 1e.06: with more than a million counts .* is a point"),
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


@pytest.mark.parametrize("value", ["1e-300", "1e300", "inf", "nan"])
def test_the_command_line_ends_with_2(value, capsys):
    assert run_command_line(["run", "--learning-rate", value]) == 2
    assert capsys.readouterr().err.startswith("tfp-bfl: learning_rate is ")
