"""Controls of the variational rows: the epistemic part by number of examples and on corrupted images."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.default_posterior.config import CONTROLS, SIZES, VARIATIONAL
from experiments.global_posterior.federation import Data, load
from experiments.global_posterior.scores import constant_spread
from experiments.tables import mean_and_sd

Options = dict[str, Any]
ROWS = ("averaged", "constant")
PARTS = ("entropy", "aleatoric", "epistemic", "mutual_information")  # Older records are without the last.
KINDS = ("noisy", "rotated", "elsewhere")


def control_cells() -> Iterator[tuple[str, Options]]:
    """Return the name and the options of each cell: as many local steps whatever the number of examples."""
    for seed, (data, numbers) in itertools.product(CONTROLS["seeds"], CONTROLS["examples"].items()):
        usual = max(numbers)
        for number, shuffled in (*((n, False) for n in numbers), (usual, True)):
            options = {"examples_per_client": number, "local_epochs": round(usual / number), "shuffled": shuffled}
            labels = "shuffled" if shuffled else "true"
            name = f"control,{data},examples={number},labels={labels},seed={seed}"
            of_cell = {"control": True, "settings": VARIATIONAL, "partition": CONTROLS["partition"], "seed": seed}
            yield name, {**SIZES[data], **options, **of_cell}


def shuffled_labels(data: Data, seed: int) -> Data:
    """Permute the labels of the training images among all clients."""
    source = data.clients.source
    labels = np.random.default_rng(seed).permutation(source.labels)
    clients = bfl.data.Clients(dataclasses.replace(source, labels=labels), data.clients.indices)
    return data._replace(clients=clients)


def images_of(data: Data) -> dict[str, np.ndarray]:
    """Return test images [N, h, w, c] with Gaussian noise, the same rotated, and images of another dataset."""
    test = data.test.features
    noise = CONTROLS["noise"] * 255 * np.random.default_rng(0).standard_normal(test.shape)
    noisy = np.clip(np.round(test + noise), 0, 255).astype(test.dtype)
    elsewhere = small_clothes(len(test)) if data.elsewhere is None else data.elsewhere
    return {"noisy": noisy, "rotated": np.rot90(test, axes=(1, 2)).copy(), "elsewhere": elsewhere}


def small_clothes(number: int) -> np.ndarray:
    """Return test images of Fashion-MNIST at the size of the digits [number, 8, 8, 1]: means over 3 x 3 pixels."""
    images = load("fashion_mnist", "test").subset(number, seed=0).features[:, 2:-2, 2:-2]
    return np.round(images.reshape(len(images), 8, 3, 8, 3, 1).mean((2, 4))).astype(images.dtype)


def control_scores(model_fn: Any, weights: bfl.weights.ModelWeights, data: Data, options: Options) -> Options:
    """Return scores of test images and the parts of the uncertainty of all images, by row of standard deviations.

    `error_auroc_PART` detects wrong predictions by a part, `KIND_auroc_PART` images of a kind.
    """
    rows: Options = {}
    for name, own in zip(ROWS, (weights, constant_spread(weights))):
        model = bfl.weights.predictive_model(model_fn(), own)
        predict = lambda images: bfl.evaluation.predict(model, images, options["num_samples"], options["seed"])  # noqa: B023
        test = predict(data.test.features)
        mean, parts = test.mean(0), parts_of(test)
        wrong = np.argmax(mean, 1) != data.test.labels
        scores = {
            "accuracy": bfl.evaluation.accuracy(mean, data.test.labels),
            "nll": bfl.evaluation.negative_log_likelihood(mean, data.test.labels),
            **{f"{part}_{which}": parts[part][of].mean() for part in PARTS for which, of in _parted(wrong).items()},
            **{f"error_auroc_{part}": auroc(parts[part][~wrong], parts[part][wrong]) for part in PARTS},
        }
        for kind, images in images_of(data).items():
            for part, values in parts_of(predict(images)).items():
                scores |= {f"{part}_{kind}": values.mean(), f"{kind}_auroc_{part}": auroc(parts[part], values)}
        rows[name] = {column: float(value) for column, value in scores.items()}
    return rows


def parts_of(samples: np.ndarray) -> dict[str, np.ndarray]:
    """Return each part of the uncertainty [N] of sampled predictions [S, N, C]."""
    found = tf.constant(samples)
    both = {**bfl.evaluation.summarise(found)._asdict(), **bfl.evaluation.decompose_entropy(found)._asdict()}
    return {part: both[part].numpy() for part in PARTS}


def _parted(wrong: np.ndarray) -> dict[str, np.ndarray]:
    """Return masks of all, right and wrong predictions."""
    return {"test": np.full_like(wrong, True), "right": ~wrong, "wrong": wrong}


def auroc(low: np.ndarray, high: np.ndarray) -> float:
    """Return the area under the ROC curve of a score that should be larger in the second sample."""
    return bfl.evaluation.out_of_distribution(low, high).auroc


def controls_table(done: dict[str, Options]) -> list[list[str]]:
    """Return the size of the epistemic part, mean and standard deviation over seeds."""
    columns = ("accuracy", "nll", *(f"epistemic_{kind}" for kind in ("test", *KINDS)))
    return _by_group(done, columns)


def detection_table(done: dict[str, Options]) -> list[list[str]]:
    """Return detection of errors and of unlike images by each part, mean and standard deviation over seeds."""
    return _by_group(done, [f"{what}_auroc_{part}" for what in ("error", *KINDS) for part in PARTS])


def parts_table(done: dict[str, Options]) -> list[list[str]]:
    """Return the mean of each part over right and wrong predictions and over unlike images."""
    return _by_group(done, [f"{part}_{what}" for part in PARTS for what in ("right", "wrong", *KINDS)])


def _by_group(done: dict[str, Options], columns: Sequence[str]) -> list[list[str]]:
    groups: dict[str, list[Options]] = {}
    for name, record in done.items():
        if name.startswith("control,"):
            groups.setdefault(name.rpartition(",")[0].removeprefix("control,"), []).append(record["rows"])
    known = [
        column for column in columns if any(column in of[row] for own in groups.values() for of in own for row in ROWS)
    ]
    lines = [["data, examples of a client, labels", "standard deviations", *known, "seeds"]]
    for group, records in groups.items():
        for row, text in zip(ROWS, ("learned", "one number")):
            values = [[record[row][column] for record in records if column in record[row]] for column in known]
            cells = [mean_and_sd(x, 4) if x else "" for x in values]
            lines.append([group.replace("examples=", "").replace("labels=", ""), text, *cells, str(len(records))])
    return lines
