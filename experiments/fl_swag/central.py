"""Chains of stochastic-gradient Langevin dynamics over all clients' data in one place, to compare with."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_bfl as bfl
from experiments.fl_swag import controls, methods
from experiments.fl_swag.federation import Cell, federation
from experiments.samplers import langevin_chain
from tfp_bfl.posterior import Samples


def run_sampler(cell: Cell, pretrained: pathlib.Path) -> tuple[list[methods.Row], dict[str, Any]]:
    """Run SGLD or pSGLD with as many passes as the clients; the second half of its epochs gives the samples."""
    with bfl.engines.tff.local_workers() as runtime:
        data = federation(cell, pretrained, runtime)
    examples = [data.clients.examples(k) for k in range(data.clients.num_clients)]
    features, labels = (np.concatenate(part) for part in list(zip(*examples))[1:])
    train = methods.network(data._replace(features=features, labels=labels), cell["last_layer"], cell["num_samples"])
    started = time.perf_counter()
    draws, facts = (nuts if cell["sampler"] == "nuts" else langevin)(cell, train)
    seconds, started = time.perf_counter() - started, time.perf_counter()
    net = methods.network(data, cell["last_layer"], cell["num_samples"])
    evaluation = methods.evaluate(net, methods.drawn(draws))
    row = methods.Row(cell["sampler"], None, evaluation, time.perf_counter() - started)
    return [row], {"server": data.server, "train_seconds": seconds, **facts}


def langevin(cell: Cell, train: methods.Network) -> tuple[Samples, dict[str, Any]]:
    """Return draws of a chain from the network's weights."""
    an_epoch = -(-len(train.labels) // cell["batch_size"])
    draws = langevin_chain(
        lambda: train.model,
        train.features,
        train.labels,
        step_size=cell["step_size"],
        num_steps=cell["local_epochs"] * an_epoch,
        burn_in=cell["burn_in_epochs"] * an_epoch,
        thin=max(1, (cell["local_epochs"] - cell["burn_in_epochs"]) * an_epoch // cell["draws"]),
        batch_size=cell["batch_size"],
        prior_stddev=cell["prior_stddev"],
        preconditioned=cell["sampler"] == "psgld",
        seed=cell["seed"],
    )
    return draws, {}


def nuts(cell: Cell, train: methods.Network) -> tuple[Samples, dict[str, Any]]:
    """Return draws of two No-U-Turn chains (Hoffman & Gelman 2014) over a last layer: what the others are held against.

    w = mode + L^-T z with L L^T the Hessian at the mode: were the posterior normal, z would be N(0, I). The chains
    start at 2 N(0, I).
    """
    potential = bfl.training.Potential(train.model)
    features, labels = tf.constant(train.features), tf.constant(train.labels)
    found, matrix = controls.mode(train.model, features, labels, cell["prior_stddev"])
    mode = tf.constant(found, tf.float32)
    back = tf.constant(np.linalg.inv(np.linalg.cholesky(matrix)), tf.float32)  # rows: z L^-1 = (L^-T z)^T

    def log_prob(z: tf.Tensor) -> tf.Tensor:
        w = mode + tf.linalg.matvec(back, z, transpose_a=True)
        return -tf.reduce_sum(potential.each(w, features, labels)) - tf.reduce_sum(w**2) / (
            2 * cell["prior_stddev"] ** 2
        )

    @tf.function
    def chain(number: tf.Tensor) -> Any:
        seeds = tf.unstack(tf.random.split(tf.stack([number, cell["seed"]]), 2))
        sampler = tfp.mcmc.NoUTurnSampler(log_prob, step_size=cell["step_size"], max_tree_depth=6)
        return tfp.mcmc.sample_chain(
            cell["local_epochs"] - cell["burn_in_epochs"],
            2 * tf.random.stateless_normal([potential.size], seeds[0]),
            kernel=tfp.mcmc.DualAveragingStepSizeAdaptation(sampler, int(0.8 * cell["burn_in_epochs"])),
            num_burnin_steps=cell["burn_in_epochs"],
            trace_fn=lambda _, result: tf.exp(tf.minimum(0.0, result.inner_results.log_accept_ratio)),
            seed=seeds[1],
        )

    draws, acceptance = zip(*(chain(tf.constant(number)) for number in range(2)))
    weights = mode + tf.matmul(tf.stack(draws), back)
    reduction = bfl.posterior.potential_scale_reduction(weights)
    facts = {
        "acceptance_rate": [float(tf.reduce_mean(rate)) for rate in acceptance],
        "scale_reduction": dict(zip(("median", "most"), np.quantile(reduction, [0.5, 1]).tolist())),
    }
    return Samples(potential.shaped(tf.reshape(weights, [-1, potential.size]))), facts
