"""The algorithms as the contract suite takes them: each beside the parts of which its round can be computed by hand."""

import functools
import math

import numpy as np
import tensorflow as tf

from tests import kit
from tests.rules.forms import CONTRACT
from tfp_bfl import algorithms, clients, models, posterior, rules
from tfp_bfl.algorithms.averaging.step import distil
from tfp_bfl.algorithms.averaging.work import posterior_averaging
from tfp_bfl.algorithms.factors.step import Dual
from tfp_bfl.algorithms.factors.work import factors
from tfp_bfl.algorithms.heads.posterior import HEADS
from tfp_bfl.algorithms.kernel import KernelModes, kernel_mode
from tfp_bfl.algorithms.swag.work import swag, swag_weights
from tfp_bfl.posterior import MeanField
from tfp_bfl.privacy import Privacy
from tfp_bfl.servers.pooled import SpreadState
from tfp_bfl.training import ExamplePrivacy
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights import prior as prior_weights

from .chain_methods import BY_CLIENT, dg_sgld, fsgld, qlsd
from .drift_methods import DRIFT
from .head_method import head
from .laplace_method import fed_lap, laplace, last_layer
from .method import ALIKE, SEED, SIZES, SOURCE, Method, fold, half_way, mlp, of_points, result_of, unflat
from .personal_methods import meta_learning, meta_vd, p_fed_bayes, shares_of

assert_same = functools.partial(kit.assert_same, rtol=1e-05, atol=1e-06)

BATCHES = {"batch_size": 8, "local_epochs": 2, "learning_rate": 0.02}
# The papers' local work, which need not know how large the federation is.
BY_BACKPROP = {"inference": "backprop", "temperature": 1.0, "optimizer_fn": "adam"}
ADAM = {**BATCHES, **BY_BACKPROP, "kl": "client"}
CURVATURE = {**BATCHES, "inference": "curvature", "temperature": 0.1, "optimizer_fn": "adam"}
FAST = {**BATCHES, "learning_rate": 0.1}  # Enough for momentum to learn in ten rounds.
SGD = {"local_epochs": 10, "burn_in_epochs": 6, "max_columns": 5, "batch_size": 8, "learning_rate": 0.1}

SPREAD = {"stddev_q05", "stddev_median", "stddev_q95", "stddev_log_ratio", "share_at_floor"}
NUM_VARIATIONAL = 30 * 3 + 3 * 2
METRICS = {"nll", "kl", "tempered_elbo", "num_clients", "num_faulty", "num_examples", "clients"} | SPREAD


def normalized():
    """A network with BatchNorm, whose statistics are not those of a new one."""
    glorot = lambda seed: tf.keras.initializers.GlorotNormal(seed=seed)
    constant = tf.keras.initializers.Constant
    statistics = {"moving_mean_initializer": constant(1.0), "moving_variance_initializer": constant(4.0)}
    inputs = tf.keras.Input((30,))
    x = tf.keras.layers.Dense(6, "tanh", kernel_initializer=glorot(1))(inputs)
    x = tf.keras.layers.BatchNormalization(momentum=0.8, **statistics)(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(2, kernel_initializer=glorot(2))(x), name="normalized")


@functools.cache
def variational_work(kind, **options):
    """The same of all rules, so that what it gives is computed once."""
    return clients.variational(mlp(kind), **(options or ADAM))


def variational_result(kind, client):
    return result_of(variational_work(kind), mlp(kind), client)


def variational(rule, kind, **options):
    whole = rules.whole_model(rules.parse_rule(rule))

    def pool(results, anchor):
        parts = [whole.summarise(r.weights, anchor, tf.cast(r.num_examples, tf.float32)) for r in results]
        return (), whole.pool(functools.reduce(whole.merge, parts), anchor).weights

    kept = {"kept_weights": NUM_VARIATIONAL if kind == "flipout" else 0}
    return Method(
        mlp(kind),
        lambda: algorithms.variational(mlp(kind), rules.parse_rule(rule), seed=SEED, **(options or ADAM)),
        variational_work(kind, **options),
        pool,
        lambda result, anchor: result.weights,
        metrics=kept if rule == "distributed_weight_consolidation" else {},
    )


def of_no_rule():
    """The recipe's own rule, client step and temperature."""
    given = variational(algorithms.fixed_points.DEFAULT_RULE, "flipout", **FAST)
    return given._replace(build=lambda: algorithms.variational(mlp("flipout"), seed=SEED, **FAST))


