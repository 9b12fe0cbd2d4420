"""Federated averaging in pfl-research, with the KL of the model's layers in the clients' loss."""

from __future__ import annotations

import argparse
from typing import Any

import arguments
import models
import numpy as np
import tensorflow as tf
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.tensorflow import TFTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.model.tensorflow import TFModel


class Model(TFModel):
    """A model that pfl does not evaluate: otherwise it would, on every user of round 0, whatever the frequency."""

    def evaluate(self, *_: Any, **__: Any) -> Metrics:
        return Metrics()


class VariationalFederatedAveraging(FederatedAveraging):
    """Federated averaging in which clients with n examples minimise the mean NLL plus KL / n.

    pfl's own step of local training takes the loss from labels and predictions alone. This one, which pfl runs over a
    user's batches as it runs its own, adds the layers' losses; the user's `train_kwargs` hold n.

    Args:
      keras_model: compiled.
      batch_size: of every batch; None if they differ. pfl keeps one graph of the step, and would trace it anew
        wherever a batch's size is not that of the one before.
    """

    def __init__(self, keras_model: tf.keras.Model, batch_size: int | None) -> None:
        super().__init__()
        self.total_nll = tf.Variable(0.0, trainable=False)

        @tf.function(
            input_signature=[
                tf.TensorSpec([batch_size, *keras_model.input_shape[1:]], tf.float32),
                tf.TensorSpec([batch_size], tf.int32),
                {"num_examples": tf.TensorSpec([], tf.float32)},
            ]
        )
        def step(features: tf.Tensor, labels: tf.Tensor, train_kwargs: dict[str, tf.Tensor]) -> None:
            with tf.GradientTape() as tape:
                logits = keras_model(features, training=True)
                nll = keras_model.loss(labels, logits)
                loss = nll
                if keras_model.losses:
                    loss += tf.add_n(keras_model.losses) / train_kwargs["num_examples"]
            gradients = tape.gradient(loss, keras_model.trainable_variables)
            keras_model.optimizer.apply_gradients(zip(gradients, keras_model.trainable_variables))
            self.total_nll.assign_add(nll * tf.cast(tf.shape(labels)[0], tf.float32))

        self._step = step

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Metrics]:
        model.do_multiple_epochs_of(user_dataset, central_context.model_train_params, self._step)
        return model.get_model_difference(initial_model_state), Metrics()


class RoundCallback(TrainingProcessCallback):
    """Takes each round's wall time and, in the last one, the training NLL and the memory."""

    def __init__(self, algorithm: VariationalFederatedAveraging, rounds: int) -> None:
        self.clock = arguments.Clock()
        self.total_nll = 0.0
        self.peak = 0.0
        self._algorithm = algorithm
        self._rounds = rounds

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.clock.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.lap()
        if central_iteration == self._rounds - 1:
            # The memory first: the workers that share the clients live until all have given their part of the NLL.
            self.peak = arguments.peak_mb()
            [[total]] = get_framework_module().distributed.all_reduce([self._algorithm.total_nll[tf.newaxis]])
            self.total_nll = float(total)
        self._algorithm.total_nll.assign(0.0)
        return False, Metrics()


def train(options: argparse.Namespace, clients: arguments.Clients) -> RoundCallback:
    """Run the rounds; in each one the clients of the cohort are weighted by their examples."""
    tf.keras.utils.set_random_seed(0)
    keras_model = models.build(options.model, options.kind)
    keras_model.compile(
        tf.keras.optimizers.Adam(arguments.LEARNING_RATE),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    # pfl sets the optimizer's variables to zero before each client's training, but only those that it finds when it
    # traces that: before the first step there would be no moments yet.
    keras_model.optimizer.build(keras_model.trainable_variables)
    sizes, most = clients.sizes, options.batch_size
    batch_sizes = {int(b) for b in [*np.minimum(sizes, most), *(sizes % most)[sizes > most]] if b}
    batch_size = batch_sizes.pop() if len(batch_sizes) == 1 else None
    algorithm = VariationalFederatedAveraging(keras_model, batch_size)
    callback = RoundCallback(algorithm, options.rounds)
    dataset = _dataset(clients)
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=options.rounds,
            train_cohort_size=options.cohort or len(clients),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]),
        Model(keras_model, metrics={}, central_optimizer=tf.keras.optimizers.SGD(1.0)),
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=arguments.LEARNING_RATE,
            local_batch_size=options.batch_size,
        ),
        callbacks=[callback],
        send_metrics_to_platform=False,
    )
    return callback


def _dataset(clients: arguments.Clients) -> FederatedDataset:
    """Return clients in memory, as pfl recommends for small data: it splits each into batches once, unshuffled."""
    users = [
        TFTensorDataset(
            *map(tf.constant, clients.examples(i)),
            user_id=str(i),
            train_kwargs={"num_examples": tf.constant(size, tf.float32)},
        )
        for i, size in enumerate(clients.sizes)
    ]
    return FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(len(clients))))
