"""The algorithms: each with its recipe, its groups of options, and what it requires of a run.

A new option of a recipe is one more field of a group; a new algorithm is one more `Method` in `_METHODS`. The command
line, the configuration and the arguments of the recipe follow from this table.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from tfp_bfl.defaults import LOCAL_EPOCHS_OF_DEFAULT
from tfp_bfl.errors import lookup
from tfp_bfl.files.code import names_code
from tfp_bfl.options import method as made
from tfp_bfl.options.group import extra, of_config
from tfp_bfl.options.method import Method, options_of
from tfp_bfl.options.posterior_groups import (
    Adaptation,
    BurnIn,
    Chain,
    Coupling,
    Gradients,
    LocalChain,
    MetaLearner,
    OwnVariances,
    RoundSamples,
    Shrinkage,
    Surrogates,
)
from tfp_bfl.options.server_groups import (
    Aggregation,
    AtWeights,
    Bound,
    CoarseVariances,
    Compression,
    Defence,
    Density,
    Distillation,
    ErrorMemory,
    GlobalOptimizer,
    HeadFit,
    LinearLayer,
    Precision,
    PrivateClients,
    Weighting,
    WeightPrior,
)
from tfp_bfl.options.training_groups import (
    ADMM,
    Augmented,
    Batches,
    DynamicLoss,
    Inference,
    Local,
    LocalOptimizer,
    Momentum,
    PrivateExamples,
    Proximal,
    RoundPosterior,
    Rounds,
    SiteFactors,
    Swag,
    Tempered,
)


def _only(*names: str) -> frozenset[str]:
    return frozenset(names)


POINT, CLASSES, EVEN, START = "point weights", "classes", "equal chances", "start"
PERSONAL, ADAPTED, SAMPLES = "personal models", "adapted models", "samples"
_OF_POINTS = (Compression, ErrorMemory)
_MESSAGES = (*_OF_POINTS, CoarseVariances)
_TRAINING = (Batches, Local, Augmented, Rounds)
_PRIVATE = (Weighting, PrivateClients)
_INFERRED = (*_TRAINING, LocalOptimizer, Inference, Tempered, Bound)
_AVERAGING = (*_TRAINING, LocalOptimizer, Momentum, Bound, Defence, GlobalOptimizer)
_AVERAGED = (*_AVERAGING, WeightPrior, *_PRIVATE, *_MESSAGES)
_CHAIN = (Batches, WeightPrior, BurnIn, RoundSamples, Chain)
_META = (*_TRAINING, Adaptation, MetaLearner, GlobalOptimizer, Bound, Aggregation, Defence)
_KERNEL = (*_AVERAGING, WeightPrior, Density)

_of_averaging = functools.partial(
    Method,
    defaults={"kind": "deterministic", "rounds": 30, "momentum": 0.9},
    schedule="inverse",
    rate=made.rate_of_optimizer,
)
_of_samples = functools.partial(_of_averaging, schedule="constant", rate=made.rate_of_samples)
# The clients' first factors hold the start: the narrower it is, the longer it pulls.
_of_factors = functools.partial(
    Method,
    requires=_only("kind flipout"),
    defaults={"initial_stddev": 0.05},
    schedule="inverse",
    rate=functools.partial(made.rate_of_inference, default=made.inference_of_factors),
    inference=made.inference_of_factors,
)
# A round is one step: evaluations and checkpoints of each would take most of the time.
_OF_CHAINS = {
    **{"kind": "deterministic", "rounds": 2000, "step_size": 1e-4, "prior_stddev": 1.0},
    **{"evaluate_every": 250, "checkpoint_every": 250, "keep_every": 25, "max_samples": 40},
}
_of_chains = functools.partial(
    Method,
    gives=_only(SAMPLES),
    of_recipe=("prior_stddev",),
    steps=lambda config, num_examples: config.local_steps,
)
DEFAULT = Method(
    "default",
    "variational with adaptive steps of the server, which give way to the average as all rates fall to zero",
    (Batches, Local, Augmented, Tempered, Bound, Defence, WeightPrior, *_PRIVATE, *_MESSAGES),
    defaults={"local_epochs": LOCAL_EPOCHS_OF_DEFAULT},
    rate=made.rate_of_optimizer,
)
VARIATIONAL = Method(
    "variational",
    "clients fit a posterior by the ELBO, many rounds; the server pools by a rule",
    (
        *(*_INFERRED, Aggregation, Defence, GlobalOptimizer, WeightPrior, *_PRIVATE, PrivateExamples, RoundPosterior),
        *_MESSAGES,
    ),
    schedule="inverse",
    rate=functools.partial(made.rate_of_inference, default=made.inference_of_posterior),
    inference=made.inference_of_posterior,
)
# An algorithm of the user, FILE.py:FUNCTION, which gets those of these options that it takes.
OWN = Method(
    "own",
    "an algorithm of the user",
    (*_TRAINING, LocalOptimizer, Aggregation, Bound, Defence, WeightPrior, Weighting),
    schedule="inverse",
    rate=made.rate_of_optimizer,
)
_METHODS = (
    DEFAULT,
    VARIATIONAL,
    _of_factors(
        "partitioned_vi",
        "each client keeps its likelihood's factor of the posterior, which the server multiplies",
        (*_INFERRED, WeightPrior, SiteFactors, Weighting),
    ),
    _of_factors(
        "bayesian_admm",
        "partitioned_vi with clients held to the server's posterior, and averaged",
        (*_INFERRED, WeightPrior, SiteFactors, ADMM),
    ),
    Method(
        "fl_swag",
        "one round of SWAG posteriors and their product; clients join and leave",
        (Batches, Local, Momentum, Swag),
        requires=_only(POINT),
        defaults={"kind": "deterministic", "rounds": 1, "local_epochs": 20, "learning_rate": 0.05},
    ),
    Method(
        "head",
        "the exact head on frozen features, in closed form or by softmax, from sums of the clients",
        (HeadFit, PrivateExamples),
        requires=_only(POINT, CLASSES),
        defaults={"kind": "deterministic", "rounds": 2},
        steps=lambda config, num_examples: 1,
    ),
    _of_averaging("fed_opt", "federated averaging (FedAvg); with a server_optimizer FedOpt", _AVERAGED),
    _of_averaging(
        "fed_prox",
        "FedAvg with clients held near the server's weights",
        (*_AVERAGING, WeightPrior, *_PRIVATE, Proximal, *_MESSAGES),
    ),
    _of_averaging(
        "scaffold", "FedAvg with clients that step along the mean gradient of all, by control variates", _AVERAGED
    ),
    _of_averaging(
        "fed_dyn",
        "FedAvg with corrected losses on the clients, until their minima agree",
        (*_AVERAGING, WeightPrior, *_PRIVATE, DynamicLoss, *_MESSAGES),
    ),
    _of_averaging("fed_nova", "FedAvg of displacements normalised by the clients' numbers of steps", _AVERAGED),
    _of_averaging(
        "fed_ag",
        "FedAvg that predicts with draws from the Gaussian of the clients' weights",
        (*_AVERAGING, Weighting),
        requires=_only(POINT),
    ),
    _of_averaging(
        "fed_be",
        "an ensemble drawn from the clients' weights teaches the server's model on unlabelled examples",
        (*_AVERAGING, Distillation),
        requires=_only(POINT, CLASSES),
    ),
    _of_samples(
        "fed_pa",
        "clients sample by averaged SGD and send the step to the mode of their posteriors' product",
        (*_AVERAGING, WeightPrior, *_PRIVATE, BurnIn, Shrinkage, *_MESSAGES),
    ),
    _of_samples(
        "fed_sgld",
        "FedAvg with noise after each round; the rounds are samples",
        (*_AVERAGING, Weighting, BurnIn, RoundSamples, *_OF_POINTS),
        requires=_only(POINT, EVEN),
        gives=_only(SAMPLES),
    ),
    _of_averaging("fed_kp", "each weight's mode of a kernel density over the clients, for their mean", _KERNEL),
    _of_samples("fed_kppa", "the clients of fed_pa with the server of fed_kp", (*_KERNEL, BurnIn, Shrinkage)),
    _of_chains(
        "qlsd",
        "a Langevin chain of the server's, of which clients send compressed gradients",
        (*_CHAIN, Compression, Gradients),
        requires=_only(POINT, EVEN),
        defaults={**_OF_CHAINS, "compressor": "quantiser:256"},
        steps=lambda config, num_examples: 1,
    ),
    _of_chains(
        "dg_sgld",
        "each client runs a separate Langevin chain, coupled to the server's weights",
        (*_CHAIN, LocalChain, Coupling),
        requires=_only(POINT),
        defaults=_OF_CHAINS,
    ),
    _of_chains(
        "fsgld",
        "one client a round runs the chain, with Gaussians in place of the other clients",
        (*_CHAIN, LocalChain, Surrogates),
        requires=_only(POINT, EVEN, "one client"),
        defaults={**_OF_CHAINS, "local_steps": 16, "cohort_size": 1},
    ),
    Method(
        "meta_learning",
        "weights from which a step on a client's data leads far: MAML, PerFedAvg, Reptile",
        (*_META, WeightPrior, Weighting, *_MESSAGES),
        gives=_only(ADAPTED),
        defaults={"kind": "deterministic", "learner": "maml", "rule": "naive_weighted_average"},
        rate=made.rate_of_learner,
        steps=made.steps_of_learner,
    ),
    Method(
        "meta_vd",
        "each client has personal dropout from a hypernetwork on the server",
        (*_META, *_PRIVATE, OwnVariances, *_OF_POINTS),
        requires=_only("kind variational_dropout", CLASSES),
        gives=_only(ADAPTED, PERSONAL),
        defaults={"kind": "variational_dropout", "rule": "log_linear_pool"},
        of_recipe=("initial_stddev", "parametrization"),
        rate=made.rate_of_learner,
        steps=made.steps_of_learner,
    ),
    Method(
        "p_fed_bayes",
        "each client has a personal posterior, held to a common one",
        (*_TRAINING, Adaptation, GlobalOptimizer, Bound, Aggregation, Defence, Weighting),
        requires=_only("variational weights", CLASSES),
        gives=_only(ADAPTED, PERSONAL),
        defaults={
            **{"rule": "naive_weighted_average", "learning_rate": 1e-3, "kl_weight": 10.0, "initial_stddev": 0.05},
        },
    ),
)
ALGORITHMS = {method.recipe: method for method in _METHODS}
# Posteriors at the weights of a complete run, the option `start`: they train nothing.
_of_start = functools.partial(Method, requires=_only(POINT, START))
POSTERIORS = {
    "laplace": _of_start(
        "laplace", "a posterior at the weights of a run (--start), by one more round", (AtWeights, Precision)
    ),
    "last_layer": _of_start(
        "last_layer",
        "the exact posterior of the last layer of a run (--start), from sums of its clients",
        (AtWeights, LinearLayer),
    ),
    "head": _of_start("head", "an exact head on the features of a run (--start), from sums of its clients", (HeadFit,)),
}


def argument_names(method: Method) -> dict[str, str]:
    """Return the options that are an argument of the recipe each, and its name."""
    places = {name: extra(field, "argument") for name, field in method.options.items()}
    return {name: place or name for name, place in places.items() if place is not None}


def arguments(config: Any, unlabelled: Callable[[], Any]) -> dict[str, Any]:
    """Return the arguments of the recipe besides the model; for options that are None it has defaults of its own.

    `unlabelled` gives the server's examples without labels.
    """
    method, given = method_of(config.algorithm), dict[str, Any]()
    for name, argument in argument_names(method).items():
        group, _, last = argument.rpartition(".")
        own = given.setdefault(group, {}) if group else given
        own |= {} if getattr(config, name) is None else {last: getattr(config, name)}
    for kind in method.groups:
        given = of_config(kind, config).arguments(config, given, unlabelled)
    return given


def fitted(config: Any, model_fn: Any, clients: Callable[[], Any], likelihood: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the recipe that are fitted to the clients' data, as `Group.fitted`."""
    found: dict[str, Any] = {}
    for kind in method_of(config.algorithm).groups:
        found |= of_config(kind, config).fitted(config, model_fn, clients, likelihood)
    return found


