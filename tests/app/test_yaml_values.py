"""Values in YAML files are read as written, or refused; a truth value is no number."""

import pathlib

import numpy as np
import pytest
import yaml

from tfp_bfl.app.options.config import fields, make_config, names_in, read_yaml
from tfp_bfl.bench.plan import read_plan
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.methods import takers
from tfp_bfl.sites.deployment.party_file import FILE, read_file

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("experiments/**/*.yaml"), *ROOT.glob("docs/**/*.yaml")])
NUMBERS = [name for name, field in fields().items() if any(x in str(field.annotation) for x in ("int", "float"))]


@pytest.fixture
def config_of(tmp_path):
    def read(text, **options):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return make_config(path, options)

    return read


def has_option(name):
    algorithm = next(iter(takers(name)), "variational")
    return {"algorithm": algorithm}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_truth_value_is_no_number(name, config_of):
    options = has_option(name)
    for word in ("yes", "on", "True", "false", "No", "1:30", "1:30.5"):
        with pytest.raises(InvalidArgument, match=rf"^{name} is .*must be "):
            config_of(f"{name}: {word}\n", **options)
    for value in (True, False, np.True_, "yes", "true", "on"):
        with pytest.raises(InvalidArgument, match=rf"^{name} is .*must be "):
            make_config(None, {**options, name: value})


def test_a_number_with_leading_zeros_is_decimal(config_of):
    assert (config_of("seed: 010").seed, config_of("seed: 08").seed) == (10, 8)
    assert (config_of("seed: 0x1F").seed, config_of("seed: 1_000").seed) == (31, 1000)
    assert config_of("learning_rate: 010.5").learning_rate == 10.5


@pytest.mark.parametrize("word", ["true", "True", "yes", "on"])
def test_options_that_are_truth_values_stay_what_they_were(word, config_of):
    assert config_of(f"kind: mc_dropout\noutput_dropout: {word}").output_dropout is True
    assert config_of("algorithm: fl_swag\ndiagonal_only: off").diagonal_only is False


def test_names_of_columns_are_as_written(config_of):
    assert names_in(config_of("dataset: x.csv\ndrop: [010, yes, 1.50, null, 2020-01-01, 1:30]").drop) == (
        *("010", "yes", "1.50", "null", "2020-01-01", "1:30"),
    )
    assert names_in(config_of("dataset: x.csv\ndrop: 010").drop) == ("010",)
    assert config_of("drop: null").drop is None
    config = config_of("dataset: x.csv\nlabel: 2020\nclient_column: yes\n")
    assert (config.label, config.client_column) == ("2020", "yes")


def test_names_of_classes_are_as_written(config_of):
    assert config_of("class_weight: {no: 5, yes: 1}").class_weight == "no=5.0,yes=1.0"
    found = config_of("class_weight: {01: 5, 1.50: 2, null: 3, true: 1.5}").class_weight
    assert found == "01=5.0,1.50=2.0,null=3.0,true=1.5"
    with pytest.raises(InvalidArgument, match="class_weight of a is True, but must be a finite number above 0"):
        config_of("class_weight: {a: true}")
    with pytest.raises(InvalidArgument, match="names '1' twice"):
        config_of("class_weight: {1: 5, '1': 2}")


def test_a_record_with_odd_names_gives_the_same_configuration(config_of):
    given = {"label": "no", "drop": "010", "only": "yes,2020-01-01", "dataset": "x.csv", "tracker": "tensorboard"}
    config = make_config(None, {**given, "class_weight": {"no": 5, "~": 1}, "learning_rate": 1e-5})
    assert config_of(config.record()) == config
    # In another form.
    assert config_of(yaml.safe_dump(config.model_dump(), default_flow_style=True)) == config


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_files_of_the_repository_have_their_meaning(file):
    assert read_yaml(file) == yaml.safe_load(file.read_text(encoding="utf-8"))


PLAN = """
settings: {digits: {dataset: digits, drop: null}}
methods: {no: {algorithm: fed_opt, kind: deterministic}}
"""


@pytest.mark.parametrize(
    "line, message",
    [
        ("trials: yes", "trials is 'yes', but must be a whole number"),
        ("trials: 010", "trials is '010', but must be a whole number"),
        ("seeds: 1:30", "seeds is '1:30', but must be such as"),
        ("seeds: yes", "seeds is 'yes', but must be such as"),
        ("hold_out: true", "hold_out is True, but must be a number"),
        ("options: {rounds: yes}", "rounds is 'yes', but must be a whole number"),
        ("options: {rounds: true}", "rounds is True, but must be a whole number"),
    ],
)
def test_a_benchmark_refuses_them_too(line, message, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(f"{PLAN}{line}\n", encoding="utf-8")
    with pytest.raises(InvalidArgument, match=message):
        read_plan(path)


def test_a_benchmark_has_names_as_written(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN, encoding="utf-8")
    plan = read_plan(path)
    assert list(plan.methods) == ["no"] and plan.reference == "no"


@pytest.mark.parametrize("value", ["true", "yes", "1:30"])
@pytest.mark.parametrize("name", ["max_rounds", "min_parties", "max_categories", "max_example_epsilon", "delta"])
def test_the_file_of_a_site_refuses_them_too(name, value, tmp_path):
    (tmp_path / FILE).write_text(f"data: rows.csv\n{name}: {value}\n", encoding="utf-8")
    with pytest.raises(InvalidArgument, match=rf"^{name} of .* but must be a .*number"):
        read_file(tmp_path)


def test_the_file_of_a_site_has_names_as_written(tmp_path):
    (tmp_path / FILE).write_text("data: rows.csv\nlabel: 010\ndrop: [010, no]\nshare_scores: no\n", encoding="utf-8")
    settings = read_file(tmp_path)
    assert (settings.label, settings.drop, settings.share_scores) == ("010", ["010", "no"], False)
