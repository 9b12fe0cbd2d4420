"""SCAFFOLD (Karimireddy et al. 2020, option II): control variates correct the drift of clients that differ."""

import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.algorithms.compose import passing_on, split_options
from tfp_bfl.contracts import EXTENDED, ClientWork, Needs, ServerStep


def flat(weights):  # all means and point weights as one vector [D]
    return bfl.posterior.flatten((weights.posterior.mean, weights.point))


def zeros(weights, *_):
    return tf.zeros_like(flat(weights))


def client_work(model_fn, *, learning_rate=0.05, local_epochs=1, batch_size=32, weighting="train_size"):
    rate = learning_rate if callable(learning_rate) else lambda number: learning_rate
    sizes = {"local_epochs": local_epochs, "batch_size": batch_size}
    local = bfl.clients.variational(model_fn, learning_rate=rate, optimizer_fn="sgd", weighting=weighting, **sizes)

    def build():  # called where a client's computation is traced: create variables here
        train = local.build()

        @tf.function(autograph=False)
        def work(message, examples, seed):
            c_k, c = message.memory, message.extra
            term = bfl.weights.LinearTerm(c - c_k)  # added to every gradient of the local training
            result = train(message._replace(memory=(), extra=term), examples, seed)
            steps = local_epochs * tf.cast(tf.math.ceil(result.num_examples / batch_size), tf.float32)
            moved = flat(message.weights) - flat(result.weights)
            change = moved / (rate(message.round) * steps) - c
            return result._replace(memory=c_k + change, extra=change)

        return work

    return ClientWork(build, memory=zeros, extra=zeros, needs=Needs(keeps_sent=False))


def server_step(weighting):
    def initialize(weights):
        return {"control": zeros(weights), "fraction": tf.constant(1.0)}

    def meet(state, size):  # the round's share of all clients' weights, before each step
        return {**state, "fraction": size.share(weighting)}

    def step(state, weights, pooled, seed, extra):  # `extra` is the weighted mean of the clients' changes
        return {**state, "control": state["control"] + state["fraction"] * extra}, pooled

    return ServerStep(initialize, step, send=lambda state, weights: state["control"], meet=meet, takes=EXTENDED)


@passing_on(client_work)
def my_scaffold(model_fn, **options):
    for_work, for_process = split_options(my_scaffold, options)
    work, step = client_work(model_fn, **for_work), server_step(for_work["weighting"])
    return bfl.algorithms.compose(model_fn, work, "naive_weighted_average", step, **for_process)


if __name__ == "__main__":
    train = bfl.data.load("digits")
    model_fn = lambda: bfl.models.mlp("deterministic", train.element_shape, train.num_classes, hidden=(32,), seed=0)
    clients = train.partition(bfl.data.label_skew(num_clients=5, classes_per_client=2), seed=0)
    process = my_scaffold(model_fn, learning_rate=0.1, local_epochs=5)
    result = bfl.simulate(process, clients, rounds=20, engine="local")
    test = bfl.data.load("digits", "test")
    print(f"accuracy {bfl.evaluation.evaluate(result.model, test.features, test.labels).metrics['accuracy']:.2f}")
