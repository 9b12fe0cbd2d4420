"""Compare evaluation in bfloat16 with float32: accuracy, NLL and ECE on trained models, and time, in turn.

    python benchmarks/evaluation.py

Trained by the side `flipout`: LeNet on digits (embedded), 15 epochs; ResNet-20 on CIFAR-10, 100 steps of 32. One line
of JSON for each.
"""

from __future__ import annotations

import json
import statistics
import time

import click
import numpy as np
import tensorflow as tf
from sides import FLIPOUT

import tfp_bfl as bfl

# data, examples to train on (None: all), epochs, test examples, samples
CASES = {"lenet": ("digits", None, 15, None, 20), "resnet20": ("cifar10", 3200, 1, 1000, 20)}


def train(model_fn, examples, epochs: int) -> tf.keras.Model:
    model = model_fn()
    message = bfl.weights.ServerMessage(bfl.weights.get_weights(model), tf.constant(0))
    work = bfl.clients.variational(model_fn, local_epochs=epochs, **FLIPOUT.training())()
    bfl.weights.assign_weights(model, work(message, examples, tf.constant([0, 1])).weights)
    return model


def measure(name: str, repeats: int) -> dict:
    data, examples, epochs, tested, samples = CASES[name]
    source, test = bfl.data.load(data), bfl.data.load(data, split="test")
    shape = source.element_shape
    images, labels = source.features[:examples], source.labels[:examples]
    client = bfl.data.ClientExamples(np.zeros(len(labels), np.int32), images, labels)
    model_fn = lambda: bfl.models.MODELS[name](FLIPOUT.kind, input_shape=shape, precision=FLIPOUT.precision)
    model = train(model_fn, tf.nest.map_structure(tf.constant, client), epochs)
    line: dict = {"model": name, "data": data, "test_examples": len(test.labels[:tested]), "samples": samples}
    for precision in bfl.evaluation.PRECISIONS:
        found = bfl.evaluation.evaluate(
            model, test.features[:tested], test.labels[:tested], num_samples=samples, precision=precision
        )
        line[precision] = {key: round(found.metrics[key], 4) for key in ("accuracy", "test_nll", "ece", "epistemic")}
        line[precision]["probabilities"] = found.probabilities
    both = [line[precision].pop("probabilities") for precision in bfl.evaluation.PRECISIONS]
    line["same_class"] = round(float(np.mean(both[0].argmax(1) == both[1].argmax(1))), 4)
    line["largest_difference"] = round(float(np.abs(both[0] - both[1]).max()), 4)
    seconds: dict[str, list] = {precision: [] for precision in bfl.evaluation.PRECISIONS}
    for _ in range(repeats + 1):
        for precision, taken in seconds.items():
            wall, cpu = time.perf_counter(), time.process_time()
            bfl.evaluation.predict(model, test.features[:500], num_samples=5, precision=precision)
            taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    for i, clock in enumerate(("wall", "cpu")):
        ratios = [b[i] / a[i] for a, b in zip(*(taken[1:] for taken in seconds.values()))]
        line[f"bfloat16_{clock}_ratio"] = round(statistics.median(ratios), 3)
        line[f"{clock}_ms_a_sample"] = [
            round(200 * statistics.median(t[i] for t in taken[1:]), 2) for taken in seconds.values()
        ]
    return line


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--model", "models", type=click.Choice(list(CASES)), multiple=True, default=list(CASES))
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
def main(models, repeats):
    for name in models:
        click.echo(json.dumps(measure(name, repeats)))


if __name__ == "__main__":
    main()