def coarse():
    given = variational("mean_precision_average", "flipout", **CURVATURE)
    options = {"seed": SEED, "variance_bits": 8, **CURVATURE}
    most = 3 * (32 * (NUM_VARIATIONAL + 5) + 8 * NUM_VARIATIONAL + 32 * 2)
    return given._replace(
        build=lambda: algorithms.variational(mlp("flipout"), "mean_precision_average", **options),
        work=clients.coarse_variances(variational_work("flipout", **CURVATURE), "precision"),
        metrics={**dict.fromkeys(("upload_bits", "upload_bound"), most), "download_bits": 2 * most},
    )


def of_no_rule_half_way():
    return half_way(
        of_no_rule()._replace(rounds=40), functools.partial(algorithms.variational, mlp("flipout"), seed=SEED, **FAST)
    )


def compressed(**options):
    given, options = variational("log_linear_pool", "flipout", **CURVATURE), {"compressor": "quantiser:16", **options}
    most = 3 * 32 * (2 * NUM_VARIATIONAL + 10)
    return given._replace(
        build=lambda: algorithms.variational(mlp("flipout"), "log_linear_pool", seed=SEED, **options, **CURVATURE),
        work=clients.compressed(variational_work("flipout", **CURVATURE), **options),
        metrics=dict.fromkeys(("upload_bits", "upload_bound", "download_bits"), most),
    )


def secure_sums():
    given, most = variational("log_linear_pool", "flipout", **CURVATURE), float(max(SIZES))
    build = lambda: algorithms.variational(mlp("flipout"), "log_linear_pool", seed=SEED, secure_sums=most, **CURVATURE)
    return given._replace(build=build, metrics={"clipped_numbers": 0})


def private_examples():
    return variational("log_linear_pool", "flipout", **ADAM, example_privacy=ExamplePrivacy(1.0, 0.5))


def private():
    """Without noise and clipping it is the rule with equal weights."""
    given = variational("log_linear_pool", "flipout", **CURVATURE)
    whole, hidden = rules.whole_model("log_linear_pool"), Privacy(1e6, 0.0, len(SIZES))

    def of_weights(every, anchor):
        parts = [whole.summarise(weights, anchor, tf.ones([])) for weights in every]
        return whole.pool(functools.reduce(whole.merge, parts), anchor).weights

    build = lambda: algorithms.variational(
        mlp("flipout"), "log_linear_pool", "equal", seed=SEED, privacy=hidden, **CURVATURE
    )
    return given._replace(
        build=build,
        work=variational_work("flipout", weighting="equal", **CURVATURE),
        weigh=lambda sizes: np.ones_like(sizes),
        pool=lambda results, anchor: ((), of_weights([r.weights for r in results], anchor)),
        # As if the others had come and learnt nothing.
        alone=lambda result, anchor: of_weights([result.weights, anchor, anchor], anchor),
        metrics={"clipped_clients": len(SIZES)},
    )


def partitioned_vi():
    """Each client sends q with its new site in the place of its old one; the server multiplies the changes."""
    model_fn, given = mlp("flipout"), variational("distributed_weight_consolidation", "flipout")
    return given._replace(
        build=lambda: algorithms.partitioned_vi(model_fn, damping=0.3, seed=SEED, **CURVATURE),
        work=factors(model_fn, damping=0.3, **CURVATURE),
        rounds=40,
        metrics={**given.metrics, "weights_at_floor": 0},
    )


def bayesian_admm():
    model_fn, numbers = mlp("flipout"), {"step_size": 0.5, "damping": 0.3}
    prior = prior_weights(model_fn())

    def naturals(q):
        """(precision, shift) of each weight tensor, in float64."""
        return [(1 / np.float64(v), np.float64(m) / np.float64(v)) for m, v in zip(*q)]

    def pool(results, anchor):
        share = 1 / (1 + len(SIZES) * numbers["step_size"])
        own = naturals(anchor.posterior)
        found = [naturals(r.weights.posterior) for r in results]
        gains = [[sum(q[i][j] - own[i][j] for q in found) for j in range(2)] for i in range(len(own))]
        # Of prior prod_k t_k, from the rows themselves: those of the absent are shares of the start.
        starts = [[n[j] - p[j] for j in range(2)] for n, p in zip(own, naturals(prior))]
        absent = 1 - sum(int(r.num_examples) for r in results) / sum(SIZES)
        rows = [unflat(sum(r.memory[j].numpy() for r in results), prior.mean) for j in range(2)]
        product = [[p[j] + rows[j][i] + absent * starts[i][j] for j in range(2)] for i, p in enumerate(naturals(prior))]
        new = [
            [(1 - share) * (own[i][j] + gains[i][j] / len(SIZES)) + share * product[i][j] for j in range(2)]
            for i in range(len(own))
        ]
        cast = lambda leaves: tuple(np.float32(x) for x in leaves)
        q = MeanField(cast(shift / precision for precision, shift in new), cast(1 / precision for precision, _ in new))
        state = Dual(*(cast(t[j] for t in product) for j in range(2)), np.int32(len(SIZES)), np.int32(len(results)))
        points = [np.mean(np.stack(x), 0) for x in zip(*(r.weights.point for r in results))]
        return state, ModelWeights(q, cast(points), anchor.moments)

    return Method(
        model_fn,
        lambda: algorithms.bayesian_admm(model_fn, seed=SEED, **numbers, **CURVATURE),
        factors(model_fn, send_site=False, **numbers, **CURVATURE),
        pool,
        weigh=np.ones_like,
        metrics={"weights_at_floor": 0},
    )


