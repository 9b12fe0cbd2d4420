"""What the server and its clients send each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.models.weights import ModelWeights


class ServerMessage(NamedTuple):
    """What every client of a round gets: the weights to start from, and the round's number (scalar int32)."""

    weights: ModelWeights
    round: Any


class TrainingMetrics(NamedTuple):
    """What a client reports of its training, each a scalar.

    Fields:
      nll: mean negative log likelihood of the examples seen, nats per example.
      kl: mean over steps of KL[q || prior], nats.
      elbo: -(nll + kl / N_k), nats per example.
    """

    nll: tf.Tensor
    kl: tf.Tensor
    elbo: tf.Tensor


class ClientResult(NamedTuple):
    """What client work returns: the local weights, the number of training examples, the training's metrics."""

    weights: ModelWeights
    num_examples: tf.Tensor
    metrics: TrainingMetrics
