import numpy as np
import pytest

from tests.kit import refuses
from tfp_bfl import errors

TABLE = {"dirichlet": 1, "iid": 2, "label_skew": 3}


@pytest.mark.parametrize("name", TABLE)
def test_lookup_finds(name):
    assert errors.lookup(TABLE, name, "partition") == TABLE[name]


def test_lookup_proposes_the_near_name():
    with pytest.raises(errors.InvalidArgument) as caught:
        errors.lookup(TABLE, "dirichelt", "partition")
    assert str(caught.value) == "There is no partition 'dirichelt': did you mean 'dirichlet'?"


@pytest.mark.parametrize("name", ["zzz", None, 3])
def test_lookup_names_all_if_none_is_near(name):
    with pytest.raises(errors.InvalidArgument) as caught:
        errors.lookup(TABLE, name, "partition")
    assert str(caught.value) == f"There is no partition {name!r}: choose one of 'dirichlet', 'iid', 'label_skew'."


@pytest.mark.parametrize("name", ["zzz", "9" * 60_000, None])
def test_lookup_names_some_of_many(name):
    with pytest.raises(errors.InvalidArgument) as caught:
        errors.lookup({f"option_number_{i}": i for i in range(100)}, name, "option")
    assert ": choose one of the 100 that there are, such as 'option_number_" in str(caught.value)
    assert str(caught.value).count("option_number_") == 5 and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(errors.InvalidArgument, ValueError), (errors.MissingDependency, ImportError), (errors.WorkerError, RuntimeError)],
)
def test_errors_are_the_librarys_and_the_builtin_that_callers_expect(error, builtin):
    assert issubclass(error, errors.Error) and issubclass(error, builtin)


LONG = {
    **{"int": 10**5000, "str": "a" * 10**6, "list": ["b"] * 10**6},
    **{"dict": {i: i for i in range(10**5)}, "lines": "\n\0"},
}


@pytest.mark.parametrize("name", LONG)
def test_values_are_shown_on_one_short_line(name):
    text = errors.shown(LONG[name])
    assert text.isprintable() and 0 < len(text) < 200


@pytest.mark.parametrize("value", ["resnet", 0, None, 1.5, ["a", 1]])
def test_short_values_are_shown_as_they_are(value):
    assert errors.shown(value) == repr(value)


@pytest.mark.parametrize("value", [1, 0.5, 1e-15, 1e15, np.float32(2), np.int64(3)])
def test_numbers_above_zero(value):
    assert errors.check_number(value, "rate") == value


def test_zero_is_a_number_where_it_may_be():
    assert errors.check_number(0, "rate", zero=True) == 0
    refuses(r"^rate is 0, but must be a finite number above 0\.$", errors.check_number, 0, "rate")


@pytest.mark.parametrize(
    "value",
    [-1, float("nan"), float("inf"), np.float32("inf"), pytest.param(10**5000, id="huge"), True, "1", None, [1], 1j],
)
def test_what_is_no_number(value):
    refuses(r"^rate is .*, but must be a finite number of at least 0\.$", errors.check_number, value, "rate", zero=True)
