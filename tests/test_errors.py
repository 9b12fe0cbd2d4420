import pytest

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


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(errors.InvalidArgument, ValueError), (errors.MissingDependency, ImportError), (errors.WorkerError, RuntimeError)],
)
def test_errors_are_the_librarys_and_the_builtin_that_callers_expect(error, builtin):
    assert issubclass(error, errors.Error) and issubclass(error, builtin)
