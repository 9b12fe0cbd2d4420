"""Every option of every command: another value changes what it does, or is refused by a sentence that names it.

Commands and options come from the command line itself, so that a new one without a row here, or without effect, fails.
What a run computes with an option is in test_every_option.py.
"""

import json
import os
import pathlib
import re
import shlex
import shutil

import click
import numpy as np
import pytest
import yaml

from tests.app.test_config import NEEDS
from tests.app.test_every_option import COMMON, VALUES
from tfp_bfl.app.cli import cli, run_command_line
from tfp_bfl.app.options.config import fields
from tfp_bfl.options.methods import takers

pytestmark = pytest.mark.cpu_seconds(60)

SUBMITTED = {
    "name": "--name other", "output": "--output admin", "quorum": "--quorum 3", "deadline": "--deadline 30",
    "secure_sums": "--secure-sums", "without": "--without north",
}  # fmt: skip
# Each with what it requires after a bar: what the command gets without the option too.
LINEAR_MODEL = {
    "outcome": "--outcome age", "family": "--family bernoulli | --outcome events", "event_value":
    "--event-value 0 | --family bernoulli --outcome events", "event": "--event events | --family cox --outcome time",
    "exposure": "--exposure time | --family poisson --outcome count", "only": "--only age", "drop": "--drop age",
    "categorical": "--categorical events", "date_unit": "--date-unit years", "missing": "--missing indicate",
    "random": "--random (intercept)", "prior_stddev": "--prior-stddev 0.1",
    "intercept_stddev": "--intercept-stddev 0.1", "level": "--level 0.5",
    "stratified": "--stratified | --family cox --outcome time --event events",
    "second_order": "--second-order | --family bernoulli --outcome events",
    "entry": "--entry time | --family cox --outcome age --event events", "offset": "--offset age",
    "weights": "--weights count", "trials": "--trials count | --family bernoulli --outcome events",
}  # fmt: skip
BOUNDS = "--bounds age=0:100,outcome=-20:40"
CODE = {name: f"--{name} net.py:{name}" for name in ("model", "rule", "algorithm", "dataset")}
# Command -> its start. The work of these is replaced, and what it gets is compared; that of others is done.
REPLACED = {
    "run": "run --dataset breast_cancer --partition iid --model mlp",
    "sweep": "sweep --dataset breast_cancer --partition iid --model mlp --output new",
    "tune": "tune --dataset breast_cancer --partition iid --model mlp --output new --space num-samples=3,4",
    "bench": "bench bench.yaml --output new",
    "watch": "watch run",
    "deploy init": "deploy init new --host h --site north",
    "deploy demo": "deploy demo",
    "deploy run": "deploy run admin --name first --output new",
    "deploy glm": "deploy glm admin --name first --output new --outcome outcome",
    "deploy glm-revise": "deploy glm-revise admin fit --name first --output new --add north --add south",
}
DONE = {
    "glm": "glm table.csv --client-column site --outcome outcome --date-unit months",
    "survival": "survival table.csv --client-column site --duration time --event events --by label",
    "table-one": "table-one table.csv --client-column site --drop seen",
    "deploy check": "deploy check north --date-unit months",
    **{"doctor": "doctor", "list": "list", "runs": "runs ."},
}
TRAINED = {
    "calibrate": "calibrate run new",
    "clients add": "clients add posterior posterior --output new",
    "clients remove": "clients remove posterior 1 --output new",
    "drift": "drift run table.csv",
    "export": "export posterior new",
    "laplace": "laplace run --output new",
    "last-layer": "last-layer run --output new",
    "predict": "predict posterior table.csv",
    "report": "report run other",
}
# Of options that have an effect on other files.
OTHER_START = {
    ("bench", "trust_code"): "bench code.yaml --output new",
    ("glm", "separator"): "glm tilde.csv --client-column site --outcome outcome --date-unit months",
    ("survival", "separator"): "survival tilde.csv --client-column site --duration time --event events --by label",
    ("table-one", "separator"): "table-one tilde.csv --client-column site --drop seen",
    ("drift", "separator"): "drift run tilde.csv",
    ("predict", "separator"): "predict posterior tilde.csv",
}
OPTIONS = {
    "run": {
        "config_file": "--config run.yaml", "resumed": "--resume nowhere", "progress": "--progress json",
        "seeds": "--seeds 0..1", "start": "--start nowhere", "structure": "--structure diagonal",
        "prior_by_layer": "--prior-by-layer", "noise_stddev": "--noise-stddev 2",
    },
    "sweep": {
        "varied": "--vary local-epochs=1,2", "seeds": "--seeds 0..1", "jobs": "--jobs 2", "listed": "--list",
        "config_file": "--config run.yaml", "progress": "--progress json", "output": "--output elsewhere",
        "name": "--name First=rounds=60", "figures": "--figures svg",
    },
    "tune": {
        "spaces": "--space local-epochs=1,2", "trials": "--trials 3", "score": "--score accuracy",
        "share": "--share 0.5", "config_file": "--config run.yaml", "output": "--output elsewhere",
    },
    "bench": {
        "output": "--output elsewhere", "jobs": "--jobs 2", "only": "--only seed-0", "listed": "--list",
        "trust_code": "--trust-code", "figures": "--figures jpg",  # The effect: tests/bench/test_summary.py.
        "tracker": "--tracker tensorboard",
    },
    "watch": {"port": "--port 9000"},
    "deploy init": {"host": "--host g", "port": "--port 9000", "sites": "--site south"},
    "deploy demo": {"output": "--output elsewhere", "rounds": "--rounds 3", "port": "--port 9000"},
    "deploy run": {**SUBMITTED, "max_examples": "--max-examples 30", "config_file": "--config run.yaml"},
    "deploy glm": {**SUBMITTED, **LINEAR_MODEL},
    "deploy glm-revise": {**SUBMITTED, "add": "--add west", "remove": "--remove east"},
    "deploy check": {name: LINEAR_MODEL[name] for name in ("drop", "only", "categorical", "date_unit")},
    "glm": {
        **LINEAR_MODEL, "client_column": "--client-column events", "separator": "--separator ~",
        "one_message": "--one-message", "predict": "--predict table.csv | --output new", "output": "--output new",
        "features": "--features random:3 | --random (intercept)", "export": "--export new | --random (intercept)",
        "fitted_prior": "--fitted-prior | --random (intercept)",
        "leave_out": "--leave-out north | --random (intercept) --export new", "robust": "--robust rows",
        "epsilon": f"--epsilon 1 | {BOUNDS} --only age", "delta": f"--delta 0.1 | {BOUNDS} --epsilon 1 --only age",
        "bounds": f"{BOUNDS} | --epsilon 1 --only age",
    },
    "table-one": {
        "by": "--by label", "client_column": "--client-column count", "only": "--only age", "drop": "--drop age,seen",
        "categorical": "--categorical events", "separator": "--separator ~", "output": "--output new.csv",
    },
    "survival": {
        "duration": "--duration age", "event": "--event label | --by site --client-column events", "event_value":
        "--event-value 0", "by": "--by count", "strata": "--strata count", "stratified": "--stratified",
        "client_column": "--client-column count", "separator": "--separator ~", "times": "--times 1,2",
        "horizon": "--horizon 1.5", "entry": "--entry time | --duration age", "level": "--level 0.5",
        "figure": "--figure new.svg",
    },
    "calibrate": {
        "accuracy": "--accuracy 0.6", "coverage": "--coverage 0.5", "confidence": "--confidence 0.5",
        "by": "--by epistemic", "set_coverage": "--sets 0.8", "set_score": "--set-score aps",
        "each_client": "--each-client", "figure": "--figure risk.png",
    },
    "clients add": {
        "replace": "--replace", "output": "--output elsewhere | --replace",
        **{name: f"{flags} | --replace" for name, flags in CODE.items()},
    },
    "clients remove": {"output": "--output elsewhere", **CODE},
    "drift": {"level": "--level 0.5", "separator": "--separator ~"},
    "export": {
        "tflite": "--tflite", "client": "--client 0", "num_samples": "--num-samples 3 | --tflite",
        "seed": "--seed 3 | --tflite", **CODE,
    },
    "laplace": {
        "structure": "--structure diagonal", "prior_stddev": "--prior-stddev 0.5",
        "prior_by_layer": "--prior-by-layer | --structure diagonal", "temperature": "--temperature 0.5",
        "output": "--output elsewhere", **CODE,
    },
    "last-layer": {
        "prior_stddev": "--prior-stddev 0.5", "noise_stddev": "--noise-stddev 0.5", "rounds": "--rounds 2",
        "structure": "--structure kronecker", "temperature": "--temperature 0.5",
        "output": "--output elsewhere", **CODE,
    },
    "predict": {
        "num_samples": "--num-samples 3", "seed": "--seed 3", "max_uncertainty": "--max-uncertainty 0.01",
        "separator": "--separator ~", "form": "--format csv",
    },
    "report": {
        "output": "--output other.html", "ood": "--ood unlike.csv", "columns": "--columns nll | --output scores.md",
        "digits": "--digits 2 | --output scores.md", "percent": "--percent | --output scores.md",
        "rows": "--row 'mlp on table as First' | --output scores.md", "dataset": "--dataset net.py:dataset",
        "interval": "--interval | --output scores.md", "caption": "--caption Runs | --output scores.tex",
        "label": "--label tab:runs | --output scores.tex", "name": "--name 'First=mlp on table' | --output scores.md",
        "figures": "--figures svg | --output scores.md",
    },
}  # fmt: skip
FORMATTED = ("bench", "calibrate", "doctor", "drift", "glm", "laplace", "last-layer", "list", "report", "run", "runs")
for _command in (*FORMATTED, "survival", "sweep", "table-one", "tune"):
    OPTIONS[_command] = {**OPTIONS.get(_command, {}), "form": "--format json"}
