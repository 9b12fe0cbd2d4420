"""The data of a cell, the process that trains on them, and the adaptation that all methods have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

import tfp_bfl as bfl
from experiments.metavd.config import CLIENT_RATE, CLIP, LOCAL, METHODS, PROXIMAL, SERVER
from tfp_bfl.contracts import ClientWork

Options = dict[str, Any]
# FedBE's server has a share of the examples, without labels, and takes 72 steps of batches of 128 a round or so.
UNLABELLED_SHARE, FED_BE_EPOCHS = 0.04, 4


class Data(NamedTuple):
    """Clients in training and others, and test shards of each: like their training shards, and drawn independently."""

    known: Any
    unseen: Any
    matched: tuple[Any, Any]
    independent: tuple[Any, Any]
    unlabelled: Any


@functools.cache
def load(name: str, split: str) -> Any:
    """Return a dataset."""
    return bfl.data.load(name, split=split)


def data_of(options: Options) -> Data:
    """Return the data of a cell, the same for all methods of a seed."""
    seed, number = options["seed"], options["known"] + options["unseen"]
    by_classes = bfl.data.dirichlet(number, options["concentration"])
    everybody = load(options["dataset"], "train").partition(by_classes, seed=seed)
    test = load(options["dataset"], "test")
    known, unseen = everybody.split(options["known"])
    matched = test.partition(bfl.data.like(everybody), seed=seed).split(options["known"])
    independent = test.partition(by_classes, seed=seed + 1000).split(options["known"])
    unlabelled, _ = everybody.set_aside(UNLABELLED_SHARE, seed)
    return Data(known, unseen, matched, independent, unlabelled.examples(0).features)


def model_of(options: Options) -> Callable[[], tf.keras.Model]:
    """Return the builder of a cell's model: point weights, or noise in the second dense layer; pFedBayes' is all
    Gaussian.
    """
    how, source = METHODS[options["method"]], load(options["dataset"], "test")
    kind = {"meta_vd": "variational_dropout", "p_fed_bayes": "flipout"}.get(how["recipe"], "deterministic")
    given: Options = {"width": options["width"], "seed": options["seed"]}
    if kind == "variational_dropout":
        given["parametrization"] = how.get("parametrization", "log_variance")
        given["initial_stddev"] = None
        given["variational_initializer"] = how.get("initializer", "he_normal")
        given["logit_range"] = how.get("logit_range")
    if kind == "flipout":
        given |= {"variational_layers": "all", "initial_stddev": 0.03}
    return lambda: bfl.models.conv_net(kind, source.element_shape, source.num_classes, **given)


def process_of(options: Options, data: Data) -> bfl.federated.BayesianProcess:
    """Return the process of a cell."""
    how, model_fn = METHODS[options["method"]], model_of(options)
    shared = {"seed": options["seed"], "augmentation": options.get("augmentation")}
    server = bfl.servers.server_optimizer(**SERVER) if how.get("server") else None
    learner = {"learner": how.get("learner", "plain"), **LOCAL}
    sgd = {"learning_rate": CLIENT_RATE, "optimizer_fn": clipped_sgd, **LOCAL}
    if how["recipe"] == "meta_learning":
        return bfl.algorithms.meta_learning(model_fn, server_optimizer=server, **learner, **shared)
    if how["recipe"] == "alone":
        work = alone(
            bfl.algorithms.personal.work.meta_learning(model_fn, learning_rate=CLIENT_RATE, clip_norm=CLIP, **LOCAL)
        )
        return bfl.algorithms.compose(model_fn, work, "naive_weighted_average", bfl.servers.replace(), **shared)
    if how["recipe"] == "fed_prox":
        return bfl.algorithms.fed_prox(model_fn, proximal=PROXIMAL, **sgd, **shared)
    if how["recipe"] == "fed_be":
        return bfl.algorithms.fed_be(model_fn, data.unlabelled, ensemble={"num_epochs": FED_BE_EPOCHS}, **sgd, **shared)
    if how["recipe"] == "p_fed_bayes":
        return bfl.algorithms.p_fed_bayes(model_fn, **LOCAL, **shared)
    return _meta_vd(how, model_fn, options, server, {**learner, **shared})


def alone(client_work: ClientWork) -> ClientWork:
    """Return `client_work` from a client's own weights on, which it keeps: the server's stay as they were."""

    class Kept(NamedTuple):
        weights: Any
        rounds: Any

    def own(kept: Kept, first: Any) -> Any:
        return tf.nest.map_structure(lambda x, y: tf.where(kept.rounds > 0, x, y), kept.weights, first)

    def build() -> Callable[..., Any]:
        work = client_work()

        def from_own(message: Any, examples: Any, seed: tf.Tensor) -> Any:
            mine = message._replace(weights=own(message.memory, message.weights), memory=())
            result = work(mine, examples, seed)
            kept = Kept(result.weights, message.memory.rounds + 1)
            return result._replace(weights=message.weights, memory=kept)

        return from_own

    first = lambda weights, share: Kept(weights, tf.constant(0))
    return ClientWork(build, memory=first, personal=lambda message, client: own(message.memory, message.weights))


def _meta_vd(
    how: Options, model_fn: Any, options: Options, server: Any, given: Options
) -> bfl.federated.BayesianProcess:
    if how.get("kl_reduction") == "mean":
        warm_up = max(1, options["rounds"] // 50)
        given |= {"kl_reduction": "mean", "kl_weight": bfl.training.sigmoid_warm_up(10.0, warm_up)}
    stay = {"shared": bfl.algorithms.personal.step.Learning(0.0, 0.0, 0.0)} if how.get("learns") is False else {}
    names = ("ranged", "parametrization", "middle", "logit_range", "initial_rate")
    of_variances = {name: how[name] for name in names if name in how}
    return bfl.algorithms.meta_vd(
        model_fn,
        num_clients=options["known"],
        variances=how["variances"],
        rule=how.get("rule", "log_linear_pool"),
        threshold=how.get("threshold"),
        variance_options=of_variances,
        server_options={"capped": how.get("capped", True), "absent_decay": how.get("absent_decay", False), **stay},
        server_optimizer=server,
        logit_rate=how.get("logit_rate"),
        **given,
    )


def noises_of(method: str) -> tuple[str, ...]:
    """Return the noises with which clients' models are evaluated besides their own."""
    variances = METHODS[method].get("variances")
    return ("none", "another") if variances == "hypernetwork" else ("none",) if variances else ()


def clipped_sgd() -> tf.keras.optimizers.Optimizer:
    """Return SGD with gradients clipped to the norm `CLIP`."""
    return tf.keras.optimizers.SGD(global_clipnorm=CLIP)


def adaptation_of(options: Options) -> ClientWork:
    """Return client work of one step of SGD on a batch, with the model's own noise and KL: the same for all methods."""
    work = bfl.algorithms.personal.work.meta_learning(
        model_of(options), local_epochs=1, batch_size=64, learning_rate=CLIENT_RATE, clip_norm=CLIP
    )
    return bfl.clients.augmented(work, options["augmentation"]) if options.get("augmentation") else work
