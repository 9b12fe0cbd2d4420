"""The JSON Schema of configuration files, as an editor reads it."""

import json

import jsonschema
import pytest

from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.options.config import fields, make_config
from tfp_bfl.options.methods import ALGORITHMS


@pytest.fixture(scope="module")
def schema():
    from tfp_bfl.app.options.config_schema import config_schema

    found = config_schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def test_the_command_prints_it(schema, capsys):
    assert run_command_line(["schema"]) == 0 and json.loads(capsys.readouterr().out) == schema
    assert schema["properties"].keys() == {*fields(), "name"} and all(
        x["description"] for x in schema["properties"].values()
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_a_run_records_is_valid(schema, algorithm):
    jsonschema.validate(make_config(None, {"algorithm": algorithm}).recorded(), schema)


@pytest.mark.parametrize(
    ("given", "is_valid"),
    [
        ({"rounds": 3, "rule": "conflation", "partition": "dirichlet:0.5", "prior_stddev": "fan_in"}, True),
        ({"compressor": "quantiser:4,none", "robust": "trimmed:0.2", "kind": None}, True),
        ({"rule": "rules.py:mine", "strength": 0.3}, True),
        ({"name": {"FedAvg": "algorithm=fed_opt"}}, True),
        ({"name": "FedAvg"}, False),
        ({"strength": 0.3}, False),
        ({"round": 3}, False),
        ({"rounds": 0}, False),
        ({"rounds": "three"}, False),
        ({"rule": "conflaton"}, False),
        ({"algorithm": "fedavg"}, False),
        ({"partition": "dirichlets:0.5"}, False),
        ({"temperature": 0}, False),
    ],
)
def test_names_types_and_limits(schema, given, is_valid):
    assert jsonschema.Draft202012Validator(schema).is_valid(given) == is_valid