@functools.cache
def fields() -> dict[str, FieldInfo]:
    """Return the options of all algorithms by name; an option of several is declared once, and is the same in all."""
    found: dict[str, FieldInfo] = {}
    for method in (*_METHODS, OWN):
        found = {**method.options, **found}
    options_of(tuple(dict.fromkeys(kind for method in (*_METHODS, OWN) for kind in method.groups)))
    return found


def takers(name: str) -> tuple[str, ...]:
    """Return the algorithms that an option is of; none for one that says something to all."""
    found = tuple(recipe for recipe, method in ALGORITHMS.items() if name in method.options)
    return () if len(found) == len(ALGORITHMS) else found


def serves(name: str, algorithm: str) -> bool:
    """Return whether an algorithm has an option."""
    return not takers(name) or name in method_of(algorithm).options


def implied(values: Mapping[str, Any]) -> str:
    """Return the algorithm of options that name none: `default`, or `variational` where it alone of the two has one."""
    is_given = lambda name: name in fields() and values[name] not in (x := fields()[name].default, str(x), None)
    of_variational = lambda name: serves(name, "variational") and not serves(name, "default") and is_given(name)
    is_asked = values.get("kind") == "variational_dropout" or any(of_variational(name) for name in values)
    return "variational" if is_asked else "default"