def fl_swag(model_fn, last_layer=False):
    num_weights = len(swag_weights(model_fn(), last_layer))

    def alone(result, anchor):
        below = anchor.point[: len(anchor.point) - num_weights]
        wide = posterior.as_low_rank(posterior.marginals(result.weights.posterior))
        return ModelWeights(wide, below, anchor.moments if last_layer else result.weights.moments)

    return Method(
        model_fn,
        lambda: algorithms.fl_swag(model_fn, last_layer=last_layer, seed=SEED, min_examples=9, **SGD),
        swag(model_fn, last_layer=last_layer, curvature=True, **SGD),
        lambda results, anchor: (stacked(results), anchor),
        alone,
        np.ones_like,
        data=ALIKE,
        rounds=1,
    )


POINT = "deterministic"
PULLED = {"local_epochs": 4, "batch_size": 8, "learning_rate": 0.1, "shrinkage": 0.1}
HEAT = 1e-6
ENSEMBLE = {"num_models": 3, "learning_rate": 0.1}


def stacked(results):
    return tf.nest.map_structure(lambda *x: tf.stack(x), *(r.weights for r in results))


def mean_of(results, over=lambda weights: weights.point):
    """The mean by data size, leaf by leaf, in float64."""
    return [np.tensordot(shares_of(results), np.stack(x), 1) for x in zip(*(over(r.weights) for r in results))]


@functools.cache
def pulled_work():
    return posterior_averaging(mlp(POINT), **PULLED)


def third_family(build, pool, alone=lambda result, anchor: result.weights, work=None, rounds=20, **metrics):
    """A recipe whose clients are, unless others are given, those of the variational recipes.

    Args:
      build: (options of the clients and the process) -> the process.
    """
    options = {**(ADAM if work is None else PULLED), "seed": SEED}
    work = work or variational_work(POINT)
    return Method(mlp(POINT), lambda: build(**options), work, pool, alone, rounds=rounds, metrics=metrics)


def fed_opt_sgd():
    given = third_family(functools.partial(algorithms.fed_opt, mlp(POINT)), fed_pa().pool)
    return half_way(given, functools.partial(algorithms.fed_opt, mlp(POINT), seed=SEED, **ADAM))


def fed_ag():
    def pool(results, anchor):
        mean = mean_of(results)
        squares = [
            np.tensordot(shares_of(results), np.square(np.stack(x) - m), 1)
            for m, *x in zip(mean, *(r.weights.point for r in results))
        ]
        return SpreadState((), tuple(np.float32(x) for x in squares)), of_points(mean, anchor)

    def alone(result, anchor):
        point = result.weights.point
        return result.weights._replace(posterior=MeanField(point, tuple(map(tf.zeros_like, point))), point=())

    return third_family(functools.partial(algorithms.fed_ag, mlp(POINT)), pool, alone)


def fed_pa():
    pool = lambda results, anchor: ((), of_points(mean_of(results), anchor))
    return third_family(functools.partial(algorithms.fed_pa, mlp(POINT)), pool, work=pulled_work())


def fed_sgld():
    """The noise of the first round."""
    seeds = tf.random.experimental.stateless_split(fold(0, -2), 5)
    noise = lambda point: [
        np.float64(w) + math.sqrt(2 * HEAT) * tf.random.stateless_normal(np.shape(w), seeds[i + 1]).numpy()
        for i, w in enumerate(point)
    ]

    def pool(results, anchor):
        return (), of_points(noise(mean_of(results)), anchor)

    alone = lambda result, anchor: of_points(noise(result.weights.point), anchor)
    build = functools.partial(algorithms.fed_sgld, mlp(POINT), step_size=HEAT, max_samples=3)
    return third_family(build, pool, alone)


