"""Every composition of client work, rule, weighting, robust aggregator and server step works or is refused.

Checks run before any tracing, so that all cells are asked for; a subset that holds every pair runs a round in plain
TensorFlow.
"""

import functools
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tests.rules.forms import CONTRACT
from tfp_bfl import algorithms, clients, errors, federated, models, posterior, rules, servers, weighting
from tfp_bfl.algorithms.averaging.step import distil
from tfp_bfl.algorithms.averaging.work import posterior_averaging
from tfp_bfl.algorithms.chains.step import langevin
from tfp_bfl.algorithms.kernel import kernel_posterior
from tfp_bfl.algorithms.swag.step import online_product
from tfp_bfl.algorithms.swag.work import swag as swag_work
from tfp_bfl.posterior import MeanField
from tfp_bfl.training import linear_decay
from tfp_bfl.weights import ClientResult, ServerMessage, TrainingMetrics, get_weights, min_stddev, prior

from .method import CLIENTS, SOURCE

KINDS = ("flipout", "deterministic")
MODELS = {kind: functools.partial(models.mlp, kind, hidden=(2,), initial_stddev=0.05) for kind in KINDS}


@functools.cache
def model(kind):
    return MODELS[kind]()


def touched(model_fn):
    """A plain function, as docs/extending.md has it, that sends the server's weights, a little moved."""

    def build():
        def work(message, examples, seed):
            move = lambda x: x + 0.01 * tf.random.stateless_normal(tf.shape(x), seed)
            posterior = message.weights.posterior
            posterior = posterior._replace(mean=tf.nest.map_structure(move, posterior.mean))
            weights = message.weights._replace(posterior=posterior, point=tuple(map(move, message.weights.point)))
            zero = tf.constant(0.0)
            return ClientResult(weights, tf.shape(examples.labels)[0], TrainingMetrics(zero, zero, zero))

        return work

    return build


def middle(stacked, importance, anchor):
    return rules.Pooled(MeanField(*(tf.nest.map_structure(lambda x: tf.reduce_mean(x, 0), part) for part in stacked)))


SMALL = {"local_epochs": 1, "batch_size": 16}
WORKS = {
    "training": lambda kind: clients.variational(MODELS[kind], learning_rate=0.01, **SMALL),
    "averaging": lambda kind: posterior_averaging(MODELS[kind], learning_rate=0.01, **SMALL),
    "swag": lambda kind: swag_work(MODELS[kind], max_columns=3, local_epochs=4, batch_size=16),
    "plain function": lambda kind: touched(MODELS[kind]),
}
RULES = {
    **{name: lambda name=name: name for name in CONTRACT},
    "kernel": lambda: kernel_posterior("clients"),
    "of the stack": lambda: rules.GatherRule(middle, "middle"),
    "lifted": lambda: rules.whole_model("linear_pool"),
    "client_gaussian": rules.client_gaussian,
    "stacked": rules.stacked,
}
DEFENCES = (None, "clip:0.5", "trimmed:0.34", "median")
STEPS = {
    "replace": servers.replace,
    "optimize": lambda: servers.optimize(servers.server_optimizer("yogi")),
    "langevin": lambda: langevin(servers.replace(), 1e-6),
    "keep_gaussian": servers.keep_gaussian,
    "distil": lambda: distil(functools.partial(model, "deterministic"), SOURCE.features[:9], num_models=1),
    "online_product": lambda: online_product(4, 3),
}
CELLS = list(itertools.product(WORKS, KINDS, RULES, weighting.ALL_WEIGHTINGS, DEFENCES, STEPS))
OF_POINTS = ("langevin", "keep_gaussian", "distil", "online_product")


def fits(work, kind, rule, weights, defence, step):
    """What should work, by a line each."""
    if kind == "flipout" and (work == "swag" or step in OF_POINTS):
        return False
    if weights in weighting.COMPARE_POSTERIORS and kind != "flipout":
        return False
    if weights in weighting.STACKED_WEIGHTINGS and defence in ("trimmed:0.34", "median"):
        return False
    if work == "swag":
        return (rule, defence, step) == ("stacked", None, "online_product")
    if rule == "client_gaussian":
        return step == "keep_gaussian" and defence != "median"
    if rule == "stacked":
        return step == "distil" and defence in (None, "clip:0.5")
    return step in ("replace", "optimize", "langevin")


built = functools.cache(lambda table, name, *given: table_of[table][name](*given))
table_of = {"work": WORKS, "rule": RULES, "step": STEPS}


@pytest.fixture
def parts(monkeypatch):
    """What `compose` gives to the process, in its place."""
    monkeypatch.setattr(federated, "build_process", lambda model_fn, **given: given)


def composed(work, kind, rule, weights, defence, step):
    given = algorithms.compose(
        functools.partial(model, kind),
        built("work", work, kind),
        built("rule", rule),
        built("step", step),
        weighting=weights,
        robust=defence,
    )
    if kind == "flipout" and work == "swag":  # as the first thing that a process does
        given["client_work"]()
    given["server_step"].initialize(get_weights(model(kind)))
    return given