def in_words(algorithms: Iterable[str]) -> str:
    """Return algorithms in words, such as "variational and fl_swag"; all of the family fed_* by that name."""
    algorithms = tuple(algorithms)
    others = [name for name in ALGORITHMS if name not in algorithms]
    if 0 < len(others) < 5 and len(algorithms) > 4:
        return f"all but {in_words(others)}"
    family = {name for name in ALGORITHMS if name.startswith("fed_")}
    if family <= set(algorithms):
        algorithms = (*(name for name in algorithms if name not in family), "fed_*")
    *most, last = algorithms
    return f"{', '.join(most)} and {last}" if most else last


def default_in_words(name: str, default: object) -> str:
    """Return the default of an option's field, and those of the algorithms that have another; "" for none."""
    others: dict[str, list[str]] = {}
    for algorithm in takers(name) or ALGORITHMS:
        value = ALGORITHMS[algorithm].defaults.get(name, default)
        others.setdefault("" if value is None else str(value), []).append(algorithm)
    if len(others) == 1:
        return next(iter(others))
    others.pop("" if default is None else str(default), None)
    return "; ".join(
        [
            *([] if default is None else [str(default)]),
            *(f"{value} for {in_words(have)}" for value, have in others.items()),
        ]
    )


# What papers and other libraries call them.
ALIASES = {"fedavg": "fed_opt", "pvi": "partitioned_vi"}


def canonical(algorithm: str) -> str:
    """Return the name here of an algorithm that others write otherwise, such as FedAvg, "fedProx" or "fl-swag"."""
    plain = lambda name: name.lower().replace("_", "").replace("-", "")
    known = {**{plain(name): name for name in ALGORITHMS}, **ALIASES}
    if algorithm in ALGORITHMS or names_code(algorithm):
        return algorithm
    return known.get(plain(algorithm), algorithm)


def method_of(algorithm: str) -> Method:
    """Return an algorithm by its name; of FILE.py:FUNCTION `OWN`."""
    return OWN if names_code(algorithm) else lookup(ALGORITHMS, algorithm, "algorithm")
