"""One client's steps by this library, without a federated round: a side of benchmarks/step.py."""

from __future__ import annotations

import itertools

import click
import numpy as np
import tensorflow as tf
from peers import blocks

import tfp_bfl as bfl


@click.command(help=__doc__)
@click.option("--data", required=True, help="features uint8 [N, H, W, C], labels [N]: one client's.")
@click.option("--model", type=click.Choice(["lenet", "resnet20"]), default="lenet")
@click.option("--kind", type=click.Choice(list(bfl.models.KINDS)), default="flipout")
@click.option("--inference", type=click.Choice(list(bfl.clients.INFERENCES)), default="backprop")
@click.option("--noise", default=None)
@click.option("--optimizer", type=click.Choice(list(bfl.clients.OPTIMIZERS)), default="adam")
@click.option("--precision", type=click.Choice(list(bfl.models.PRECISIONS)), default="float32")
@click.option("--threads", type=int, default=1)
def main(data, model, kind, inference, noise, optimizer, precision, threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    arrays = np.load(data)
    features, labels = tf.constant(arrays["features"]), tf.constant(arrays["labels"], tf.int32)

    def model_fn():
        return bfl.models.MODELS[model](kind=kind, input_shape=features.shape[1:], precision=precision)

    examples = bfl.data.ClientExamples(tf.zeros_like(labels), features, labels)
    message = bfl.models.ServerMessage(bfl.models.get_weights(model_fn()), tf.constant(0))
    work = bfl.clients.variational(
        model_fn,
        batch_size=blocks.BATCH,
        learning_rate=blocks.LEARNING_RATE,
        inference=inference,
        noise=noise,
        optimizer_fn=optimizer,
    )()
    calls = itertools.count()

    def block():
        nonlocal message
        result = work(message, examples, tf.constant([0, next(calls)]))
        message = message._replace(weights=result.weights)
        return float(result.metrics.nll)

    blocks.serve(block, len(labels) // blocks.BATCH)


if __name__ == "__main__":
    main()
