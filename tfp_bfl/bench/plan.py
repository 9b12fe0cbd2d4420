"""Plans: methods in settings with seeds and trials, from the YAML file of a benchmark or the command line of `tune`.

Errors of a plan are `InvalidArgument`; the message names the setting and the method where there are several.
"""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import datasets
from tfp_bfl.app.one_run.after import check_exact, check_one_network
from tfp_bfl.app.options.afterwards import AFTER, after_options
from tfp_bfl.app.options.config import RunConfig, fields, make_config, read_yaml
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.refusals import NoTruthAsNumber, refusal
from tfp_bfl.bench.scores import set_aside
from tfp_bfl.bench.sweep import DEFAULTS, Space, Values, parse_seeds, parse_space
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.options import fits
from tfp_bfl.options.choices import VARIATIONAL
from tfp_bfl.options.methods import canonical, implied, serves

OWN = ("seed", "output", "hold_out", "checkpoint_every", "keep_checkpoints", "tracker")
# Options that say which federation a run has: what differs in them cannot be compared.
OF_FEDERATION = (
    *("dataset", "data_dir", "label", "client_column", "task", "test_data"),
    *("partition", "clients", "unseen_clients"),
)
_MOST_CELLS = 100_000
_MOST_LETTERS = 60  # Of names, which become names of folders.


class BenchMethod(NamedTuple):
    """A method of a benchmark: options of its runs, and option -> values among which trials choose.

    `then` is the algorithm of `AFTER` that follows the training, with options of its own, in `space` with its name and
    a dot before. `without` are options of settings that its algorithm does not have.
    """

    options: Mapping[str, Any]
    space: Mapping[str, Space] = {}
    then: str | None = None
    then_options: Mapping[str, Any] = {}
    without: tuple[str, ...] = ()

    @property
    def tried(self) -> list[Values]:
        """The defaults, then the ends or values of the search space, one option at a time."""
        return [DEFAULTS, *({name: value} for name, each in self.space.items() for value in each.edges)]


