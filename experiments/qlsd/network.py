"""A network on MNIST with a dominant label for each client: predictions compared with HMC, and how chains move."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from typing import Any, NamedTuple

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.samplers import exact_chains

Options = dict[str, Any]
REFERENCE = "{study},HMC"
PREDICTIONS = "predictions.npz"
# Examples that are predicted in one call.
AT_ONCE = 500


class Data(NamedTuple):
    """The training and test data of a cell.

    Fields:
      train: the examples of all clients.
      unlabelled: others of the same split, for FedBE's server [U, 28, 28, 1].
      test: of the same dataset.
      elsewhere: images of another dataset [N, 28, 28, 1], or None.
    """

    train: bfl.data.Source
    unlabelled: np.ndarray
    test: bfl.data.Source
    elsewhere: np.ndarray | None


def data_of(options: Options) -> Data:
    """Return subsets of the datasets, the same for every cell of a network."""
    source, test = (bfl.data.load(options["dataset"], split=split) for split in ("train", "test"))
    order = np.random.default_rng(options["data_seed"]).permutation(source.num_examples)
    own, number, seed = order[: options["examples"]], options["test_examples"], options["data_seed"]
    elsewhere = options["elsewhere"] and bfl.data.load(options["elsewhere"], split="test").subset(number, seed).features
    return Data(
        dataclasses.replace(source, features=source.features[own], labels=source.labels[own]),
        source.features[order[-options["unlabelled"] :]],
        test.subset(number, seed=seed),
        elsewhere,
    )


def model_of(options: Options, seed: int) -> tf.keras.Model:
    """Return a perceptron of one hidden layer, LeNet-5, or ResNet-20 by groups, with initial weights of a seed."""
    if options["model"] == "mlp":
        return bfl.models.mlp("deterministic", (28, 28, 1), 10, hidden=(options["hidden"],), seed=seed)
    if options["model"] == "lenet":
        return bfl.models.lenet("deterministic", seed=seed)
    return bfl.models.resnet20("deterministic", normalization="group", seed=seed)


def starts(options: Options, data: Data) -> list[bfl.weights.ModelWeights]:
    """Return the initial weights of the chains: by seed, or one network trained for `warm_epochs` for all."""
    seeds, epochs = range(options["runs"]), options.get("warm_epochs")
    if not epochs:
        return [bfl.weights.get_weights(model_of(options, seed)) for seed in seeds]
    build = functools.partial(model_of, options, 0)
    process = bfl.algorithms.fed_opt(build, local_epochs=epochs, batch_size=20, learning_rate=1e-2)
    one = data.train.partition(bfl.data.iid(1), seed=options["data_seed"])
    return [bfl.simulate(process, one, rounds=1, seed=0, engine="local").state.weights] * len(seeds)


def flat(weights: bfl.weights.ModelWeights) -> np.ndarray:
    """Return the point weights one after another [D]."""
    return np.concatenate([np.ravel(x) for x in weights.point])


def federation(options: Options, train: bfl.data.Source) -> bfl.data.Clients:
    """Return the clients, or one client of all data for SGLD."""
    if options["algorithm"] == "sgld":
        return train.partition(bfl.data.iid(1), seed=options["data_seed"])
    least = {"min_examples": options["batch_size"]}
    partition = bfl.data.noniid_datasets(options["clients"], options["other_interest"], **least)
    return train.partition(partition, seed=options["data_seed"])


def hmc(options: Options, data: Data) -> np.ndarray:
    """Return draws [M, R, D] of the posterior."""
    found = exact_chains(
        bfl.training.Potential(model_of(options, 0)),
        data.train.features,
        data.train.labels,
        tf.stack([flat(weights) for weights in starts(options, data)]),
        **{name: options[name] for name in ("num_draws", "burn_in", "num_leapfrog_steps", "thin")},
        prior_stddev=options["prior_stddev"],
    )
    return np.swapaxes(found.draws.numpy(), 0, 1)


def langevin(options: Options, data: Data) -> np.ndarray:
    """Return draws [M, R, D] of QLSD, QLSD++ or, on one client without compression, of SGLD."""
    build = functools.partial(model_of, options, 0)
    names = ("estimator", "compressor", "prior_stddev", "batch_size", "refresh_every")
    step_size = options["step_size"] * options.get("step_factor", 1)
    given = {name: options[name] for name in names}
    rounds, burn_in, every = (
        options[name] * options.get("times_as_long", 1) for name in ("rounds", "burn_in", "every")
    )
    process = bfl.algorithms.qlsd(build, step_size=step_size, count_bits=False, **given)
    chains = bfl.algorithms.chains.simulate_chains(
        process,
        federation(options, data.train),
        rounds,
        num_chains=options["runs"],
        cohort_size=options.get("cohort_size"),
        seed=0,
        start=tf.nest.map_structure(lambda *x: np.stack(x), *starts(options, data)),
        thinning=bfl.federated.Thinning(burn_in, every),
        xla=options["model"] == "mlp",
    )
    leaves = chains.draws.point
    return np.concatenate([x.reshape(*x.shape[:2], -1) for x in leaves], -1)


def trained(options: Options, data: Data) -> np.ndarray:
    """Return the point weights [M, 1, D] of FedAvg, or of the model distilled from FedBE's ensemble."""
    clients, found = federation(options, data.train), []
    how = {name: options[name] for name in ("local_epochs", "batch_size", "learning_rate")}
    ensemble = {"distribution": options.get("distribution", "gaussian")}
    for seed in range(options["runs"]):
        build = functools.partial(model_of, options, seed)
        if options["algorithm"] == "fed_be":
            process = bfl.algorithms.fed_be(build, data.unlabelled, ensemble=ensemble, **how)
        else:
            process = bfl.algorithms.fed_opt(build, **how)
        result = bfl.simulate(process, clients, rounds=options["rounds"], seed=seed, engine="local")
        found.append(flat(result.state.weights)[np.newaxis])
    return np.stack(found)


