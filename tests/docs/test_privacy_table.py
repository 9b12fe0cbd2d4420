"""The page on privacy: its table of algorithms lists all, and each cell is what building the algorithm says."""

import functools
import re

import pytest

import tfp_bfl as bfl
from experiments.claims import table_under
from tests.own_files import ROOT
from tfp_bfl.app.one_run import build
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.methods import ALGORITHMS
from tfp_bfl.sites.deployment.jobs import make_job

TEXT = (ROOT / "docs" / "privacy.md").read_text()
SECTION = TEXT.split("\n| algorithm | secure aggregation |")[1]
HEAD, *ROWS = table_under(f"\n# Algorithms\n| algorithm | secure aggregation |{SECTION}", "# Algorithms")
TABLE = {name: row[1:] for row in ROWS for name in re.findall(r"`(\w+)`", row[0])}
MECHANISMS = {
    "client-level": {"privacy": bfl.privacy.Privacy(10.0, 1.0, 5), "weighting": "equal"},
    "example-level": {"example_privacy": bfl.training.ExamplePrivacy(1.0, 2.0)},
}
OPTIONS = {
    "client-level": {"privacy_clip_norm": 10, "cohort_size": 5, "weighting": "equal"},
    "example-level": {"example_clip_norm": 1},
}
# What the functions require besides a model.
REQUIRED = {
    "dg_sgld": {"step_size": 1e-4, "coupling": 1.0},
    "fsgld": {"step_size": 1e-4, "surrogates": ()},
    "qlsd": {"step_size": 1e-4},
    **{name: {"num_clients": 10} for name in ("meta_vd", "p_fed_bayes")},
}


def source():
    return bfl.data.load("breast_cancer").subset(64, seed=0)


def is_built(make):
    """Return whether a model of one kind or another is accepted: each algorithm has its kinds."""
    for kind in ("flipout", "deterministic", "variational_dropout"):
        try:
            make(kind)
        except InvalidArgument:
            continue
        return True
    return False


def in_a_job(name, kind):
    options = {"algorithm": name, "model": "mlp", "kind": kind, "rounds": 2}
    build.process(make_job(options, 3), source(), lambda: None, secure_sums=100.0)


def on_the_command_line(name, options, kind):
    config = make_config(None, {"algorithm": name, "model": "mlp", "kind": kind, "dataset": "breast_cancer", **options})
    build.process(config, source(), lambda: source().features)


def in_python(name, options, kind):
    data = source()
    model_fn = functools.partial(bfl.models.mlp, kind=kind, input_shape=data.element_shape, num_classes=2)
    given = (data.features,) if name == "fed_be" else ()
    getattr(bfl.algorithms, name)(model_fn, *given, **REQUIRED.get(name, {}), **options)


# The algorithms of which the cells are built in each run of the deep tests.
SHORT = ("fed_opt", "fed_ag", "fl_swag")


def test_the_table_has_every_algorithm_of_the_command_line():
    assert HEAD == ["algorithm", "secure aggregation", "client-level", "example-level"]
    assert sorted(TABLE) == sorted(ALGORITHMS)


@pytest.mark.deep(after="tests/docs/test_privacy_table.py")
@pytest.mark.parametrize("name", [pytest.param(x, marks=[] if x in SHORT else pytest.mark.long) for x in ALGORITHMS])
def test_cells_are_what_is_built_or_refused(name):
    cells = dict(zip(HEAD[1:], TABLE[name]))
    assert is_built(functools.partial(in_a_job, name)) == (cells["secure aggregation"] == "yes")
    for mechanism, options in OPTIONS.items():
        by_command = is_built(functools.partial(on_the_command_line, name, options))
        by_function = is_built(functools.partial(in_python, name, MECHANISMS[mechanism]))
        assert cells[mechanism].split(":")[0] == ("yes" if by_command else "in Python" if by_function else "no")
        assert by_function or not by_command