def refusal(make):
    """The error's one sentence; None if there is none."""
    try:
        given = make()
    except errors.InvalidArgument as error:
        text = str(error)
        assert "\n" not in text and text[-1] in ".?" and "object at 0x" not in text and len(text) < 500
        return text
    assert type(given["rule"]) is rules.ModelRule
    return None


@pytest.mark.cpu_seconds(30)
def test_every_cell_works_or_says_why_not(parts):
    wrong = [cell for cell in CELLS if (refusal(lambda cell=cell: composed(*cell)) is None) != fits(*cell)]
    assert not wrong, wrong[:5]


def covering(cells):
    """Of the cells as many as hold every pair of two parts that any holds, greedily."""
    pairs = lambda cell: set(itertools.combinations(enumerate(cell), 2))
    missing, chosen = set().union(*map(pairs, cells)), []
    while missing:
        best = max(cells, key=lambda cell: len(pairs(cell) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


# A rule of each form of statistics; the others differ from these by their equations alone.
TOLD = (
    "conflation",
    "distributed_weight_consolidation",
    "kernel",
    "of the stack",
    "lifted",
    "client_gaussian",
    "stacked",
)
RUN = covering([cell for cell in CELLS if fits(*cell) and cell[2] in TOLD])


@functools.cache
def results(work, kind):
    run = built("work", work, kind)()
    message = ServerMessage(get_weights(model(kind)), tf.constant(0))
    examples = [tf.nest.map_structure(tf.constant, CLIENTS.examples(k)) for k in range(3)]
    return [run(message, e, tf.constant([3, k])) for k, e in enumerate(examples)]


@pytest.mark.parametrize("cell", RUN, ids=lambda cell: ", ".join(map(str, cell)))
def test_a_round(cell, parts):
    given, anchor = composed(*cell), get_weights(model(cell[1]))
    rule, step = given["rule"], given["server_step"]
    sent = results(*cell[:2])
    importance = [given["weigh"](r.weights.posterior, anchor.posterior, r.num_examples) for r in sent]
    each = [rule.summarise(r.weights, anchor, w) for r, w in zip(sent, importance)]
    pooled, metrics = rule.pool(functools.reduce(rule.merge, each), anchor)
    pooled = pooled._replace(posterior=posterior.floor_variance(pooled.posterior, 1e-3))
    state, weights = step.next(step.initialize(anchor), anchor, pooled, tf.constant([1, 2]))
    predictive = step.predictive(*tf.nest.map_structure(np.asarray, (state, weights)))
    for x in tf.nest.flatten((state, weights, predictive, metrics)):
        assert np.all(np.isfinite(x))
    assert all(np.all(v > 0) for v in posterior.positive_leaves(weights.posterior))
    moved = zip(tf.nest.flatten((weights, predictive.posterior)), tf.nest.flatten((anchor, anchor.point)))
    assert any(np.shape(a) != np.shape(b) or np.any(np.asarray(a) != b) for a, b in moved)


RECIPES = {
    "variational": {"rule": "linear_pool"},
    "fed_be": {"features": SOURCE.features[:9]},
    **{f"fed_{name}": {} for name in ("opt", "prox", "ag", "pa", "kp", "kppa", "sgld")},
    "fl_swag": {},
    "partitioned_vi": {},
    "bayesian_admm": {},
}
KEEP_SITES = ("partitioned_vi", "bayesian_admm")
NO_POSTERIORS = ("fed_ag", "fed_be", "fed_sgld", "fl_swag")


def recipe_fits(name, kind, weights, defence):
    if kind == "flipout" and name in NO_POSTERIORS:
        return False
    if name in ("fl_swag", "bayesian_admm"):
        return False  # which have neither option
    if name == "partitioned_vi":
        return kind == "flipout" and defence is None and fits("training", kind, "linear_pool", weights, None, "replace")
    step = {"fed_ag": "keep_gaussian", "fed_be": "distil"}.get(name, "replace")
    rule = {"fed_ag": "client_gaussian", "fed_be": "stacked"}.get(name, "linear_pool")
    return fits("training", kind, rule, weights, defence, step)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_with_every_weighting_and_defence(name, parts):
    for kind, weights, defence in itertools.product(KINDS, weighting.ALL_WEIGHTINGS, DEFENCES):

        def make(kind=kind, weights=weights, defence=defence):
            model_fn = functools.partial(model, kind)
            options = {"weighting": weights, **({"robust": defence} if defence else {}), **RECIPES[name]}
            given = getattr(algorithms, name)(model_fn, **options)
            given["server_step"].initialize(get_weights(model(kind)))
            return given

        assert (refusal(make) is None) == recipe_fits(name, kind, weights, defence), (kind, weights, defence)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    ("option", "meant"), [("lr", "learning_rate"), ("local_epoch", "local_epochs"), ("sed", "seed")]
)
def test_an_option_that_there_is_not(name, option, meant, parts):
    text = refusal(lambda: getattr(algorithms, name)(MODELS["deterministic"], **RECIPES[name], **{option: 1}))
    assert text.startswith(f"There is no option of {name} {option!r}: did you mean {meant!r}")


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("qlsd", {"step_size": 1e-4}, "a step of the chain, and step_size is its size: leave"),
        *((name, {}, "would part it from them; damping") for name in (*KEEP_SITES, "fed_lap")),
        *((name, {}, "its one round gives the posterior itself") for name in ("fl_swag", "laplace", "last_layer")),
        ("variational", {"rule": "conflation"}, "elsewhere .* the rule 'conflation' pools the result: leave"),
        ("variational", {"update_prior": True}, "elsewhere .* update_prior makes it the next prior: leave"),
    ],
)
def test_a_server_optimizer_is_refused_with_the_reason(name, options, reason, parts):
    steps = {"server_optimizer": servers.server_optimizer("adam")}
    assert re.search(reason, refusal(lambda: getattr(algorithms, name)(MODELS["flipout"], **options, **steps)))


