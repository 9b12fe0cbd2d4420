"""Small benchmarks, and their records."""

import yaml

from tests.kit import lines_of
from tfp_bfl.bench import program
from tfp_bfl.bench.plan import read_plan

PLAN = {
    "seeds": "0..1",
    "trials": 3,
    "options": {"engine": "local"},
    "settings": {"a": {"dataset": "digits", "rounds": 2}, "b": {"dataset": "digits", "rounds": 3}},
    "methods": {
        "tuned": {"algorithm": "fed_opt", "kind": "deterministic", "tuned": {"learning_rate": "0.01..0.1 log"}},
        "plain": {},
    },
}


def heart(**options):
    return {"settings": {"h": {"dataset": "heart_disease", "rounds": 2, **options}}}


def plan_of(tmp_path, **changes):
    path = tmp_path / "bench.yaml"
    path.write_text(yaml.safe_dump({**PLAN, **changes}, sort_keys=False))
    return read_plan(path)


def records(folder):
    return lines_of(folder / program.RECORDS)
