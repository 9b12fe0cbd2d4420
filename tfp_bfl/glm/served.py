"""A SavedModel of a hierarchical model: the client is an input. This module imports TensorFlow."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import begun
from tfp_bfl.glm.quadrature import predictive_grid, regular
from tfp_bfl.glm.random_features import RandomFeatures

if TYPE_CHECKING:
    from tfp_bfl.glm.hierarchical import Hierarchical

# The name of a client that is not one of the fit.
UNKNOWN = "unknown"
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
    width = len(model.posterior.columns) - 1 - model.num_features
    with begun(folder):
        module = _module(model, width, [names[k] for k in chosen], chosen)
        tf.saved_model.save(module, str(folder), signatures={"serving_default": module.predict})
        content = {
            "columns": model.posterior.columns[1 : width + 1],
            "clients": [names[k] for k in chosen],
            "family": model.posterior.family,
            **({"classes": list(model.posterior.classes)} if model.posterior.classes else {}),
        }
        (folder / CONTENT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _module(model: Hierarchical, width: int, names: Sequence[str], chosen: Sequence[int]) -> tf.Module:
    """Return the module with the function `predict`; the effects in it are those of the chosen clients alone."""
    posterior, new = model.posterior, model.new_effect
    effects = [*(model.effects[k] for k in chosen), new]
    means, covariances, slopes = (np.stack(x) for x in zip(*effects))
    q, places = posterior.num_predictors, [posterior.columns.index(name) for name in model.random]
    nodes, weights = predictive_grid(q)
    family, of = posterior.family, model.features
    event = lambda mean: mean * (1 - mean)
    # The variance of an outcome given its mean.
    noise = {
        "gaussian": lambda mean: posterior.dispersion + tf.zeros_like(mean),
        "bernoulli": event,
        "poisson": lambda mean: mean,
        "multinomial": event,
    }[family]
    softmax = lambda eta: tf.nn.softmax(tf.concat([tf.zeros_like(eta[..., :1]), eta], -1))
    link = {"gaussian": tf.identity, "bernoulli": tf.sigmoid, "poisson": tf.exp, "multinomial": softmax}[family]
    spread = lambda rows: tf.reshape(
        tf.einsum("ij,ab->iajb", rows, tf.eye(q, dtype=rows.dtype)), [-1, q, rows.shape[1] * q]
    )
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
        z = spread(tf.gather(design, places, axis=1))
        along = spread(design) + z @ tf.gather(slopes, row)
        covariance = along @ tf.matmul(tf.constant(posterior.covariance), along, transpose_b=True)
        covariance += z @ tf.matmul(tf.gather(covariances, row), z, transpose_b=True)
        centre = tf.linalg.matvec(spread(design), posterior.mean) + tf.linalg.matvec(z, tf.gather(means, row))
        values = link(
            centre[:, tf.newaxis] + tf.matmul(nodes, tf.linalg.cholesky(regular(covariance)), transpose_b=True)
        )
        mean = tf.einsum("q,iqc->ic", weights, values)
        epistemic = tf.einsum("q,iqc->ic", weights, (values - mean[:, tf.newaxis]) ** 2)
        aleatoric = tf.einsum("q,iqc->ic", weights, noise(values))
        found = {
            **{"mean": mean, "stddev": tf.sqrt(epistemic + aleatoric), "epistemic": epistemic},
            **{"linear_predictor": centre, "linear_predictor_stddev": tf.sqrt(tf.linalg.diag_part(covariance))},
        }
        return found if posterior.classes else {name: x[:, 0] for name, x in found.items()}

    module = tf.Module()
    module.predict = tf.function(predict, input_signature=inputs, autograph=False)
    return module