class Plan(NoTruthAsNumber):
    """A benchmark: every method in every setting, with every seed.

    Fields:
      options, settings: of the runs of all methods, and name -> those of the runs in it.
      trials: of each method with a search space, in each setting; the best has the best `score` on held-out examples.
      hold_out: share of the training examples that are held out, in trials and in the final runs.
      evaluations: number of evaluations between rounds, for scores at equal bytes and at equal seconds.
      reference: the method from which differences are reported.
      oods: setting -> dataset of out-of-distribution images.
      file: YAML file with options of all runs; None for none.
    """

    settings: dict[str, dict[str, Any]]
    methods: dict[str, pydantic.SkipValidation[BenchMethod]]
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    trials: Annotated[int, pydantic.Strict(), pydantic.Field(ge=1, le=1000)] = 8
    trial_seed: Annotated[int, pydantic.Strict(), pydantic.Field(ge=0, lt=2**31)] = 1000
    score: Literal["nll", "accuracy", "rmse"] = "nll"
    hold_out: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.2
    evaluations: Annotated[int, pydantic.Strict(), pydantic.Field(ge=1, le=1000)] = 6
    reference: str = ""
    options: Mapping[str, Any] = {}
    oods: Mapping[str, str] = {}
    file: str | None = None

    def values(self, setting: str, method: str) -> dict[str, Any]:
        """Return the options of a method's runs in a setting: those of the method win, then those of the setting."""
        own = self.methods[method]
        return {**{name: x for name, x in self.shared(setting).items() if name not in own.without}, **own.options}

    def shared(self, setting: str) -> dict[str, Any]:
        """Return the options of the runs of all methods in a setting, without those of what follows a training."""
        return {name: x for name, x in {**self.options, **self.settings[setting]}.items() if "." not in name}

    def config(self, setting: str, method: str, seed: int, chosen: Values = DEFAULTS) -> RunConfig:
        """Return the configuration of a run with the values that a trial chose for options of the run."""
        of_run = {name: x for name, x in chosen.items() if "." not in name}
        return make_config(self.file, {**self.values(setting, method), **of_run, "seed": seed})

    def then_options(self, setting: str, method: str, chosen: Values = DEFAULTS) -> dict[str, Any]:
        """Return the options of what follows the training, with the values that a trial chose."""
        own, before = self.methods[method], f"{self.methods[method].then}."
        of_method = {f"{before}{name}": x for name, x in own.then_options.items()}
        every = {**self.options, **self.settings[setting], **of_method, **chosen}
        return {name.removeprefix(before): x for name, x in every.items() if name.startswith(before)}

    def configs(self, setting: str, method: str) -> list[RunConfig]:
        """Return the configurations of `BenchMethod.tried`."""
        return [self.config(setting, method, self.seeds[0], chosen) for chosen in self.methods[method].tried]

    def why_not(self, setting: str, method: str) -> str | None:
        """Return why a method cannot serve the data of a setting; None if it can."""
        try:
            for config in filter(datasets.regresses, self.configs(setting, method)):
                fits.check_numbers(config, scored=True)
        except InvalidArgument as error:
            return str(error)
        return None

    def named(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, RunConfig]]:
        """Return (what an error begins with, configuration) for `configs` of (setting, method)."""
        where = lambda x, method: f"The method {method!r} in the setting {x!r}: " if x else ""
        return [(where(*pair), config) for pair in pairs for config in self.configs(*pair)]

    def check_data(self, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Check that the clients of (setting, method) give examples to hold out, and return the digest of the data of
        each setting whose data may name clients (`datasets.check`).
        """
        digests = datasets.check(self.named(pairs), lambda clients, seed: set_aside(clients, self.hold_out, seed))
        found = {x: digests.get(datasets.key(self.config(x, method, self.seeds[0]))) for x, method in pairs}
        return {setting: digest for setting, digest in found.items() if digest}

    def check_task(self, setting: str) -> None:
        """Check that the score of the trials and the out-of-distribution images fit the data of a setting."""
        config, ood = self.config(setting, next(iter(self.methods)), self.seeds[0]), self.oods.get(setting)
        of_numbers = datasets.regresses(config)
        if self.score == ("accuracy" if of_numbers else "rmse"):
            where = f" of the setting {setting!r}" if setting else ""
            labels = "numbers" if of_numbers else "classes"
            raise InvalidArgument(f"score is {self.score}, but the labels{where} are {labels}: use nll.")
        if ood is None:
            return
        if of_numbers or datasets.is_own(config):
            raise InvalidArgument(f"ood of the setting {setting!r} is of images of a named dataset: leave it out.")
        own, other = (bfl.data.peek(name, config.data_dir, config.image_size) for name in (config.dataset, ood))
        if own.element_shape != other.element_shape:
            raise InvalidArgument(
                f"ood of the setting {setting!r} is {ood} with examples {list(other.element_shape)}, but those of "
                f"{config.dataset} are {list(own.element_shape)}: name a dataset of that form."
            )


def read_plan(file: str | os.PathLike, trust: bool = False) -> Plan:
    """Read the YAML file of a benchmark (docs/bench.md), and check every run of it but for its data.

    Code that the file names may be run if `trust`.
    """
    values, where = read_yaml(pathlib.Path(file)), f"The benchmark {path_name(file)}"
    keys = dict.fromkeys(name for name in Plan.model_fields if name not in ("oods", "file"))
    for key in values:
        lookup(keys, key, "key of a benchmark")
    methods = {key: _method(key, options) for key, options in _named(values, "methods", where).items()}
    settings = {key: _mapping(x, f"The setting {key!r}") for key, x in _named(values, "settings", where).items()}
    values |= {"methods": methods, "settings": settings, "options": _mapping(values.get("options"), "options")}
    values["oods"] = {name: str(options.pop("ood")) for name, options in settings.items() if "ood" in options}
    values["reference"] = str(values.get("reference", next(iter(methods))))
    values["seeds"] = parse_seeds(str(values.get("seeds", "0..4")))
    try:
        plan = Plan(**values)
    except pydantic.ValidationError as error:
        raise refusal(error) from None
    lookup(plan.methods, plan.reference, "method")
    cells = len(settings) * len(methods) * (len(plan.seeds) + plan.trials)
    if cells > _MOST_CELLS:
        raise InvalidArgument(f"{where} has {cells} runs, but at most {_MOST_CELLS} are possible: leave some out.")
    given = [plan.options, *settings.values(), *(method.options for method in plan.methods.values())]
    spaces = [method.space[name].values for method in plan.methods.values() for name in CODE if name in method.space]
    values_of_code = [options[name] for options in given for name in CODE if name in options]
    coded = [str(x) for x in (*values_of_code, *(value for each in spaces for value in each)) if names_code(x)]
    _check_names(plan, bool(coded))
    if coded and not trust:  # The file can come from somebody else.
        raise InvalidArgument(
            f"{where} runs the code {', '.join(dict.fromkeys(coded))}: read it, and add --trust-code."
        )
    for setting in settings:
        for method in methods:
            _check_runs(plan, setting, method)
    return plan


def _check_names(plan: Plan, coded: bool) -> None:
    """Check the names of options; with code any name may be a parameter of it, of which the runs are checked."""
    steps = {method.then for method in plan.methods.values()}
    places = [(what, x, BenchMethod({}), steps) for what, x in {"options": plan.options, **plan.settings}.items()]
    places += [(f"the method {key!r}", x.options, x, {x.then}) for key, x in plan.methods.items()]
    for what, options, method, after in places:
        for name in (*options, *method.space):
            step, dot, rest = name.partition(".")
            if dot and step in AFTER:
                lookup(AFTER[step].model_fields, rest, f"option of {step}")
                if step not in after or name in method.options:
                    raise InvalidArgument(
                        f"{name} of {what} is of methods with 'algorithm: {step}': give one, or leave it out."
                    )
                if rest in method.then_options:
                    raise InvalidArgument(f"{name} of {what} has two values: leave one of both out.")
            elif name == "ood":
                raise InvalidArgument(f"ood of {what} belongs to settings with images: name it in each of these.")
            elif name in OWN or (name == "algorithm" and name in method.space):
                raise InvalidArgument(f"{name} of {what} is the benchmark's own: leave it out.")
            elif name in OF_FEDERATION and name in (*method.options, *method.space):
                raise InvalidArgument(f"{name} of {what} belongs to the settings: give each its own setting.")
            elif not coded:
                lookup(fields(), name, "option", f"in {what}")


def _named(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
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
    """Return a mapping of the file; YAML reads no and 1 as a truth value and a number."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {shown(value)}, but must be a mapping such as 'rounds: 40'.")
    for key in value:
        if not isinstance(key, str):
            raise InvalidArgument(f"{what} has the name {shown(key)}, but names must be text: put it in quotes.")
    return value


