"""The file of a benchmark, which names settings, methods and their search spaces, as a checked plan."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfp_bfl.app.one_run.after import check_one_network
from tfp_bfl.app.one_run.records import is_private
from tfp_bfl.app.options.afterwards import AFTER, after_options
from tfp_bfl.app.options.config import RunConfig, fields, make_config, read_yaml
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.bench.spaces import DEFAULTS, Space, Values, parse_space
from tfp_bfl.bench.sweep import parse_seeds
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.options.methods import canonical, serves

SCORES = ("nll", "accuracy", "rmse")
_KEYS = ("seeds", "trials", "trial_seed", "score", "hold_out", "evaluations", "reference", "options")
OWN = ("seed", "output", "hold_out", "checkpoint_every", "keep_checkpoints", "tensorboard")
# Options that say which federation a run has: what differs in them cannot be compared.
OF_FEDERATION = (
    *("dataset", "data_dir", "label", "client_column", "task", "test_data"),
    *("partition", "clients", "unseen_clients"),
)
_MOST_TRIALS, _MOST_CELLS = 1000, 100_000
# Of names, which become names of folders.
_MOST_LETTERS = 60


class BenchMethod(NamedTuple):
    """A method of a benchmark.

    Fields:
      options: of its runs.
      space: option -> values among which trials choose; an option of `then` has that name and a dot before it.
      then: the algorithm that follows the training: None, or a name of `AFTER`.
      then_options: options of that.
      without: options of settings that its algorithm does not have.
    """

    options: Mapping[str, Any]
    space: Mapping[str, Space]
    then: str | None = None
    then_options: Mapping[str, Any] = {}
    without: tuple[str, ...] = ()

    @property
    def edges(self) -> list[Values]:
        """The ends or values of the search space, one option at a time."""
        return [{name: value} for name, each in self.space.items() for value in each.edges]


class Plan(NamedTuple):
    """A benchmark: every method in every setting, with every seed.

    Fields:
      settings: name -> options of the runs in it.
      methods: by name.
      seeds: of the runs that are compared.
      trials: of each method with a search space, in each setting.
      trial_seed: of all trials.
      score: by which the best trial is chosen, on held-out training examples: "nll", "accuracy" or "rmse".
      hold_out: share of the training examples that are held out, in trials and in the final runs.
      evaluations: number of evaluations between rounds, for scores at equal bytes and at equal seconds.
      reference: the method from which differences are reported.
      options: of all runs.
      oods: setting -> dataset of out-of-distribution images.
    """

    settings: Mapping[str, Mapping[str, Any]]
    methods: Mapping[str, BenchMethod]
    seeds: Sequence[int]
    trials: int
    trial_seed: int
    score: str
    hold_out: float
    evaluations: int
    reference: str
    options: Mapping[str, Any]
    oods: Mapping[str, str]

    def values(self, setting: str, method: str) -> dict[str, Any]:
        """Return the options of a method's runs in a setting: those of the method win, then those of the setting."""
        own = self.methods[method]
        shared = {name: x for name, x in self.shared(setting).items() if name not in own.without}
        return {**shared, **own.options}

    def shared(self, setting: str) -> dict[str, Any]:
        """Return the options of the runs of all methods in a setting, without those of what follows a training."""
        return {name: x for name, x in {**self.options, **self.settings[setting]}.items() if "." not in name}

    def config(self, setting: str, method: str, seed: int, chosen: Values = DEFAULTS) -> RunConfig:
        """Return the configuration of a run with the values that a trial chose for options of the run."""
        of_run = {name: x for name, x in chosen.items() if "." not in name}
        return make_config(None, {**self.values(setting, method), **of_run, "seed": seed})

    def then_options(self, setting: str, method: str, chosen: Values = DEFAULTS) -> dict[str, Any]:
        """Return the options of what follows the training, with the values that a trial chose."""
        own = self.methods[method]
        of = lambda values: {
            name.partition(".")[2]: x
            for name, x in values.items()
            if name.partition(".")[0] == own.then and "." in name
        }
        return {**of({**self.options, **self.settings[setting]}), **own.then_options, **of(chosen)}


