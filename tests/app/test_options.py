"""Options against the recipes that take them, and names against the tables that hold them."""

import inspect

import pytest

import tfp_bfl as bfl
from tfp_bfl import named
from tfp_bfl.algorithms.chains.work import ESTIMATORS
from tfp_bfl.algorithms.factors.work import FACTORS_INFERENCE
from tfp_bfl.algorithms.heads.posterior import HEADS
from tfp_bfl.algorithms.kernel import rule as kernel
from tfp_bfl.algorithms.laplace.work import STRUCTURES
from tfp_bfl.algorithms.personal.evaluation import EVALUATION_NOISES
from tfp_bfl.algorithms.personal.variances import RANGES
from tfp_bfl.algorithms.personal.work import KL_REDUCTIONS
from tfp_bfl.app.one_run import build, trackers
from tfp_bfl.app.options.config import RunConfig, class_of, fields, make_config
from tfp_bfl.data.cells import DATE_UNITS
from tfp_bfl.data.equal_partitions import PARTITIONS
from tfp_bfl.data.own import TASKS
from tfp_bfl.layers.variational_dropout import PARAMETRIZATIONS
from tfp_bfl.models.blocks import INITIALIZERS, NORMALIZATIONS, VARIATIONAL
from tfp_bfl.options import choices
from tfp_bfl.options.group import Group, extra, option
from tfp_bfl.options.methods import ALGORITHMS, OWN, POSTERIORS, argument_names, arguments, method_of, serves
from tfp_bfl.options.server_groups import SERVER_SCHEDULES
from tfp_bfl.training.inference import NOISES
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from tfp_bfl.training.updates import KLS

EVERY = {**ALGORITHMS, **POSTERIORS}
GROUPS = {
    "kernel_options": bfl.algorithms.kernel.kernel_posterior,
    "variance_options": bfl.algorithms.personal.variances.PERSONAL_VARIANCES["hypernetwork"],
    "server_options": bfl.algorithms.personal.step.personal,
}
# Defaults of the command line that are meant to differ: (the recipe's, the command line's).
OTHER_DEFAULTS = {
    **{(name, "inference"): (FACTORS_INFERENCE, None) for name in ("partitioned_vi", "bayesian_admm")},
    **{(name, "optimizer"): (DEFAULT_OPTIMIZER, None) for name in ("partitioned_vi", "bayesian_admm")},
    **{(name, "step_size"): (inspect.Parameter.empty, 1e-4) for name in ("qlsd", "dg_sgld", "fsgld")},
    ("dg_sgld", "coupling"): (inspect.Parameter.empty, 0.01),
    ("dg_sgld", "local_steps"): (1, 5),
    **{(name, "batch_size"): (None, 32) for name in ("qlsd", "dg_sgld", "fsgld")},
    **{(name, "batch_size"): (64, 32) for name in ("meta_learning", "meta_vd")},
    **{(name, "burn_in_rounds"): (0, None) for name in ("fed_pa", "fed_kppa", "fed_sgld")},
}

# A recipe for a program, which trains before; `ensemble` is an option of all others.
APART = {"ensemble", "fed_lap"}


def accepted(name):
    return {x: y.default for x, y in inspect.signature(getattr(bfl.algorithms, name)).parameters.items()}


def test_every_recipe_has_its_options():
    assert set(EVERY) == set(bfl.algorithms.__all__) - {"compose"} - APART


@pytest.mark.parametrize("name", EVERY)
def test_each_option_is_an_argument_of_its_recipe_with_its_default(name):
    options = EVERY[name]
    for name_here, path in argument_names(options).items():
        if name_here in ("momentum", "optimizer") and name.startswith(("fed_", "scaffold")):
            continue  # Of the optimizer that is the argument.
        if name_here == "burn_in_rounds" and "thinning" in accepted(name):
            continue  # A part of it.
        group, _, argument = path.rpartition(".")
        if group:
            assert group in accepted(name)
        known = inspect.signature(GROUPS[group] if group else getattr(bfl.algorithms, name)).parameters
        ours = options.defaults.get(name_here, options.options[name_here].default)
        assert (known[argument].default, ours) == OTHER_DEFAULTS.get((name, name_here), (ours, ours)), name_here


def test_the_signature_of_run_shows_each_option():
    assert {*fields()} <= {*inspect.signature(bfl.run).parameters}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_recipe_gets_what_it_knows(name):
    given = arguments(make_config(None, {"algorithm": name}), list)
    assert given.keys() <= accepted(name).keys()
    wanted = {"batch_size", "step_size" if "thinning" in given else "local_epochs"}
    assert name == "head" or wanted <= given.keys()


def test_each_option_is_described_and_declared_once():
    groups = {kind for method in (*ALGORITHMS.values(), OWN) for kind in method.groups}
    for name, field in fields().items():
        assert field.description.endswith("."), name
        homes = [kind for kind in (*groups, RunConfig) if name in vars(kind).get("__annotations__", {})]
        assert len(homes) == 1, name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_configuration_holds_the_options_of_its_own_algorithm_alone(algorithm):
    config = make_config(None, {"algorithm": algorithm})
    assert set(type(config).model_fields) == {name for name in fields() if serves(name, algorithm)}
    assert isinstance(config, RunConfig)
    others = [name for name in fields() if not serves(name, algorithm)]
    assert others and all(getattr(config, name) == fields()[name].default for name in others)
    with pytest.raises(AttributeError):
        config.no_option  # noqa: B018
    assert sum(cls.__module__.startswith("tfp_bfl") for cls in type(config).__mro__) <= 6


