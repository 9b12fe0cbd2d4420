"""Option objects of simulations, and the keywords that stand for their fields."""

import inspect
import re

import pytest

from tests.federated import toys
from tests.kit import refuses
from tfp_bfl import federated
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.federated import Backend, Checkpointing, Cohorts, Monitor, Prediction, Thinning, options
from tfp_bfl.federated.options import SimulationSettings, settings_of
from tfp_bfl.sites import simulate_parties


def anything(*args, **kwargs):
    raise AssertionError("never called")


AS_KEYWORDS = {
    **{"cohort_size": 4, "popularity": 2.0, "dropout": 0.25, "max_retries": 1},
    **{"checkpoint_dir": "states", "checkpoint_every": 5, "keep_checkpoints": 2},
    **{"evaluate": anything, "evaluate_every": 7, "evaluate_cohort": anything, "on_round": anything, "stop": anything},
    "progress": True,
    **{"average_rounds": 3, "draws": Thinning(1, 2), "batch_norm_examples": "examples"},
    **{"engine": "local", "runtime": "workers", "max_restarts": 0, "seed": 11, "start": "weights"},
}
AS_OBJECTS = {
    "cohorts": Cohorts(4, popularity=2.0, dropout=0.25, max_retries=1),
    "seed": 11,
    "checkpoints": Checkpointing("states", every=5, keep=2),
    "monitor": Monitor(anything, every=7, evaluate_cohort=anything, on_round=anything, stop=anything, progress=True),
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
    given = {"cohorts": 4, "checkpoints": "states", "monitor": anything, "engine": "local"}
    kinds = {"cohorts": Cohorts, "checkpoints": Checkpointing, "monitor": Monitor, "engine": Backend}
    wanted = SimulationSettings(**{name: kinds[name](value) for name, value in given.items()})
    assert settings_of(federated.simulate, given) == wanted


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


OF_ALL = [
    ({"cohort_sise": 3}, "There is no option of {} 'cohort_sise': did you mean 'cohort_size'"),
    ({"cohorts": Cohorts(2), "cohort_size": 3}, "cohort_size is the field 'size' of cohorts, and both"),
    ({"cohorts": Backend("local")}, "cohorts must be Cohorts(...), but is Backend("),
]
REFUSED = [
    *((function, *refused) for function in ALL for refused in OF_ALL),
    *((federated.simulate, {"prediction": x}, "prediction must be Prediction(...), but is") for x in (3, Thinning())),
    (federated.simulate, {"num_chains": 1}, "There is no option of {} 'num_chains': "),
    (simulate_chains, {"evaluate": 1}, "There is no option of {} 'evaluate': "),
    (simulate_parties, {"max_restarts": 1}, "There is no option of {} 'max_restarts': "),
    (simulate_chains, {"cohorts": Cohorts(2, dropout=0.5)}, "Rounds in one graph have neither dropout nor retries"),
    (simulate_chains, {"cohorts": Cohorts(2, max_retries=0)}, "Rounds in one graph have neither dropout nor retries"),
]


@pytest.mark.parametrize(("function", "options", "message"), REFUSED)
def test_what_a_driver_refuses(function, options, message):
    refuses(f"^{re.escape(message.format(function.__name__))}", given, function, **options)
