"""The kernel posterior in plain float64 NumPy, one weight after another, straight from its definition."""

import numpy as np


def spread(w):
    """sd with ddof 1, and the interquartile range."""
    low, high = np.percentile(w, [25, 75])
    return (w.std(ddof=1) if len(w) > 1 else 0.0), high - low


def silverman(w):
    sd, iqr = spread(w)
    return 0.9 * min(sd, iqr / 1.34) * len(w) ** -0.2


def silverman_wide(w):
    return 1.06 * min(spread(w)) * len(w) ** -0.2


def scott(w):
    return spread(w)[0] * len(w) ** -0.2


def cross_validated(w, kernel):
    def log_likelihood(h):
        density = lambda i: sum(kernel((w[i] - x) / h) for j, x in enumerate(w) if j != i) / h
        with np.errstate(divide="ignore"):
            return sum(np.log(density(i)) for i in range(len(w)))

    candidates = [multiple * silverman(w) for multiple in (0.01, 0.1, 1, 10)]
    scores = [log_likelihood(h) for h in candidates]
    return candidates[int(np.argmax(scores))] if np.isfinite(max(scores)) else silverman(w)


def adaptive(w, x):
    nearest = sorted(w, key=lambda value: (abs(value - x), value))[:5]
    return np.std(nearest, ddof=1) * 5**-0.2


def cosine_power(w, size=1024):
    """a_k^2 for k = 1 ... size - 1 of the values binned linearly on their range and half of it at each side, and the
    width of all of it."""
    low, high = w.min(), w.max()
    grid = np.linspace(low - (high - low) / 2, high + (high - low) / 2, size)
    counts = np.zeros(size)
    for x in w:
        place = (x - grid[0]) / (grid[1] - grid[0])
        below = int(place)
        counts[below] += (below + 1 - place) / len(w)
        counts[below + 1] += (place - below) / len(w)
    k = np.arange(1, size)[:, None]
    a = 2 * (np.cos(np.pi * k * (2 * np.arange(size) + 1) / (2 * size)) * counts).sum(1)
    return a**2, grid[-1] - grid[0]


def plug_in(w):
    """By bisection between the bounds that Botev's doubling finds; None without a root."""
    power, width = cosine_power(w)
    k, n = np.arange(1, 1024.0), len(set(w))

    def excess(t):
        f = 0.5 * np.pi**14 * (k**14 * power * np.exp(-((k * np.pi) ** 2) * t)).sum()
        for s in range(6, 1, -1):
            constant = (1 + 0.5 ** (s + 0.5)) / 3 * np.prod(np.arange(1, 2 * s, 2.0)) / np.sqrt(2 * np.pi)
            time = (2 * constant / (n * f)) ** (2 / (3 + 2 * s))
            f = 0.5 * np.pi ** (2 * s) * (k ** (2 * s) * power * np.exp(-((k * np.pi) ** 2) * time)).sum()
        return t - (2 * n * np.sqrt(np.pi) * f) ** -0.4

    bound = start = 1e-11 + 0.01 * (min(max(n, 50), 1050) - 50) / 1000
    while excess(bound) <= 0:
        bound *= 2
        if bound >= 1:
            return None
    low, high = (1e-12 if bound == start else bound / 2), bound
    for _ in range(60):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return np.sqrt(low) * width


def kernel_of(name):
    return (lambda u: max(1 - u**2, 0.0)) if name == "epanechnikov" else (lambda u: np.exp(-(u**2) / 2))


def bandwidth_of(name, w, kernel):
    """A function of x."""
    if name == "adaptive":
        return lambda x: adaptive(w, x)
    if name == "plug_in":
        h = plug_in(w)
        h = silverman(w) if h is None else h
    elif name == "cross_validated":
        h = cross_validated(w, kernel_of(kernel))
    else:
        h = globals()[name](w)
    return lambda x: h


def shift(x, w, h, kernel, max_iterations=20, sizes=None, factors=None):
    """Where x comes to rest; h a function of x."""
    sizes = np.ones(len(w)) if sizes is None else sizes
    factors = np.ones(len(w)) if factors is None else factors
    for _ in range(max_iterations):
        if h(x) == 0:
            return x
        u = (x - w) / (h(x) * factors)
        if kernel == "gaussian":  # Over the largest, as none may be above zero in float64.
            kernels = sizes * np.exp((np.min(u**2) - u**2) / 2)
        else:
            kernels = sizes * np.maximum(1 - u**2, 0)
        kernels = kernels / factors**2
        if kernels.sum() == 0:
            return x
        new = (kernels * w).sum() / kernels.sum()
        if abs(new - x) < 1e-6:
            return new
        x = new
    return x


def kernel_mode(values, start, kernel, bandwidth, scale=1.0, max_iterations=20, weights=None, weighting="kernels"):
    modes = []
    for w in np.asarray(values, np.float64).T:
        sizes = np.ones(len(w)) if weights is None else np.asarray(weights, float)
        if w.min() == w.max():
            modes.append(w[0])
            continue
        own = bandwidth_of(bandwidth, w, kernel)
        h = lambda x, own=own: scale * own(x)
        options = {"sizes": sizes}
        if weighting == "bandwidths":
            options = {"factors": (1 / sizes) / (1 / sizes).mean()}
        starts = [np.average(w, weights=sizes)] if start == "mean" else w
        ends = [shift(x, w, h, kernel, max_iterations, **options) for x in starts]
        modes.append(ends[0] if start == "mean" else np.average(ends, weights=sizes))
    return np.array(modes)
