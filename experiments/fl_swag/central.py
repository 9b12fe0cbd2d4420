"""Chains of stochastic-gradient Langevin dynamics over all clients' data in one place, to compare with."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.fl_swag import methods
from experiments.fl_swag.config import LEAPFROG_STEPS
from experiments.fl_swag.federation import Cell, federation
from tfp_bfl.posterior import Samples


def run_sampler(cell: Cell, pretrained: pathlib.Path) -> tuple[list[methods.Row], dict[str, Any]]:
    """SGLD or pSGLD with as many passes as the clients have; the second half of its epochs gives the draws."""
    with bfl.federated.local_workers() as runtime:
        data = federation(cell, pretrained, runtime)
    examples = [data.clients.examples(k) for k in range(data.clients.num_clients)]
    features, labels = (np.concatenate(part) for part in list(zip(*examples))[1:])
    train = methods.network(data._replace(features=features, labels=labels), cell["last_layer"], cell["num_samples"])
    started = time.perf_counter()
    draws, facts = (hamiltonian if cell["sampler"] == "hmc" else langevin)(cell, train)
    seconds, started = time.perf_counter() - started, time.perf_counter()
    net = methods.network(data, cell["last_layer"], cell["num_samples"])
    evaluation = methods.evaluate(net, methods.drawn(draws))
    row = methods.Row(cell["sampler"], None, evaluation, time.perf_counter() - started)
    return [row], {"server": data.server, "train_seconds": seconds, **facts}


def langevin(cell: Cell, train: methods.Network) -> tuple[Samples, dict[str, Any]]:
    """Draws of a chain from the network's weights."""
    an_epoch = -(-len(train.labels) // cell["batch_size"])
    draws = bfl.clients.langevin_chain(
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


def hamiltonian(cell: Cell, train: methods.Network) -> tuple[Samples, dict[str, Any]]:
    """Draws of two chains, one from the network's weights and one from zero, and whether they agree on the weights."""
    potential = bfl.clients.Potential(train.model)
    starts = tf.stack([potential.start(), tf.zeros([potential.size])])
    chains = bfl.clients.exact_chains(
        potential,
        train.features,
        train.labels,
        starts,
        num_draws=cell["local_epochs"] - cell["burn_in_epochs"],
        burn_in=cell["burn_in_epochs"],
        prior_stddev=cell["prior_stddev"],
        step_size=cell["step_size"],
        num_leapfrog_steps=LEAPFROG_STEPS,
        seed=cell["seed"],
    )
    reduction = bfl.posterior.potential_scale_reduction(np.swapaxes(chains.draws, 0, 1))
    facts = {
        "acceptance_rate": chains.acceptance_rate.tolist(),
        "scale_reduction": dict(zip(("median", "most"), np.quantile(reduction, [0.5, 1]).tolist())),
    }
    return Samples(potential.shaped(tf.reshape(chains.draws, [-1, potential.size]))), facts