WORK = {"hmc": hmc, "sgld": langevin, "qlsd": langevin, "fed_opt": trained, "fed_be": trained}


def run(options: Options, folder: pathlib.Path) -> dict[str, Any]:
    """Run a cell: scores of mean predictions, agreement with HMC's, and how far weights have moved.

    HMC's chains predict together, and agree or not with each other; of the others each seed's is for itself.

    Returns:
      Lists, a number for each seed.

    Raises:
      UsageError: HMC's predictions, which its own cell writes, are not there.
    """
    reference = REFERENCE.format(**options)
    path, exact = folder.parent / reference / PREDICTIONS, options["algorithm"] == "hmc"
    if not exact and not path.exists():
        raise click.UsageError(f"{path} is not there: run the cell {reference} first, with the same --output.")
    data = data_of(options)
    started = time.perf_counter()
    chains = WORK[options["algorithm"]](options, data)
    seconds = time.perf_counter() - started
    potential = bfl.training.Potential(model_of(options, 0))
    test, elsewhere = (
        [None if x is None else predict(potential, draws, x) for draws in chains]
        for x in (data.test.features, data.elsewhere)
    )
    if exact:
        together = np.mean(test, 0, dtype=np.float32)
        np.savez_compressed(folder / PREDICTIONS, test=together)
        other = None if data.elsewhere is None else np.mean(elsewhere, 0)
        rows = [scores(together, data.test.labels, other) | near(test[0], test[-1])]
    else:
        with np.load(path) as file:
            exact_predictions = file["test"]
        rows = [scores(p, data.test.labels, q) | near(p, exact_predictions) for p, q in zip(test, elsewhere)]
    here = unlit(data.train.features, model_of(options, 0))
    for seed, (row, start) in enumerate(zip(rows, starts(options, data))):
        row |= moved(flat(start), chains if exact else chains[seed : seed + 1], options["prior_stddev"], here)
    return {
        **{name: [row[name] for row in rows] for name in rows[0]},
        "weights": potential.size,
        "draws": chains.shape[1] * (chains.shape[0] if exact else 1),
        "seconds": seconds,
    }


def near(probabilities: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Return agreement and total variation of predictions [N, C]."""
    return {
        "agreement": float(bfl.evaluation.agreement(probabilities, reference)),
        "total_variation": float(bfl.evaluation.total_variation(probabilities, reference)),
    }


def predict(potential: bfl.training.Potential, draws: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return mean_r softmax(f(x; w_r)) over draws [R, D]: [N, C]."""

    @tf.function(autograph=False)
    def mean(x: tf.Tensor) -> tf.Tensor:
        of = lambda w: tf.nn.softmax(potential.outputs(w, x))
        return tf.reduce_mean(tf.map_fn(of, tf.constant(draws), parallel_iterations=1), 0)

    parts = range(0, len(features), AT_ONCE)
    return np.concatenate([mean(tf.constant(features[i : i + AT_ONCE])).numpy() for i in parts])


def scores(test: np.ndarray, labels: np.ndarray, elsewhere: np.ndarray | None) -> dict[str, float]:
    """Return the scores of test predictions [N, C], and of out-of-distribution detection by entropy if there are such
    images.
    """
    entropy = lambda p: -np.sum(p * np.log(np.maximum(p, 1e-30)), -1)
    found = {
        "accuracy": float(bfl.evaluation.accuracy(test, labels)),
        "ece": float(bfl.evaluation.expected_calibration_error(test, labels)),
        "brier": float(bfl.evaluation.brier_score(test, labels)),
        "nll": float(bfl.evaluation.negative_log_likelihood(test, labels)),
    }
    if elsewhere is not None:
        found["auroc"] = bfl.evaluation.out_of_distribution(entropy(test), entropy(elsewhere)).auroc
    return found


def unlit(features: np.ndarray, model: tf.keras.Model) -> np.ndarray:
    """Return a mask [D] of the weights of pixels that are black in all examples: their posterior is the prior.

    The first layer of the model must be dense.
    """
    leaves = bfl.training.Potential(model).leaves
    here = np.zeros(sum(x.shape.num_elements() for x in leaves), bool)
    rows = np.flatnonzero(~features.reshape(len(features), -1).any(0))
    for number, leaf in enumerate(leaves):
        if leaf.shape.as_list()[:1] == [np.prod(features.shape[1:])]:
            start = sum(x.shape.num_elements() for x in leaves[:number])
            columns = leaf.shape[1]
            here[start + np.add.outer(rows * columns, np.arange(columns)).ravel()] = True
    return here


def moved(start: np.ndarray, chains: np.ndarray, prior_stddev: float, unlit: np.ndarray) -> dict[str, Any]:
    """Return the distances of chains [M, R, D] from weights [D], and the widths of their samples.

    Returns:
      travelled: ||w_T - w_0|| / ||w_0||, of the first chain.
      spread: the mean over weights and chains of the draws' sd, over the prior's.
      unlit_spread: the same over weights with the prior as posterior; 1 for exact samples.
      unlit_rms: the root of their mean square, over the prior's sd: also 1 for exact draws.
    """
    spread = chains.std(1, dtype=np.float64) / prior_stddev
    found = {
        "travelled": float(np.linalg.norm(chains[0, -1] - start) / np.linalg.norm(start)),
        "spread": float(spread.mean()),
    }
    if unlit.any():
        found["unlit_spread"] = float(spread[:, unlit].mean())
        found["unlit_rms"] = float(np.sqrt(np.mean(np.square(chains[..., unlit], dtype=np.float64))) / prior_stddev)
    return found
