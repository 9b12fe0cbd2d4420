"""Time pairs within this process, the two sides in turn, and print a line of JSON for each pair.

    python benchmarks/ratios.py

Prediction: S = 20 weight samples of a Flipout model, in this process and by its SavedModel, against 20 passes of the
deterministic one. Pooling: `rules.aggregate` over 10 clients of 10 million weights against a copy of the same bytes.
"""

from __future__ import annotations

import functools
import json
import statistics
import tempfile
import time

import click
import numpy as np
import tensorflow as tf
from work import DATASETS, make_clients

import tfp_bfl as bfl

SAMPLES = 20


def in_turn(ours, reference, repeats):
    """Return seconds of each call of the two, called in turn; the first call of each is not counted."""
    ours(), reference()
    seconds = ([], [])
    for _ in range(repeats):
        for call, taken in zip((ours, reference), seconds):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return seconds


def pair(what, ours, reference, repeats):
    mine, theirs = in_turn(ours, reference, repeats)
    ratios = [a / b for a, b in zip(mine, theirs)]
    line = {
        "what": what,
        "ms": round(1000 * statistics.median(mine), 2),
        "reference_ms": round(1000 * statistics.median(theirs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
    }
    click.echo(json.dumps(line))


def prediction(model, num_images, repeats):
    images = tf.constant(make_clients(model, 1, num_images).examples(0).features)
    shape = images.shape[1:]
    flipout, plain = (bfl.models.MODELS[model](kind=kind, input_shape=shape) for kind in ("flipout", "deterministic"))
    seeds = bfl.evaluation.sample_seeds(0, SAMPLES)
    scaled = tf.image.convert_image_dtype(images, tf.float32)

    @tf.function
    def sampled():
        return bfl.evaluation.sample_probabilities(flipout, images, seeds)

    @tf.function
    def passes():
        # Each pass in the loop has different inputs; otherwise TensorFlow would compute one pass for all.
        one = lambda i: tf.nn.softmax(plain(scaled + tf.cast(i, tf.float32), training=False))
        return tf.map_fn(one, tf.range(SAMPLES), fn_output_signature=tf.float32)

    with tempfile.TemporaryDirectory() as folder:
        bfl.export.save(flipout, folder)
        served = tf.saved_model.load(folder).signatures["predict"]
    numbers = {"num_samples": tf.constant(SAMPLES), "seed": tf.constant(0)}
    exported = functools.partial(served, images=scaled, **numbers)

    what = f"{SAMPLES} samples / {SAMPLES} deterministic passes"
    pair(f"predict {model}, {what}", sampled, passes, repeats)
    pair(f"SavedModel of {model}, {what}", exported, passes, repeats)


def pooling(num_clients, num_weights, repeats):
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(num_clients, num_weights)).astype(np.float32)
    variance = rng.uniform(0.5, 1.0, mean.shape).astype(np.float32)
    copies = np.empty_like(mean), np.empty_like(variance)
    stacked = bfl.posterior.MeanField(tf.constant(mean), tf.constant(variance))
    anchor = bfl.posterior.MeanField(tf.zeros([num_weights]), tf.ones([num_weights]))

    def copy():
        np.copyto(copies[0], mean)
        np.copyto(copies[1], variance)

    for name, make in bfl.rules.RULES.items():
        pool = functools.partial(bfl.rules.aggregate, make(), stacked, anchor=anchor)
        pair(f"pool by {name}, {num_clients} x {num_weights:.0e} weights / a copy", pool, copy, repeats)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--prediction-only", is_flag=True, help="Leave pooling out.")
@click.option(
    "--images", type=click.IntRange(min=1), default=500, show_default=True, help="Number of images in a prediction."
)
def main(repeats, prediction_only, images):
    for model in DATASETS:
        prediction(model, images, repeats)
    if not prediction_only:
        pooling(10, 10_000_000, repeats)


if __name__ == "__main__":
    main()