def read_plan(file: str | os.PathLike, trust: bool = False) -> Plan:
    """Read the YAML file of a benchmark, and check every run of it.

    Args:
      file: with `settings`, `methods`, and the other fields of `Plan` (docs/bench.md).
      trust: whether code that the file names may be run.

    Raises:
      InvalidArgument: the file cannot be read, or names something that does not exist or does not fit; the message
        names the setting and the method.
    """
    path = pathlib.Path(file)
    values = read_yaml(path)
    where = f"The benchmark {path_name(path)}"
    for key in values:
        lookup(dict.fromkeys((*_KEYS, "settings", "methods")), key, "key of a benchmark")
    methods = {key: _method(key, options, where) for key, options in _named(values, "methods", where).items()}
    settings = {key: _mapping(x, f"The setting {key!r}") for key, x in _named(values, "settings", where).items()}
    oods = {name: str(options.pop("ood")) for name, options in settings.items() if "ood" in options}
    plan = Plan(
        settings=settings,
        methods=methods,
        seeds=parse_seeds(str(values.get("seeds", "0..4"))),
        trials=_count(values, "trials", 8, _MOST_TRIALS),
        trial_seed=_count(values, "trial_seed", 1000, 2**31 - 1),
        score=_one_of(values.get("score", "nll"), SCORES),
        hold_out=share_of(values.get("hold_out", 0.2), "hold_out"),
        evaluations=_count(values, "evaluations", 6, 1000),
        reference=str(values.get("reference", next(iter(methods)))),
        options=_mapping(values.get("options", {}), "options"),
        oods=oods,
    )
    lookup(plan.methods, plan.reference, "method")
    cells = len(settings) * len(methods) * (len(plan.seeds) + plan.trials)
    if cells > _MOST_CELLS:
        raise InvalidArgument(f"{where} has {cells} runs, but at most {_MOST_CELLS} are possible: leave some out.")
    for what, options in {"options": plan.options, **plan.settings}.items():
        for name in options:
            _check_name(plan, name, what)
            if name in OWN:
                raise InvalidArgument(f"{name} of {what} is the benchmark's own: leave it out.")
    for key, one in methods.items():
        for name in () if _code_of(plan) else (*one.options, *(x for x in one.space if "." not in x)):
            lookup(fields(), name, "option", f"in the method {key!r}")
    _check_code(plan, where, trust)
    for setting in plan.settings:
        for method in plan.methods:
            _check_runs(plan, setting, method)
    return plan


def _check_name(plan: Plan, name: str, what: str) -> None:
    """Check that there is an option for the runs of all methods."""
    step, dot, rest = name.partition(".")
    if dot and step in AFTER:
        lookup(AFTER[step].model_fields, rest, f"option of {step}")
        if not any(method.then == step for method in plan.methods.values()):
            raise InvalidArgument(f"{name} of {what} reaches no method: give one 'algorithm: {step}', or leave it out.")
    elif name == "ood":
        raise InvalidArgument(f"ood of {what} belongs to settings with images: name it in each of these.")
    elif not _code_of(plan):  # Else a parameter of the code, of which the runs are checked.
        lookup(fields(), name, "option", f"in {what}")


