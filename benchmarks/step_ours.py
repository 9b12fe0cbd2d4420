"""One client's steps by this library, without a federated round: a side of benchmarks/step.py."""

from __future__ import annotations

import itertools

import click
import numpy as np
import tensorflow as tf
from peers import blocks
from sides import SIDES

import tfp_bfl as bfl


@click.command(help=__doc__)
@click.option("--data", required=True, help="features uint8 [N, H, W, C], labels [N]: one client's.")
@click.option("--model", type=click.Choice(["lenet", "resnet20"]), default="lenet")
@click.option("--side", "name", type=click.Choice(list(SIDES)), required=True)
@click.option("--threads", type=int, default=1)
@click.option("--keras", type=int, default=2, help="2, or 3 for a model of Keras 3.")
def main(data, model, name, threads, keras):
    side = SIDES[name]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    arrays = np.load(data)
    features, labels = tf.constant(arrays["features"]), tf.constant(arrays["labels"], tf.int32)

    def model_fn():
        options = {"precision": side.precision, "keras": keras}
        network = bfl.models.MODELS[model](kind=side.kind, input_shape=features.shape[1:], **options)
        return network if keras == 2 else bfl.models.from_keras_3(network)

    examples = bfl.data.ClientExamples(tf.zeros_like(labels), features, labels)
    message = bfl.weights.ServerMessage(bfl.weights.get_weights(model_fn()), tf.constant(0))
    work = bfl.clients.variational(model_fn, local_epochs=1, batch_size=blocks.BATCH, **side.training())()
    calls = itertools.count()

    def block():
        nonlocal message
        result = work(message, examples, tf.constant([0, next(calls)]))
        message = message._replace(weights=result.weights)
        return float(result.metrics.nll)

    blocks.serve(block, len(labels) // blocks.BATCH)


if __name__ == "__main__":
    main()
