"""A SavedModel of a hierarchical model: the client is an input. This module imports TensorFlow."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from scipy import special

from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import begun
from tfp_bfl.glm.random_features import RandomFeatures

if TYPE_CHECKING:
    from tfp_bfl.glm.hierarchical import Hierarchical

# The name of a client that is not one of the fit.
UNKNOWN = "unknown"
_NODES = 40
# Beside the graph: the names of the columns and of the clients.
CONTENT = "content.json"


def save(
    model: Hierarchical, path: str | pathlib.Path, client_names: Sequence[str], leave_out: Collection[str] = ()
) -> None:
    """Write a SavedModel; the page of `Hierarchical.save` says what it computes."""
    names = [str(name) for name in client_names]
    if len(names) != len(model.effects) or len(set(names)) < len(names):
        raise InvalidArgument(
            f"client_names must be {len(model.effects)} different names, one for each client, not {shown(names)}."
        )
    for name in leave_out:
        lookup(dict.fromkeys(names), name, "client", "to leave out")
    if UNKNOWN in names:
        raise InvalidArgument(
            f"A client has the name {UNKNOWN!r}, which stands for a new client: give it another name."
        )
    if model.features is not None and not isinstance(model.features, RandomFeatures):
        raise InvalidArgument("A SavedModel holds random features, not a function: compute its columns beforehand.")
    folder = pathlib.Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgument(f"{path_name(folder)} exists: give a new folder.")
    chosen = [k for k, name in enumerate(names) if name not in leave_out]
    width = len(model.posterior.names) - 1 - model.num_features
    with begun(folder):
        module = _module(model, width, [names[k] for k in chosen], chosen)
        tf.saved_model.save(module, str(folder), signatures={"serving_default": module.predict})
        content = {
            "columns": list(model.posterior.names[1 : width + 1]),
            "clients": [names[k] for k in chosen],
            "family": model.posterior.family,
        }
        (folder / CONTENT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _module(model: Hierarchical, width: int, names: Sequence[str], chosen: Sequence[int]) -> tf.Module:
    """Return the module with the function `predict`; the effects in it are those of the chosen clients alone."""
    posterior, new = model.posterior, model.new_effect
    effects = [*(model.effects[k] for k in chosen), new]
    means, covariances, slopes = (np.stack(x) for x in zip(*effects))
    places = [list(posterior.names).index(name) for name in model.random]
    nodes, weights = special.roots_hermitenorm(_NODES)
    weights, family, of = weights / np.sum(weights), posterior.family, model.features
    # The variance of an outcome given its mean.
    noise = {
        "gaussian": lambda mean: posterior.dispersion + tf.zeros_like(mean),
        "bernoulli": lambda mean: mean * (1 - mean),
        "poisson": lambda mean: mean,
    }[family]
    link = {"gaussian": tf.identity, "bernoulli": tf.sigmoid, "poisson": tf.exp}[family]
    inputs = [
        tf.TensorSpec([None, width], tf.float64, "features"),
        tf.TensorSpec([None], tf.string, "client"),
    ]

    def predict(features: tf.Tensor, client: tf.Tensor) -> dict[str, tf.Tensor]:
        columns = [tf.ones_like(features[:, :1]), features]
        if isinstance(of, RandomFeatures):
            columns.append(tf.tanh(tf.linalg.matmul((features - of.centre) / of.scale, of.weights) + of.shifts))
        design = tf.concat(columns, 1)
        # The last row is that of a new client; without a name that fits, it is chosen.
        equal = tf.equal(client[:, tf.newaxis], tf.constant([*names, UNKNOWN]))
        row = tf.where(tf.reduce_any(equal, 1), tf.argmax(tf.cast(equal, tf.int32), 1), len(names))
        z = tf.gather(design, places, axis=1)
        along = design + tf.einsum("ia,iaj->ij", z, tf.gather(slopes, row))
        variance = tf.einsum("ij,jk,ik->i", along, posterior.covariance, along)
        variance += tf.einsum("ia,iab,ib->i", z, tf.gather(covariances, row), z)
        centre = tf.linalg.matvec(design, posterior.mean) + tf.reduce_sum(z * tf.gather(means, row), 1)
        stddev = tf.sqrt(variance)
        values = link(centre[:, tf.newaxis] + stddev[:, tf.newaxis] * nodes)
        mean = tf.linalg.matvec(values, weights)
        epistemic = tf.linalg.matvec((values - mean[:, tf.newaxis]) ** 2, weights)
        aleatoric = tf.linalg.matvec(noise(values), weights)
        return {
            **{"mean": mean, "stddev": tf.sqrt(epistemic + aleatoric), "epistemic": epistemic},
            **{"linear_predictor": centre, "linear_predictor_stddev": stddev},
        }

    module = tf.Module()
    module.predict = tf.function(predict, input_signature=inputs, autograph=False)
    return module