# What is refused there, as there is nothing on which it could have an effect.
REFUSED = {
    ("deploy glm-revise", "without"), ("export", "client"), ("last-layer", "noise_stddev"), ("report", "dataset"),
    *((command, name) for command in ("clients add", "clients remove", "export", "laplace", "last-layer")
      for name in CODE),
}  # fmt: skip


NET = """
import numpy as np
import tfp_bfl as bfl

def model(input_shape, num_classes, seed):
    return bfl.models.mlp("deterministic", input_shape, num_classes, hidden=(4,), seed=seed)

def rule():
    return bfl.rules.naive_weighted_average()

def algorithm(model_fn, **options):
    return bfl.algorithms.fed_opt(model_fn, **options)

def dataset():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 3)).astype(np.float32)
    return {"features": features, "labels": (features[:, 0] > 0).astype(np.int32), "clients": np.arange(80) % 2}
"""


class Called(Exception):
    """Carries the arguments of work that is not done."""


def raising(*arguments, **options):
    raise Called(re.sub(r" at 0x\w+", "", repr((arguments, sorted(options.items())))))


def commands(group=cli, path=()):
    for name, command in group.commands.items():
        yield from (
            commands(command, (*path, name))
            if isinstance(command, click.Group)
            else [(" ".join((*path, name)), command)]
        )


