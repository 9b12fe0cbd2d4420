"""SavedModels that say how sure they are."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Union

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation import decompose, is_stochastic, sample_probabilities, sample_seeds, scalars
from tfp_bfl.export.manifest import write_manifest


def _predictor(model: tf.keras.Model) -> tuple[tf.Module, dict[str, Any]]:
    """A module that predicts, and its serving signatures.

    It holds the model's variables, not its layers: whoever loads it needs neither this package nor TFP.
    """

    @tf.function
    def predict(images: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_positive(num_samples, "num_samples must be at least 1.")]):
            seeds = sample_seeds(seed, num_samples)
        if not is_stochastic(model):
            seeds = seeds[:1]
        uncertainty = decompose(sample_probabilities(model, images, seeds))
        aleatoric, epistemic = scalars(uncertainty)
        return {
            "probabilities": uncertainty.mean,
            "mean": uncertainty.mean,
            "entropy": uncertainty.entropy,
            "aleatoric": aleatoric,
            "epistemic": epistemic,
        }

    module = tf.Module()
    module.weights = list(model.variables)
    module.predict = predict
    images = model.input_shape[1:]
    types = {"predict": tf.float32, "predict_uint8": tf.uint8} if len(images) == 3 else {"predict": tf.float32}
    signatures = {
        name: predict.get_concrete_function(
            tf.TensorSpec([None, *images], dtype, "images"),
            tf.TensorSpec([], tf.int32, "num_samples"),
            tf.TensorSpec([], tf.int32, "seed"),
        )
        for name, dtype in types.items()
    }
    # Not a signature, but what NumPy makes of images: without it a loaded `predict` refuses them.
    scalar = tf.TensorSpec([], tf.int32)
    predict.get_concrete_function(tf.TensorSpec([None, *images], tf.float64), scalar, scalar)
    return module, signatures


def save(model: tf.keras.Model, path: Union[str, os.PathLike]) -> None:
    """Writes a SavedModel whose `predict(images, num_samples, seed)` gives probabilities and their uncertainty.

        loaded = tf.saved_model.load("saved/")
        loaded.predict(images, num_samples=20, seed=0)["epistemic"]

    Inputs: images [B, ...], floats in [0, 1] or uint8; num_samples and seed, int32 scalars; the same seed gives the
    same answer. Outputs: probabilities [B, C] (also as `mean`, their name in `tfp_bfl.evaluation.decompose`);
    entropy [B], normalised to [0, 1]; aleatoric and epistemic [B], the traces of its matrices. The serving signatures
    are "predict" (float32) and, for images, "predict_uint8". The file sha256sums.txt has the checksums of all others,
    by which `tfp_bfl.export.load` and `sha256sum --check` find what was changed.

    Args:
      model: a Keras model that returns logits.
      path: a folder that doesn't exist or is empty.

    Raises:
      InvalidArgument: there is something at `path`.
    """
    folder = pathlib.Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgument(f"{folder} exists already: choose a new folder for the SavedModel.")
    module, signatures = _predictor(model)
    tf.saved_model.save(module, str(folder), signatures=signatures)
    write_manifest(folder)
