"""The rules in float64 numpy, straight from the equations: stacks m, v [K, D], weights w [K], anchor (m0, v0) [D]; of a
rule with a parameter the number last."""

import numpy as np

from tfp_bfl.posterior import MeanField


def _normalise(w):
    return (w / w.sum())[:, None]


def naive_weighted_average(m, v, w, m0, v0):
    b = _normalise(w)
    return (b * m).sum(0), (b * v).sum(0)


def weighted_sum(m, v, w, m0, v0):
    b = _normalise(w)
    return (b * m).sum(0), (b**2 * v).sum(0)


def linear_pool(m, v, w, m0, v0):
    b = _normalise(w)
    mean = (b * m).sum(0)
    return mean, (b * (v + m**2)).sum(0) - mean**2


def conflation(m, v, w, m0, v0):
    variance = 1 / (1 / v).sum(0)
    return variance * (m / v).sum(0), variance


def weighted_conflation(m, v, w, m0, v0):
    w = w[:, None]
    return (w * m / v).sum(0) / (w / v).sum(0), w.max() / (w / v).sum(0)


def log_linear_pool(m, v, w, m0, v0):
    b = _normalise(w)
    variance = 1 / (b / v).sum(0)
    return variance * (b * m / v).sum(0), variance


def mean_precision_average(m, v, w, m0, v0):
    b = _normalise(w)
    return (b * m).sum(0), 1 / (b / v).sum(0)


def distributed_weight_consolidation(m, v, w, m0, v0):
    precision = (1 / v).sum(0) - (len(m) - 1) / v0
    sound = precision > 0
    variance = 1 / np.where(sound, precision, 1)
    mean = variance * ((m / v).sum(0) - (len(m) - 1) * m0 / v0)
    return np.where(sound, mean, m0), np.where(sound, variance, v0)


REFERENCE = {
    function.__name__: function
    for function in (
        naive_weighted_average,
        weighted_sum,
        linear_pool,
        conflation,
        weighted_conflation,
        distributed_weight_consolidation,
        log_linear_pool,
        mean_precision_average,
    )
}


def random_case(num_clients, size=50, centre=0.0, spread=1.0, stddev=0.5, seed=0, dtype=np.float64):
    """(stack, weights, anchor): means within a few `spread` of `centre`, the clients surer than the anchor."""
    rng = np.random.default_rng(seed)
    mean = centre + spread * rng.normal(size=(num_clients, size))
    variance = (stddev * rng.uniform(0.5, 1.5, (num_clients, size))) ** 2
    weights = rng.uniform(1, 100, num_clients)
    anchor = MeanField(centre + spread * rng.normal(size=size), (stddev * rng.uniform(1.6, 2.0, size)) ** 2)
    cast = lambda q: MeanField(*(x.astype(dtype) for x in q))
    return cast(MeanField(mean, variance)), weights.astype(dtype), cast(anchor)


def expected(name, stacked, weights, anchor):
    """Return the reference's mean and variance, in float64 whatever the type of the arguments."""
    plain, _, number = name.partition(":")
    given = (np.asarray(x, np.float64) for x in (*stacked, weights, *anchor))
    return REFERENCE[plain](*given, *([float(number)] if number else []))