def options_of(command):
    return [x.name for x in command.params if isinstance(x, click.Option)]


AFTER = pytest.mark.deep(after="tests/app/test_every_command.py")
GRAPHS = ("saved_model.pb", "fingerprint.pb", "variables.index", "sha256sums.txt", ".data-00000-of-00001")
EVERY, BEFORE = dict(commands()), {}
OF_RUNS = [
    (command, name)
    for command in ("run", "sweep", "tune", "deploy run")
    for name in options_of(EVERY[command])
    if name in fields() and name not in OPTIONS[command]
]


def rows(table):
    """Without the form of what replaced work prints, which test_output.py has."""
    return [(x, name) for x in table for name in OPTIONS[x] if x not in REPLACED or name != "form"]


def test_every_option_has_a_row():
    assert {command for command, x in EVERY.items() if options_of(x)} == {*OPTIONS}
    assert {*OPTIONS} == {*REPLACED, *DONE, *TRAINED} and {*rows(OPTIONS)} >= REFUSED
    of_runs = {command: {name for of, name in OF_RUNS if of == command} for command in OPTIONS}
    assert {x: {*options_of(EVERY[x])} - of_runs[x] for x in OPTIONS} == {x: {*row} for x, row in OPTIONS.items()}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder with tables of five clients, files of options, and kits of an administrator and a site."""
    folder, rng = tmp_path_factory.mktemp("every"), np.random.default_rng(0)
    lines = ["site,age,events,count,time,seen,outcome,label"]
    for i in range(120):
        age, site = rng.normal(50, 9), i % 5
        seen, events, outcome = f"20{10 + i % 9}-0{1 + i % 8}-11", rng.integers(2), 0.1 * age + site + rng.normal()
        numbers = f"{events},{1 + rng.poisson(2)},{1 + rng.random():.3f},{seen},{outcome:.3f}"
        label = "sick" if age + 4 * rng.normal() > 50 else "well"
        lines.append(f"s{site},{'' if i == 7 else f'{age:.3f}'},{numbers},{label}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    (folder / "tilde.csv").write_text("\n".join(lines).replace(",", "~") + "\n")
    (folder / "unlike.csv").write_text("\n".join(lines[:40]).replace(",0,", ",1,") + "\n")
    (folder / "run.yaml").write_text("local_epochs: 2\n")
    methods = {"one": {"algorithm": "fed_opt"}, "two": {"rule": "net.py:rule"}}
    plan = {"seeds": "0..1", "settings": {"a": {"dataset": "breast_cancer", "model": "mlp"}}}
    (folder / "bench.yaml").write_text(yaml.safe_dump({**plan, "methods": {"one": methods["one"]}}))
    (folder / "code.yaml").write_text(yaml.safe_dump({**plan, "methods": methods}))
    (folder / "net.py").write_text(NET)
    for kit, role in (("admin", "admin"), ("north", "party")):
        (folder / kit / "local").mkdir(parents=True)
        (folder / kit / "tfp_bfl.json").write_text(json.dumps({"role": role, "name": kit, "host": "h"}))
    shutil.copy(folder / "table.csv", folder / "north" / "local")
    (folder / "north" / "local" / "party.yaml").write_text("data: table.csv\nlabel: label\n")
    (folder / "fit").mkdir()
    record = {"options": {"outcome": "age"}, "clients": ["east", "middle", "far"]}
    (folder / "fit" / "posterior.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def replaced(monkeypatch):
    """Replace the work of the commands by an exception with what it gets."""
    from tfp_bfl.app.one_run import run, watch
    from tfp_bfl.bench import cells, program, sweep, tuning
    from tfp_bfl.sites.deployment import demo, kits, submit

    for module, name in [
        (run, "execute"), (run, "resume"), (watch, "watch"), (sweep, "sweep"), (cells, "list_cells"),
        (tuning, "check_folder"), (program, "run_bench"), (kits, "make_kits"), (demo, "run_demo"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, raising)
    monkeypatch.setattr(tuning, "check_optuna", lambda: None)
    monkeypatch.setattr(submit, "check_installed", lambda: None)

    class Server:
        def __init__(self, *arguments):
            pass

        close = wait_for = lambda *arguments: set()

        def call(self, name, job):
            raise Called(sorted(path.read_text() for path in pathlib.Path(job).rglob("*.json")))

    monkeypatch.setattr(submit, "ServerSession", Server)


def outcome(arguments, capsys):
    """Return the exit status of a command and what it says and writes, or what its work gets; remove what is new.

    Files of graphs are left out: no two are the same.
    """
    there = set(os.listdir())
    capsys.readouterr()
    try:
        code = run_command_line(arguments)
    except Called as work:
        return 0, work.args, ""
    said = capsys.readouterr()
    new = [pathlib.Path(x) for x in os.listdir() if x not in there]
    parts = [part for x in new for part in (x.rglob("*") if x.is_dir() else [x]) if part.is_file()]
    written = {str(x): x.read_bytes() for x in parts if not str(x).endswith(GRAPHS)}
    for path in new:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return code, (re.sub(r"\d[\d.]* ?(s|min)\b", "", said.out), written), said.err


def compared(command, name, start, row, capsys):
    flags, _, needs = row.partition(" | ")
    start = [*shlex.split(OTHER_START.get((command, name), start)), *shlex.split(needs)]
    if tuple(start) not in BEFORE:  # Shared by the options of a command.
        BEFORE[tuple(start)] = outcome(start, capsys)
    before, after = BEFORE[tuple(start)], outcome([*start, *shlex.split(flags)], capsys)
    if after[0] == 2:
        is_named = any(x in after[2] for x in (name, name.replace("_", "-"), *shlex.split(row)))
        return None if is_named else f"{command} {flags} is refused without its name: {after[2]}"
    if (command, name) in REFUSED:
        return f"{command} {flags} is accepted"
    return f"{command} {flags} has no effect" if after == before else None


@pytest.mark.parametrize(
    ("command", "name"), [*rows(REPLACED), *rows(DONE), *(pytest.param(*x, marks=AFTER) for x in rows(TRAINED))]
)
def test_an_option_changes_the_result_or_is_refused(command, name, request, tmp_path, monkeypatch, capsys):
    folder = request.getfixturevalue("trained" if command in TRAINED else "table")
    if command in REPLACED:
        request.getfixturevalue("replaced")
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    start, row = {**REPLACED, **DONE, **TRAINED}[command], OPTIONS[command][name]
    assert compared(command, name, start, row, capsys) is None
    if name in ("figure", "output") and command in TRAINED:  # What differs above is of the option.
        again = [*shlex.split(start), *shlex.split(row.partition(" | ")[2])]
        assert outcome(again, capsys) == BEFORE[tuple(again)]


@pytest.mark.parametrize(
    ("command", "name"), [x if x[0] in ("run", "deploy run") else pytest.param(*x, marks=AFTER) for x in OF_RUNS]
)
def test_an_option_of_runs_reaches_the_work_or_is_refused(command, name, table, replaced, monkeypatch, capsys):
    monkeypatch.chdir(table)
    value, default = {**COMMON, **VALUES}[name], fields()[name].default
    needs = {"algorithm": next(iter(takers(name)))} if takers(name) and "variational" not in takers(name) else {}
    needs |= {x: given for x, given in NEEDS.get(name, {}).items() if x in options_of(EVERY[command])}
    value = not default if isinstance(default, bool) else value
    row = f"{as_flag(name, value)} | {' '.join(as_flag(*x) for x in needs.items())}"
    assert compared(command, name, REPLACED[command], row, capsys) is None


def as_flag(name, value):
    flag = name.replace("_", "-")
    return f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag} {shlex.quote(str(value))}"


@pytest.fixture(scope="module")
def trained(table):
    """The folder of the tables with a run, one of another seed, and a posterior at its weights."""
    flags = "--dataset table.csv --client-column site --drop seen --model mlp --algorithm fed_opt --engine local"
    flags += " --kind deterministic --rounds 2 --local-epochs 1 --num-samples 4 --hold-out 0.4"
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(table)
        for seed, folder in enumerate(("run", "other")):
            assert run_command_line(f"run {flags} --seed {seed} --output {folder}".split()) == 0
        assert run_command_line(["laplace", "run", "--temperature", "1", "--output", "posterior"]) == 0
    return table


@AFTER
@pytest.mark.parametrize("left_out", ["", "model", "algorithm", "dataset"])
def test_code_of_a_run_is_run_where_the_command_names_all_of_it(left_out, table, monkeypatch, capsys):
    monkeypatch.chdir(table)
    code = {name: flags for name, flags in CODE.items() if name != "rule"}  # Point weights are averaged.
    every = " ".join(code.values())
    if not (table / "coded").exists():
        flags = "--client-column client --rounds 1 --local-epochs 1 --engine local --num-samples 2 --output coded"
        assert run_command_line(f"run {every} {flags}".split()) == 0, capsys.readouterr().err
        assert run_command_line(f"laplace coded {every} --output coded_posterior".split()) == 0
        capsys.readouterr()
    named = " ".join(flags for name, flags in code.items() if name != left_out)
    for i, command in enumerate(("laplace coded", "last-layer coded", "clients remove coded_posterior 1")):
        status = run_command_line(f"{command} {named} --output new_{left_out}_{i}".split())
        assert status == (2 if left_out else 0) and left_out in capsys.readouterr().err
