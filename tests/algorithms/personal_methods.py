"""Meta-learning and personal variances, as the contract suite takes them."""

import numpy as np
import tensorflow as tf

from tests.kit import flat
from tfp_bfl import algorithms
from tfp_bfl.algorithms.personal.posterior_work import personal_posterior
from tfp_bfl.algorithms.personal.step import DropoutRates, Learning, PersonalState
from tfp_bfl.algorithms.personal.variances import PERSONAL_VARIANCES, Parameters
from tfp_bfl.algorithms.personal.work import meta_learning as meta_learning_work
from tfp_bfl.algorithms.personal.work import personal
from tfp_bfl.posterior import MeanField

from .chain_methods import sent
from .method import SEED, SIZES, Method, mlp, unflat

LEARN = {"local_epochs": 3, "batch_size": 8, "learning_rate": 0.1, "inner_rate": 0.05}
# So few examples would leave the prior's noise.
NOISY = {**LEARN, "kl_weight": 0.05}
NUM_VARIATIONAL = 30 * 3 + 3 * 2
SHARED, ROWS = Learning(0.4, 0.6, 1e-3), Learning(0.3, 0.3, 1e-3)


def meta_learning(learner, kind):
    """Point weights, averaged by size."""

    def pool(results, anchor):
        shares = shares_of(results)
        point = [np.tensordot(shares, np.stack(x), 1) for x in zip(*(r.weights.point for r in results))]
        return (), anchor._replace(point=tuple(np.float32(x) for x in point))

    return Method(
        mlp(kind),
        lambda: algorithms.meta_learning(mlp(kind), learner=learner, seed=SEED, **LEARN),
        meta_learning_work(mlp(kind), learner=learner, **LEARN),
        pool,
        lambda result, anchor: result.weights,
        rounds=60,
    )


def meta_vd(source, threshold=None):
    """Each client's own variances; means by the precisions that the clients found."""
    model_fn, make = mlp("flipout"), PERSONAL_VARIANCES[source]
    options = {"hidden": (4,), "middle": -6.0} if source == "hypernetwork" else {"middle": -6.0}
    variances = make(len(SIZES), **options)
    given = variances.initialize(NUM_VARIATIONAL, SEED)

    def pool(results, anchor):
        shares = shares_of(results)
        precisions = [b / np.float64(flat(r.weights.posterior.variance)) for b, r in zip(shares, results)]
        means = np.stack([np.float64(flat(r.weights.posterior.mean)) for r in results])
        start = np.float64(flat(anchor.posterior.mean))
        mean = start + np.sum(precisions * (means - start), 0) / np.sum(precisions, 0)
        averaged = lambda each: [np.tensordot(shares, np.stack(x), 1) for x in zip(*each)]
        shared = averaged([tf.nest.flatten(r.extra.shared) for r in results])
        rows, here = given.rows, [int(np.argmax(r.extra.present)) for r in results]
        momenta = tuple(g + SHARED.decay * x for g, x in zip(shared, given.shared))
        parameters = tuple(x - SHARED.rate * v for x, v in zip(given.shared, momenta))
        rows_momenta = () if isinstance(rows, tuple) else np.zeros_like(rows)
        if not isinstance(rows, tuple):
            rows = rows.copy()
            for k, b, r in zip(here, shares, results):
                rows_momenta[k] = b * r.extra.rows[k].numpy() + ROWS.decay * given.rows[k]
                rows[k] -= ROWS.rate * rows_momenta[k]
        learnt = Parameters(tuple(np.float32(x) for x in parameters), rows)
        state = PersonalState(learnt, Parameters(tuple(np.float32(v) for v in momenta), rows_momenta), {})
        variance = variances.of_client(learnt, len(SIZES), np.float32(mean)).numpy()
        leaves = lambda vector: tuple(np.float32(x) for x in unflat(vector, anchor.posterior.mean))
        point = tuple(np.float32(x) for x in averaged([r.weights.point for r in results]))
        return state, anchor._replace(posterior=MeanField(leaves(mean), leaves(variance)), point=point)

    server = {"shared": SHARED, "rows": ROWS, "capped": False}
    most = len(SIZES) * (65 * NUM_VARIATIONAL + 32 * 5)
    bits = {"upload_bits": most, "download_bits": most, "pruned_weights": len(SIZES) * NUM_VARIATIONAL}
    bits["logit_change"] = 17 * NUM_VARIATIONAL**0.5
    bits |= {name: 17 if name == "logit_stddev" else 1 for name in DropoutRates._fields}
    return Method(
        model_fn,
        lambda: algorithms.meta_vd(
            model_fn,
            num_clients=len(SIZES),
            variances=source,
            threshold=threshold,
            variance_options=options,
            server_options=server,
            seed=SEED,
            **NOISY,
        ),
        sent(personal(meta_learning_work(model_fn, **NOISY), variances, threshold), lambda weights: given),
        pool,
        rounds=20,
        metrics=bits,
    )


def p_fed_bayes():
    """Means and variances of what is sent, averaged by size; what clients keep is their own."""
    model_fn, options = mlp("flipout"), {"local_epochs": 3, "batch_size": 8, "learning_rate": 0.02}

    def pool(results, anchor):
        shares = shares_of(results)
        averaged = lambda each: tuple(np.float32(np.tensordot(shares, np.stack(x), 1)) for x in zip(*each))
        q = MeanField(*(averaged([r.weights.posterior[part] for r in results]) for part in range(2)))
        return (), anchor._replace(posterior=q, point=averaged([r.weights.point for r in results]))

    return Method(
        model_fn,
        lambda: algorithms.p_fed_bayes(model_fn, seed=SEED, **options),
        personal_posterior(model_fn, **options),
        pool,
        lambda result, anchor: result.weights,
        rounds=20,
    )


def shares_of(results):
    sizes = np.array([int(r.num_examples) for r in results], np.float64)
    return sizes / sizes.sum()