def _named(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return the settings or the methods of the file."""
    found = _mapping(values.get(key), key)
    if not found:
        raise InvalidArgument(f"{where} has no {key}: name at least one, as in docs/bench.md.")
    for name in found:
        if not is_name(name):
            raise InvalidArgument(
                f"{key} has the name {shown(name)}, but names are of at most {_MOST_LETTERS} letters, digits, '_', "
                "'-' and '.'."
            )
    return found


def is_name(name: str) -> bool:
    """Return whether this can be the name of a setting or a method, and of a folder."""
    plain = name.replace("_", "").replace("-", "").replace(".", "")
    return plain.isalnum() and plain.isascii() and name[0].isalnum() and len(name) <= _MOST_LETTERS


def _mapping(value: object, what: str) -> dict[str, Any]:
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {shown(value)}, but must be a mapping such as 'rounds: 40'.")
    for key in value:
        if not isinstance(key, str):
            raise InvalidArgument(f"{what} has the name {shown(key)}, but names must be text: put it in quotes.")
    return value


def _method(key: str, value: object, where: str) -> BenchMethod:
    options = _mapping(value, f"The method {key!r}")
    space = {
        name: parse_space(text, f"{name} of {key}")
        for name, text in _mapping(options.pop("tuned", None), f"tuned of the method {key!r}").items()
    }
    left_out = options.pop("without", ())
    without = tuple(x.strip() for x in left_out.split(",")) if isinstance(left_out, str) else left_out
    if not isinstance(without, (list, tuple)) or not all(isinstance(x, str) for x in without):
        raise InvalidArgument(f"without of the method {key!r} is {shown(left_out)}, but must be a list of options.")
    then, then_options = None, dict[str, Any]()
    if isinstance(options.get("algorithm"), str) and options["algorithm"] in AFTER:
        then, then_options = options.pop("algorithm"), options
        options = _mapping(then_options.pop("start", None), f"start of the method {key!r}")
        if not options:
            raise InvalidArgument(f"{then} of the method {key!r} follows a training: give its options as start.")
        for name in then_options:
            lookup(AFTER[then].model_fields, name, f"option of {then}")
    for name in [*options, *space]:
        step, dot, rest = name.partition(".")
        if dot and step in AFTER:
            if step != then or name in options:
                raise InvalidArgument(f"{name} of the method {key!r} is tuned with 'algorithm: {step}': leave it out.")
            lookup(AFTER[step].model_fields, rest, f"option of {step}")
            if rest in then_options:
                raise InvalidArgument(f"{name} of the method {key!r} has two values: leave one of both out.")
            continue
        if name == "ood":
            raise InvalidArgument(
                f"ood of the method {key!r} belongs to settings with images: name it in each of these."
            )
        if name in OWN or (name == "algorithm" and name in space):
            raise InvalidArgument(f"{name} of the method {key!r} is the benchmark's own: leave it out.")
        if name in OF_FEDERATION:
            raise InvalidArgument(f"{name} of the method {key!r} belongs to the settings: give each its own setting.")
    return BenchMethod(options, space, then, then_options, tuple(without))


def _check_runs(plan: Plan, setting: str, method: str) -> None:
    """Check the first run of a method in a setting, with each end or value of its search space."""
    then = plan.methods[method].then
    for chosen in (DEFAULTS, *plan.methods[method].edges):
        try:
            _check_shared(plan, setting, method)
            config = plan.config(setting, method, plan.seeds[0], chosen)
            if then is not None:
                _check_then(then, plan.then_options(setting, method, chosen), config)
        except InvalidArgument as error:
            of_trial = f" with {_pairs(chosen)}" if chosen else ""
            raise InvalidArgument(f"The method {method!r} in the setting {setting!r}{of_trial}: {error}") from None


def _check_shared(plan: Plan, setting: str, method: str) -> None:
    """Check that a method has the options of all methods in a setting, but for those that it names under `without`."""
    own, shared = plan.methods[method], plan.shared(setting)
    for name in own.without:
        if not any(name in plan.shared(each) for each in plan.settings) or name in own.options:
            raise InvalidArgument(f"without names {name}, which is no option of settings: leave it out.")
    algorithm = canonical(str({**shared, **own.options}.get("algorithm", "variational")))
    for name in shared:
        if name in own.options or name in own.without or name not in fields() or names_code(algorithm):
            continue
        if not serves(name, algorithm):
            raise InvalidArgument(
                f"{name} of the settings is no option of {algorithm}: add 'without: {name}' to the method."
            )


def _check_then(then: str, options: Values, config: RunConfig) -> None:
    """Check the options of what follows the training, and that it can follow it."""
    if config.kind not in (None, "deterministic"):
        raise InvalidArgument(f"{then} follows a training of point weights, and the kind is {config.kind!r}.")
    check_one_network(config, then)
    if config.adapts:
        raise InvalidArgument(f"{config.algorithm} predicts with each client's own model, and {then} has none.")
    if is_private(config):
        raise InvalidArgument(
            f"{then} is computed from exact sums, which epsilon does not cover: leave one of both out."
        )
    if config.class_weight is not None:
        raise InvalidArgument(f"{then} is of the likelihood without class weights: leave class_weight out.")
    after_options(then, options)


def _check_code(plan: Plan, where: str, trust: bool) -> None:
    """Check that code in the file was named on the command line, as a file can come from somebody else."""
    coded = _code_of(plan)
    if coded and not trust:
        raise InvalidArgument(
            f"{where} runs the code {', '.join(dict.fromkeys(coded))}: read it, and add --trust-code."
        )


def _code_of(plan: Plan) -> list[str]:
    """Return each FILE.py:FUNCTION of a plan."""
    given = [*plan.settings.values(), *(method.options for method in plan.methods.values()), plan.options]
    coded = [str(x[name]) for x in given for name in CODE if names_code(x.get(name))]
    spaces = [method.space[name] for method in plan.methods.values() for name in CODE if name in method.space]
    return coded + [str(value) for space in spaces for value in space.values if names_code(value)]


def _pairs(chosen: Values) -> str:
    return ", ".join(f"{name} {x}" for name, x in chosen.items())


def _one_of(value: Any, names: Any) -> Any:
    if not isinstance(value, str):
        raise InvalidArgument(f"{shown(value)} is none of {', '.join(names)}.")
    lookup(dict.fromkeys(names), value, "choice")
    return value


def _count(values: Mapping[str, Any], key: str, default: int, most: int) -> int:
    value = values.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise InvalidArgument(f"{key} is {shown(value)}, but must be a whole number from 1 to {most}.")
    return value


def share_of(value: object, name: str) -> float:
    """Return a number above 0 and below 1, or a text of one such as "2e-1", as a float.

    Raises:
      InvalidArgument: it is none.
    """
    try:
        number = float(value) if isinstance(value, (str, float)) else math.nan
    except ValueError:
        number = math.nan
    if not 0 < number < 1:
        raise InvalidArgument(f"{name} is {shown(value)}, but must be a number above 0 and below 1.")
    return number