def _method(key: str, value: object) -> BenchMethod:
    options, of = _mapping(value, f"The method {key!r}"), f"of the method {key!r}"
    spaces = _mapping(options.pop("tuned", None), f"tuned {of}")
    space = {name: parse_space(text, f"{name} of {key}") for name, text in spaces.items()}
    left_out = options.pop("without", ())
    without = tuple(x.strip() for x in left_out.split(",")) if isinstance(left_out, str) else left_out
    if not isinstance(without, (list, tuple)) or not all(isinstance(x, str) for x in without):
        raise InvalidArgument(f"without {of} is {shown(left_out)}, but must be a list of options.")
    then, then_options = None, dict[str, Any]()
    if str(options.get("algorithm")) in AFTER:
        then, then_options = options.pop("algorithm"), options
        options = _mapping(then_options.pop("start", None), f"start {of}")
        if not options:
            raise InvalidArgument(f"{then} {of} follows a training: give its options as start.")
        for name in then_options:
            lookup(AFTER[then].model_fields, name, f"option of {then}")
    return BenchMethod(options, space, then, then_options, tuple(without))


def _check_runs(plan: Plan, setting: str, method: str) -> None:
    """Check the first run of a method in a setting, with each end or value of its search space."""
    then = plan.methods[method].then
    for chosen in plan.methods[method].tried:
        try:
            _check_shared(plan, setting, method)
            config = plan.config(setting, method, plan.seeds[0], chosen)
            if then is not None:
                _check_then(then, plan.then_options(setting, method, chosen), config)
        except InvalidArgument as error:
            with_these = "".join(f" with {name} {x}" for name, x in chosen.items())
            raise InvalidArgument(f"The method {method!r} in the setting {setting!r}{with_these}: {error}") from None


def _check_shared(plan: Plan, setting: str, method: str) -> None:
    """Check that a method has the options of all methods in a setting, but for those that it names under `without`."""
    own, shared = plan.methods[method], plan.shared(setting)
    for name in own.without:
        if not any(name in plan.shared(each) for each in plan.settings) or name in own.options:
            raise InvalidArgument(f"without names {name}, which is no option of settings: leave it out.")
    options = {**shared, **own.options}
    algorithm = canonical(str(options.get("algorithm") or implied(options)))
    for name in () if names_code(algorithm) else shared:
        if name in fields() and name not in (*own.options, *own.without) and not serves(name, algorithm):
            raise InvalidArgument(
                f"{name} of the settings is no option of {algorithm}: add 'without: {name}' to the method."
            )


def _check_then(then: str, options: Values, config: RunConfig) -> None:
    """Check the options of what follows the training, and that it can follow it."""
    if config.kind in VARIATIONAL.entries:
        raise InvalidArgument(f"{then} follows a training of point weights, and the kind is {config.kind!r}.")
    check_one_network(config, then)
    if config.adapts:
        raise InvalidArgument(f"{config.algorithm} predicts with each client's own model, and {then} has none.")
    check_exact(config, then, "This")
    if config.class_weight is not None:
        raise InvalidArgument(f"{then} is of the likelihood without class weights: leave class_weight out.")
    after_options(then, options)
