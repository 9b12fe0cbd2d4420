"""The default on a linear regression with a known posterior: three sites of 10, 40 and 100 examples that differ."""

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl

ROUNDS = 60


def model_fn():
    """Build a linear model without bias, with the prior N(0, 1)."""
    layer = bfl.layers.DenseFlipout(1, use_bias=False, prior_stddev=1.0, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input([3]), layer])


def sites(sizes=(10, 40, 100)):
    """Draw features around another place on each site, and labels with noise of variance 1."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(n, 3)) + rng.normal(size=3) for n in sizes])
    y = x @ [1.0, -1.0, 0.5] + rng.normal(size=len(x))
    train = bfl.data.Source("sites", "train", x, y, target=bfl.data.Column("y", 0.0, 1.0))
    return bfl.data.Clients(train, np.split(np.arange(len(x)), np.cumsum(sizes)[:-1]))


if __name__ == "__main__":
    clients = sites()
    x, y = clients.source.features, clients.source.labels
    precision = np.eye(3) + x.T @ x
    mean, stddev = np.linalg.solve(precision, x.T @ y), np.diag(precision) ** -0.5
    options = {"likelihood": "gaussian:1.0", "element_spec": clients.element_spec}
    for name in ("default", "variational"):
        process = getattr(bfl.algorithms, name)(model_fn, **options)
        state = process.with_clients(process.local.initialize(), range(3), clients.sizes, rounds=ROUNDS)
        for _ in range(ROUNDS):
            state = process.local.next(state, [clients.dataset(k) for k in range(3)]).state
        weights = state.weights.posterior
        error = np.sqrt(np.mean(((np.ravel(weights.mean) - mean) / stddev) ** 2))
        ratio = np.exp(np.mean(np.log(np.ravel(weights.variance) / stddev**2)))
        print(f"{name}: mean {error:.2f} standard deviations off, variances {ratio:.2f} times the exact ones")