@pytest.mark.parametrize("name", RECIPES)
def test_a_model_in_the_place_of_its_function(name, parts):
    """It is built anew, with the weights that the model had."""
    given = {}
    original = MODELS["flipout" if name in KEEP_SITES else "deterministic"](seed=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federated, "build_process", lambda model_fn, **rest: given.update(model_fn=model_fn, **rest))
        getattr(algorithms, name)(original, **RECIPES[name])
    wanted = [np.array(w) for w in original.get_weights()]
    original.set_weights([0 * w for w in wanted])
    clone = given["model_fn"]()
    assert clone is not original
    assert_same(clone.get_weights(), wanted)
    if name != "fl_swag":
        given["client_work"]()


def test_a_flipout_model_is_cloned_with_all_that_its_layers_have():
    original = models.mlp("flipout", hidden=(3,), prior_stddev=2.0, initial_stddev=0.3, min_stddev=0.2, seed=4)
    clone = models.as_model_fn(original)()
    for f in (get_weights, prior):
        assert_same(*(f(x) for x in (clone, original)))
    assert min_stddev(clone) == min_stddev(original)


class Own(tf.keras.Model):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "model_fn is None, but must be a function that builds a Keras model, or such a model"),
        ("lenet", "model_fn is 'lenet'"),
        (Own(name="own"), "Keras can't clone the model 'own': give a function that builds it, such as lambda: Own"),
    ],
)
def test_no_model(wrong, message):
    refuses(message, algorithms.fed_opt, wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client_work": touched}, "client_work must be a function without arguments .*, but touched needs 'model_fn'"),
        ({"client_work": 3}, "client_work must be a function, as .* gives, not 3"),
        ({"rule": None}, "rule must be a Rule"),
        ({"server_step": None}, "server_step must be a ServerStep"),
        ({"server_step": servers.keep_gaussian()}, r"takes gaussian, which rules\.client_gaussian\(\) gives, but"),
        ({"server_step": servers.replace}, "server_step must be a ServerStep"),
        ({"rule": rules.conflation}, "with its brackets, not 'conflation'"),
        ({"rule": "conflagration"}, "no rule 'conflagration': did you mean 'conflation'"),
        ({"robust": "trimed"}, "no robust aggregator 'trimed'"),
        ({"robust": 0.2}, "no robust aggregator '0.2'"),
        ({"weighting": None}, "no weighting None"),
        ({"sead": 1}, "no option of compose 'sead': did you mean 'seed'"),
        ({"rule": rules.stacked()._replace(takes="bits")}, "send a weights, but the rule 'stacked' takes bits"),
    ],
)
def test_parts_that_are_none(change, message, parts):
    given = {"rule": "conflation", "server_step": servers.replace(), "client_work": touched(MODELS["flipout"])}
    refuses(message, algorithms.compose, MODELS["flipout"], **{**given, **change})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: langevin(servers.replace, 0.1), "step must be a ServerStep, such as servers.replace"),
        (lambda: servers.keep_gaussian("sgd"), "step must be a ServerStep"),
        (lambda: servers.keep_gaussian(servers.keep_gaussian()), "must go on from a model's weights"),
        (lambda: distil(MODELS["deterministic"], SOURCE.features[:2], server_step=servers.keep_gaussian()),
         "server_step must go on from a model's weights"),
    ],
)  # fmt: skip
def test_steps_of_steps(make, message):
    refuses(message, make)


def test_steps_say_their_rates():
    half = servers.optimize(servers.server_optimizer("sgd", 0.5))
    names = {
        "replace": servers.replace(),
        "optimize (sgd, learning rate 0.5)": half,
        "langevin (step size 1e-06)": langevin(servers.replace(), 1e-6),
        "langevin (step size 0.1) after optimize (sgd, learning rate 0.5)": langevin(half, 0.1),
        "keep_gaussian": servers.keep_gaussian(),
        "optimize (sgd, learning rate 0.5, schedule linear)": servers.optimize(
            servers.server_optimizer("sgd", linear_decay(0.5, 9))
        ),
    }
    assert [step.name for step in names.values()] == list(names)