def fed_be():
    """Distilled outside TFF from the stack of the clients."""
    features = SOURCE.features[45:85]
    step = distil(mlp(POINT), features, **ENSEMBLE)
    pool = lambda results, anchor: step.next((), anchor, stacked(results), fold(0, -2))
    build = functools.partial(algorithms.fed_be, mlp(POINT), features, ensemble=ENSEMBLE)
    return third_family(build, pool, None)


def fed_kp(start):
    def pool(results, anchor):
        modes = [
            tf.reshape(kernel_mode(np.stack([np.ravel(v) for v in x]), start), x[0].shape)
            for x in zip(*(r.weights.point for r in results))
        ]
        return (), of_points(modes, anchor)

    counts = dict.fromkeys(KernelModes._fields[1:], 30 * 3 + 3 + 3 * 2 + 2)
    return third_family(functools.partial(algorithms.fed_kp, mlp(POINT), start=start), pool, **counts)


# Without variational weights every rule is the same mean of points (tests/rules/test_whole_model.py), and with those of
# another layer it is the same rule of Gaussians.
OTHER_KINDS = [kind for kind in models.KINDS if kind != "flipout"]
OTHERS = [*(("naive_weighted_average", kind) for kind in OTHER_KINDS), ("distributed_weight_consolidation", POINT)]
METHODS = {
    **{
        f"{rule}, {kind}": functools.partial(variational, rule, kind)
        for rule, kind in [*((rule, "flipout") for rule in CONTRACT), *OTHERS]
    },
    "variational by default, flipout": of_no_rule,
    "variational under a server optimizer, flipout": of_no_rule_half_way,
    "curvature, flipout": functools.partial(variational, "log_linear_pool", "flipout", **CURVATURE),
    "compressed, flipout": functools.partial(compressed, per_tensor=True),
    "compressed with error memory, flipout": functools.partial(compressed, error_memory=True),
    "compressed, 8-bit variances, flipout": coarse,
    "secure sums, flipout": secure_sums,
    "private, flipout": private,
    "private examples, flipout": private_examples,
    "partitioned_vi, flipout": partitioned_vi,
    "bayesian_admm, flipout": bayesian_admm,
    "fl_swag, with BatchNorm": lambda: fl_swag(normalized),
    "fl_swag, mc_dropout": lambda: fl_swag(mlp("mc_dropout")),
    "fl_swag, last layer": lambda: fl_swag(normalized, last_layer=True),
    "fed_lap": functools.partial(fed_lap, False),
    "fed_lap, covariance": functools.partial(fed_lap, True),
    "laplace, diagonal": functools.partial(laplace, "diagonal"),
    "laplace, last layer": functools.partial(laplace, "last_layer"),
    "laplace, kronecker": functools.partial(laplace, "kronecker"),
    "last_layer": last_layer,
    "last_layer, kronecker": functools.partial(last_layer, "kronecker"),
    **{f"head, {name}": functools.partial(head, name) for name in HEADS},
    "fed_opt, sgd with momentum": fed_opt_sgd,
    "fed_ag": fed_ag,
    "fed_pa": fed_pa,
    "fed_sgld": fed_sgld,
    "qlsd": qlsd,
    "qlsd, by client": functools.partial(qlsd, **BY_CLIENT),
    "dg_sgld": dg_sgld,
    "fsgld": fsgld,
    "fed_be": fed_be,
    "maml, deterministic": functools.partial(meta_learning, "maml", POINT),
    "per_fed_avg, deterministic": functools.partial(meta_learning, "hessian_free_maml", POINT),
    "meta_vd, flipout": functools.partial(meta_vd, "hypernetwork"),
    "meta_vd, pruned, flipout": functools.partial(meta_vd, "free_variances", 0.8),
    "p_fed_bayes, flipout": p_fed_bayes,
    "fed_kp, mean": functools.partial(fed_kp, "mean"),
    "fed_kp, clients": functools.partial(fed_kp, "clients"),
    **DRIFT,
}
# One of each family and kind of model, where every method would say the same again.
TELLING = [f"naive_weighted_average, {kind}" for kind in models.KINDS]
FAMILIES = ("fl_swag", "fed_", "variational", "curvature", "compressed", "partitioned", "bayesian", "qlsd", "dg_")
FAMILIES += ("fsgld", "head", "last_layer", "ma", "meta", "scaffold", "default")
TELLING += [name for name in METHODS if name.startswith(FAMILIES)]


@functools.cache
def method_of(name):
    return METHODS[name]()
