"""A server step: momentum of the server's means and point weights."""

import tensorflow as tf

import tfp_bfl as bfl

each = tf.nest.map_structure


def momentum(m):
    """v <- m v + (pooled - w),   w <- w + (1 - m) v, for means and point weights."""
    values = lambda weights: (weights.posterior.mean, weights.point)

    def initialize(weights):  # the state before the first round
        return each(tf.zeros_like, values(weights))

    def step(v, weights, pooled, seed):
        v = each(lambda v, new, old: m * v + new - old, v, values(pooled), values(weights))
        mean, point = each(lambda w, v: w + (1 - m) * v, values(weights), v)
        return v, pooled._replace(posterior=pooled.posterior._replace(mean=mean), point=point)

    return bfl.contracts.ServerStep(initialize, step, name=f"momentum:{m}")


if __name__ == "__main__":
    train = bfl.data.load("breast_cancer")
    model_fn = lambda: bfl.models.mlp("flipout", train.element_shape, train.num_classes, hidden=(8,), seed=0)
    work = bfl.clients.variational(model_fn, local_epochs=2)
    process = bfl.algorithms.compose(model_fn, work, "mean_precision_average", momentum(0.5))
    clients = train.partition(bfl.data.iid(num_clients=4), seed=0)
    result = bfl.simulate(process, clients, rounds=5, engine="local")
    print(f"NLL {result.rounds[0]['nll']:.2f}, after five rounds {result.rounds[-1]['nll']:.2f}")