def test_two_groups_that_declare_one_option_are_refused():
    class Other(Group):
        proximal: float = option(0.5, "Of nothing.")

    twice = ALGORITHMS["fed_prox"]._replace(groups=(*ALGORITHMS["fed_prox"].groups, Other))
    with pytest.raises(bfl.errors.InvalidArgument, match="proximal is an option of the groups Proximal and Other"):
        twice.options  # noqa: B018


def test_names_are_those_of_the_tables():
    tables = {
        choices.MODELS: bfl.models.MODELS,
        choices.KINDS: bfl.models.KINDS,
        choices.VARIATIONAL: VARIATIONAL,
        choices.NORMALIZATIONS: NORMALIZATIONS,
        choices.PRECISIONS: bfl.models.PRECISIONS,
        choices.EVALUATION_PRECISIONS: bfl.evaluation.PRECISIONS,
        choices.TASKS: TASKS,
        choices.DATE_UNITS: DATE_UNITS,
        choices.RULES: named.forms(bfl.rules.RULES),
        choices.STARTS: kernel.STARTS,
        choices.TRACKERS: trackers.TRACKERS,
        choices.STRUCTURES: STRUCTURES,
        choices.HEADS: HEADS,
        choices.KERNELS: kernel.KERNELS,
        choices.BANDWIDTHS: kernel.BANDWIDTHS,
        choices.WEIGHTINGS: bfl.weighting.ALL_WEIGHTINGS,
        choices.INFERENCES: bfl.training.INFERENCES,
        choices.OPTIMIZERS: OPTIMIZERS,
        choices.NOISES: NOISES,
        choices.KLS: KLS,
        choices.ESTIMATORS: ESTIMATORS,
        choices.LEARNERS: bfl.algorithms.personal.work.LEARNERS,
        choices.KL_REDUCTIONS: KL_REDUCTIONS,
        choices.PERSONAL_VARIANCES: bfl.algorithms.personal.variances.PERSONAL_VARIANCES,
        choices.EVALUATION_NOISES: EVALUATION_NOISES,
        choices.VARIANCE_RANGES: RANGES,
        choices.PARAMETRIZATIONS: PARAMETRIZATIONS,
        choices.INITIALIZERS: INITIALIZERS,
        choices.AUGMENTATIONS: named.forms(bfl.data.AUGMENTATIONS),
        choices.COMPRESSORS: named.forms(bfl.compression.COMPRESSORS),
        choices.ENGINES: bfl.federated.ENGINES,
        choices.SERVER_SCHEDULES: SERVER_SCHEDULES,
        choices.SERVER_OPTIMIZERS: bfl.servers.SERVER_OPTIMIZERS,
        choices.ROBUST: named.forms(bfl.rules.ROBUST),
        choices.PARTITIONS: bfl.data.partition_forms(),
    }
    for table, names in tables.items():
        assert table.entries == tuple(names), table
    assert {name.partition(":")[0] for name in choices.PARTITIONS.entries} == set(PARTITIONS)
    for numbers, optimizers in (
        (choices.SERVER_OPTIMIZERS.numbers(), bfl.servers.SERVER_OPTIMIZERS),
        (choices.OPTIMIZERS.numbers(), OPTIMIZERS),
    ):
        assert numbers == {name: entry.learning_rate for name, entry in optimizers.items()}
    every = [fields(), *(method.options for method in POSTERIORS.values())]
    used = {extra(field, "names") for group in every for field in group.values()} - {None}
    assert used - {choices.SCHEDULES} == set(tables) - {choices.VARIATIONAL}


def test_an_option_that_is_added_is_in_the_call_and_in_the_help(monkeypatch):
    class More(Group):
        extra_share: float = option(0.5, "Of nothing.", argument="ensemble.share")

    method = ALGORITHMS["fed_prox"]
    monkeypatch.setitem(ALGORITHMS, "fed_prox", method._replace(groups=(*method.groups, More)))
    made = class_of.__wrapped__("fed_prox")
    given = arguments(made(algorithm="fed_prox", kind="deterministic", extra_share=0.25), list)
    assert given["ensemble"] == {"share": 0.25} and given["proximal"] == 0.01


def test_an_algorithm_that_is_none():
    with pytest.raises(bfl.errors.InvalidArgument, match="no algorithm 'fedprox': did you mean 'fed_prox'"):
        method_of("fedprox")
    assert method_of("fed_prox").make is bfl.algorithms.fed_prox


@pytest.mark.parametrize(
    ("algorithm", "given", "rates"),
    [
        ("variational", {"inference": "backprop"}, (0.03, 1e-3)),
        ("partitioned_vi", {}, (0.005, 0.005)),  # of natural gradients, whatever steps the point weights
        ("fed_opt", {}, (0.03, 1e-3)),
    ],
)
def test_the_clients_optimizer_reaches_the_process(algorithm, given, rates):
    for optimizer, rate in zip(("nesterov", "adam"), rates):
        options = {"algorithm": algorithm, "dataset": "breast_cancer", "model": "mlp", "optimizer": optimizer, **given}
        described = build.process(make_config(None, options), bfl.data.load("breast_cancer"), list).description
        assert described["optimizer_fn"] == repr(optimizer)
        assert str(rate) in described["learning_rate"]


def test_a_pretrained_start_is_by_the_optimizer_that_the_learning_rate_belongs_to():
    options = {"algorithm": "variational", "dataset": "breast_cancer", "model": "mlp", "learning_rate": 0.5}
    config = make_config(None, {**options, "optimizer": "sgd", "pretrain_share": 0.1})
    described = build.pretraining(config, bfl.data.load("breast_cancer")).description
    assert (described["optimizer_fn"], described["learning_rate"]) == ("'sgd'", "0.5")
