"""Rows of a table as they are, as the columns that a model requires: the encoding, inside the graph."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.data import EMPTY, Feature

# The function and the signature that accept them.
NAME = "predict_rows"
_NO_LETTER = re.compile(r"[^A-Za-z0-9_]")
_MOST_FEATURES = 100_000
_KINDS = ("number", "truth", "date", "category", "ordinal")


def parse_features(given: Any) -> tuple[Feature, ...]:
    """Return the features of a record.

    Args:
      given: a list of `Feature._asdict()`.

    Raises:
      ValueError: it is none.
    """
    if not isinstance(given, (list, tuple)) or len(given) > _MOST_FEATURES:
        raise ValueError(given)
    features = []
    for entry in given:
        if not isinstance(entry, Mapping) or set(entry) != set(Feature._fields):
            raise ValueError(entry)
        feature = Feature(**{**entry, "levels": tuple(entry["levels"])})
        well = isinstance(feature.name, str) and feature.name.isprintable() and feature.kind in _KINDS
        well = well and all(isinstance(x, str) and "\0" not in x for x in feature.levels)
        well = well and isinstance(feature.has_rare, bool) and isinstance(feature.has_missing, bool)
        if not well or not (feature.unit is None or isinstance(feature.unit, str)):
            raise ValueError(entry)
        features.append(feature)
    return tuple(features)


def inputs_of(features: Sequence[Feature]) -> dict[str, tf.TensorSpec]:
    """Return the inputs of a signature for rows, by the name of the column.

    The name of an input has the letters and digits of the column's name, and "_" for other characters. It begins with a
    letter, "column_" if need be, and a number is added where two names would be the same.

    Args:
      features: of the model.
    """
    specs: dict[str, tf.TensorSpec] = {}
    used = {"num_samples", "seed"}
    for feature in features:
        plain = _NO_LETTER.sub("_", feature.name)
        name = base = plain if plain[:1].isalpha() and not keyword.iskeyword(plain) else f"column_{plain}"
        number = 2
        while name in used:
            name, number = f"{base}_{number}", number + 1
        used.add(name)
        specs[feature.name] = tf.TensorSpec([None], tf.string if feature.is_text else tf.float32, name)
    return specs


def encoder(
    features: Sequence[Feature], columns: Sequence[Sequence[Any]], trims: bool = True
) -> Callable[[Mapping[str, tf.Tensor]], tf.Tensor]:
    """Return the function from rows as they are, {column: [B]}, to float32 [B, D], as `data.read_encoded` gives them.

    Text is compared with the levels: a table of strings would be an object of its own in a SavedModel, and is no
    operation of TensorFlow Lite.

    Args:
      features: of the model.
      columns: (name, mean, standard deviation) of each of the D columns of all features.
      trims: spaces around text are removed, for which TensorFlow Lite has no operation.
    """
    means = np.array([column[1] for column in columns], np.float32)

    def encode(rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
        blocks, start = [], 0
        for feature in features:
            cells = tf.reshape(rows[feature.name], [-1, 1])
            if feature.is_text and trims:
                cells = tf.strings.strip(cells)
            width = len(feature.columns) - feature.has_missing
            mean = means[np.newaxis, start : start + width]
            block, empty = (_text if feature.is_text else _number)(cells, feature, mean)
            blocks += [block, empty] if feature.has_missing else [block]
            start += len(feature.columns)
        return tf.concat(blocks, 1)

    return encode


def _number(cells: tf.Tensor, feature: Feature, mean: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    del feature
    empty = tf.not_equal(cells, cells)
    return tf.where(empty, mean, cells), tf.cast(empty, tf.float32)


def _text(cells: tf.Tensor, feature: Feature, mean: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    among = lambda words: tf.cast(tf.equal(cells, tf.constant([list(words)], tf.string)), tf.float32)
    empty = tf.reduce_sum(among(("", *EMPTY)), 1, keepdims=True)
    hits = among(feature.levels) if feature.levels else tf.zeros_like(empty)[:, :0]
    unknown = 1.0 - tf.reduce_sum(hits, 1, keepdims=True)
    codes = feature.codes.astype(np.float32)
    known = tf.matmul(hits, codes[:-1])
    other = mean if not feature.has_rare else empty * mean + (1.0 - empty) * codes[-1:]
    return known + unknown * other, empty if feature.has_rare else unknown
