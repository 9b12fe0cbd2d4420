"""Controls of the default posterior: the epistemic part by number of examples and on corrupted images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.default_posterior.config import CONTROLS, DEFAULT, SIZES
from experiments.global_posterior.federation import Data
from experiments.global_posterior.scores import constant_spread
from experiments.tables import mean_and_sd

Options = dict[str, Any]
ROWS = ("averaged", "constant")


def control_cells() -> Iterator[tuple[str, Options]]:
    """The name and the options of each cell: as many local steps whatever the number of examples."""
    size = SIZES["fashion_mnist"]
    usual = size["examples_per_client"]
    for seed in CONTROLS["seeds"]:
        for number, shuffled in (*((n, False) for n in CONTROLS["examples"]), (usual, True)):
            options = {"examples_per_client": number, "local_epochs": round(usual / number), "shuffled": shuffled}
            labels = "shuffled" if shuffled else "true"
            name = f"control,examples={number},labels={labels},seed={seed}"
            of_cell = {"control": True, "settings": DEFAULT, "partition": CONTROLS["partition"], "seed": seed}
            yield name, {**size, **options, **of_cell}


def shuffled_labels(data: Data, seed: int) -> Data:
    """Permute the labels of the training images among all clients."""
    source = data.clients.source
    labels = np.random.default_rng(seed).permutation(source.labels)
    clients = bfl.data.Clients(dataclasses.replace(source, labels=labels), data.clients.indices)
    return data._replace(clients=clients)


def images_of(data: Data) -> dict[str, np.ndarray]:
    """Test images [N, h, w, c] as they are, with Gaussian noise, rotated, and images of another dataset."""
    test = data.test.features
    noise = CONTROLS["noise"] * 255 * np.random.default_rng(0).standard_normal(test.shape)
    noisy = np.clip(np.round(test + noise), 0, 255).astype(test.dtype)
    return {"test": test, "noisy": noisy, "rotated": np.rot90(test, axes=(1, 2)).copy(), "elsewhere": data.elsewhere}


def control_scores(model_fn: Any, weights: bfl.models.ModelWeights, data: Data, options: Options) -> Options:
    """Scores of test images and the mean epistemic part of all images, by row of standard deviations."""
    rows: Options = {}
    for name, own in zip(ROWS, (weights, constant_spread(weights))):
        model = bfl.models.predictive_model(model_fn(), own)
        found: Options = {}
        for kind, images in images_of(data).items():
            samples = bfl.evaluation.predict(model, images, options["num_samples"], options["seed"])
            found[f"epistemic_{kind}"] = float(np.mean(bfl.evaluation.summarise(tf.constant(samples)).epistemic))
            if kind == "test":
                mean = samples.mean(0)
                found["accuracy"] = float(bfl.evaluation.accuracy(mean, data.test.labels))
                found["nll"] = float(bfl.evaluation.negative_log_likelihood(mean, data.test.labels))
        rows[name] = found
    return rows


def controls_table(done: dict[str, Options]) -> list[list[str]]:
    """Mean and standard deviation over seeds, by number of examples and by standard deviations."""
    columns = ("accuracy", "nll", *(f"epistemic_{kind}" for kind in ("test", "noisy", "rotated", "elsewhere")))
    groups: dict[str, list[Options]] = {}
    for name, record in done.items():
        if name.startswith("control,"):
            groups.setdefault(name.rpartition(",")[0].removeprefix("control,"), []).append(record["rows"])
    lines = [["examples of a client, labels", "standard deviations", *columns, "seeds"]]
    for group, records in groups.items():
        for row, text in zip(ROWS, ("learned", "one number")):
            cells = [mean_and_sd([record[row][column] for record in records], 4) for column in columns]
            lines.append([group.replace("examples=", "").replace("labels=", ""), text, *cells, str(len(records))])
    return lines
