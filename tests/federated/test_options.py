"""Option objects of simulations, and the keywords that stand for their fields."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tests.federated import toys
from tfp_bfl import federated
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import Backend, Checkpointing, Cohorts, Monitor, Prediction, Thinning, options
from tfp_bfl.federated.options import SimulationSettings, settings_of
from tfp_bfl.sites import simulate_parties


def anything(*args, **kwargs):
    raise AssertionError("never called")


AS_KEYWORDS = {
    **{"cohort_size": 4, "popularity": 2.0, "dropout": 0.25, "max_retries": 1},
    **{"checkpoint_dir": "states", "checkpoint_every": 5, "keep_checkpoints": 2},
    **{"evaluate": anything, "evaluate_every": 7, "evaluate_cohort": anything, "on_round": anything, "stop": anything},
    **{"average_rounds": 3, "draws": Thinning(1, 2), "batch_norm_examples": "examples"},
    **{"engine": "local", "runtime": "workers", "max_restarts": 0, "seed": 11, "start": "weights"},
}
AS_OBJECTS = {
    "cohorts": Cohorts(4, popularity=2.0, dropout=0.25, max_retries=1),
    "seed": 11,
    "checkpoints": Checkpointing("states", every=5, keep=2),
    "monitor": Monitor(anything, every=7, evaluate_cohort=anything, on_round=anything, stop=anything),
    "start": "weights",
    "prediction": Prediction(average_rounds=3, draws=Thinning(1, 2), batch_norm_examples="examples"),
    "engine": Backend("local", "workers", max_restarts=0),
}


def test_each_keyword_is_a_field_of_an_object():
    assert settings_of(federated.simulate, AS_KEYWORDS) == SimulationSettings(**AS_OBJECTS)
    assert settings_of(federated.simulate, AS_OBJECTS) == SimulationSettings(**AS_OBJECTS)
    assert settings_of(federated.simulate, {}) == SimulationSettings()


def test_keywords_are_all_typed():
    names = {*options._FIELDS}
    assert set(options.Keywords.__annotations__) == names == AS_KEYWORDS.keys() - {"engine", "seed", "start"}
    assert {field for _, field in options._FIELDS.values()} == {
        *Cohorts._fields,
        *(*Checkpointing._fields, *Monitor._fields, *Prediction._fields),
        *(name for name in Backend._fields if name != "engine"),
    } - {"about"}  # Newer than the keywords.
    assert {*options.Options.__annotations__} - names == {*options.PASSED_ON}
    assert {*options.CohortKeywords.__annotations__} < names


@pytest.mark.parametrize("kind", [Cohorts, Checkpointing, Monitor, Prediction, Backend], ids=lambda kind: kind.__name__)
def test_every_field_is_documented_and_has_a_default(kind):
    assert all(f"      {name}: " in kind.__doc__ for name in kind._fields)
    assert kind() == kind(**kind._field_defaults)


def test_simulate_has_ten_parameters():
    parameters = inspect.signature(federated.simulate).parameters.values()
    assert len([p for p in parameters if p.kind is not p.VAR_KEYWORD]) == 10


def test_the_first_field_stands_for_its_object():
    found = settings_of(
        federated.simulate, {"cohorts": 4, "checkpoints": "states", "monitor": anything, "engine": "local"}
    )
    assert found == SimulationSettings(
        Cohorts(4), checkpoints=Checkpointing("states"), monitor=Monitor(anything), engine=Backend("local")
    )


def test_objects_and_keywords_of_other_fields_go_together():
    found = settings_of(federated.simulate, {"cohorts": 4, "dropout": 0.25, "engine": "tff", "max_restarts": 0})
    assert found == SimulationSettings(Cohorts(4, dropout=0.25), engine=Backend("tff", max_restarts=0))


def given(function, **options):
    if function is federated.simulate:
        return federated.simulate(toys.process(), toys.CLIENTS, 1, **options)
    if function is simulate_chains:
        return simulate_chains(toys.process(), toys.CLIENTS, 1, **options)
    return simulate_parties(toys.process(), toys.CLIENTS, None, 1, **options)


ALL = [federated.simulate, simulate_chains, simulate_parties]
by_name = pytest.mark.parametrize("function", ALL, ids=lambda function: function.__name__)


@by_name
def test_an_unknown_keyword(function):
    with pytest.raises(
        InvalidArgument, match=rf"^There is no option of {function.__name__} 'cohort_sise': did you mean 'cohort_size'"
    ):
        given(function, cohort_sise=3)


@by_name
def test_a_field_that_is_given_twice(function):
    message = r"^cohort_size is the field 'size' of cohorts, and both are given: leave one out\.$"
    with pytest.raises(InvalidArgument, match=message):
        given(function, cohorts=Cohorts(2), cohort_size=3)


@by_name
def test_an_object_of_another_kind(function):
    with pytest.raises(InvalidArgument, match=r"^cohorts must be Cohorts\(\.\.\.\), but is Backend\("):
        given(function, cohorts=Backend("local"))


@pytest.mark.parametrize("value", [3, Thinning()], ids=["a number", "a thinning"])
def test_a_prediction_is_always_an_object(value):
    with pytest.raises(InvalidArgument, match=r"^prediction must be Prediction\(\.\.\.\), but is"):
        given(federated.simulate, prediction=value)


@pytest.mark.parametrize(
    ("function", "option"),
    [
        (federated.simulate, "num_chains"),
        (simulate_chains, "evaluate"),
        (simulate_parties, "max_restarts"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_option_of_another_driver(function, option):
    with pytest.raises(InvalidArgument, match=f"^There is no option of {function.__name__} '{option}': "):
        given(function, **{option: 1})


@pytest.mark.parametrize("cohorts", [Cohorts(2, dropout=0.5), Cohorts(2, max_retries=0)], ids=["dropout", "retries"])
def test_chains_have_neither_dropout_nor_retries(cohorts):
    with pytest.raises(InvalidArgument, match=r"^Rounds in one graph have neither dropout nor retries: leave"):
        given(simulate_chains, cohorts=cohorts)


def test_both_forms_give_the_same_run(tmp_path):
    process, calls = toys.process(), []
    of_keywords = federated.simulate(
        process,
        toys.CLIENTS,
        4,
        2,
        seed=3,
        dropout=0.2,
        checkpoint_dir=tmp_path / "keywords",
        checkpoint_every=3,
        on_round=calls.append,
        engine="local",
    )
    of_objects = federated.simulate(
        process,
        toys.CLIENTS,
        4,
        Cohorts(2, dropout=0.2),
        seed=3,
        checkpoints=Checkpointing(tmp_path / "objects", every=3),
        monitor=Monitor(on_round=calls.append),
        engine=Backend("local"),
    )
    tf.nest.map_structure(np.testing.assert_array_equal, of_keywords.state, of_objects.state)
    assert [row["round"] for row in calls] == [1, 2, 3, 4] * 2
    saved = [sorted(path.name for path in (tmp_path / name).glob("*.sha256")) for name in ("keywords", "objects")]
    assert saved == [["round_3.sha256", "round_4.sha256"]] * 2


def test_chains_of_both_forms_are_the_same():
    process = toys.process()
    runs = [
        simulate_chains(process, toys.CLIENTS, 3, **each)
        for each in ({"cohort_size": 2, "popularity": 1.0}, {"cohorts": Cohorts(2, popularity=1.0)})
    ]
    tf.nest.map_structure(np.testing.assert_array_equal, runs[0].draws, runs[1].draws)
