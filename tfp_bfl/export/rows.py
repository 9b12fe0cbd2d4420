"""Rows of a table as they are, as the columns that a model requires: the encoding, inside the graph."""

import keyword
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.data import EMPTY, Feature
from tfp_bfl.data.names import CATEGORY_RULES, compositions
from tfp_bfl.data.texts import TEXT

# The function and the signature that accept them.
NAME = "predict_rows"
_NO_LETTER = re.compile(r"[^A-Za-z0-9_]")
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?")
# Around text for TensorFlow Lite, which has no operation that removes spaces.
MOST_SPACES = 4


def inputs_of(features: Sequence[Feature], shape: Sequence[int] = (1,)) -> dict[str, tf.TensorSpec]:
    """Return the inputs of a signature for rows, by the name of the column, [B]; [B, T] for examples of `shape` [T, D].

    The name of an input has the letters and digits of the column's name, and "_" for other characters. It begins with a
    letter, "column_" if need be, and a number is added where two names would be the same. There are no inputs if a
    column holds texts, of which no graph computes features.
    """
    if any(feature.kind == TEXT for feature in features):
        return {}
    specs: dict[str, tf.TensorSpec] = {}
    used = {"num_samples", "seed"}
    for feature in features:
        plain = _NO_LETTER.sub("_", feature.name)
        name = base = plain if plain[:1].isalpha() and not keyword.iskeyword(plain) else f"column_{plain}"
        number = 2
        while name in used:
            name, number = f"{base}_{number}", number + 1
        used.add(name)
        specs[feature.name] = tf.TensorSpec([None, *shape[:-1]], tf.string if feature.is_text else tf.float32, name)
    return specs


def encoder(
    features: Sequence[Feature], columns: Sequence[Sequence[Any]], has_rules: bool = True
) -> Callable[[Mapping[str, tf.Tensor]], tf.Tensor]:
    """Return the function from rows as they are, {column: [B]}, to float32 [B, D], as `data.read_encoded` gives them.

    Of series {column: [B, T]} it is float32 [B, T, D].

    Text is compared with the levels: a table of strings would be an object of its own in a SavedModel, and is no
    operation of TensorFlow Lite.

    `columns` are (name, mean, standard deviation) of each of the D columns of all features. Text becomes a category by
    `data.names.CATEGORY_RULES`, and its letters are composed as those of the levels. TensorFlow Lite has no operation
    for these: without `has_rules` a graph compares text with each of the `spellings` of a level.
    """
    means = np.array([column[1] for column in columns], np.float32)

    def encode(rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
        blocks, start = [], 0
        for feature in features:
            cells = tf.reshape(rows[feature.name], [-1, 1])
            if feature.is_text and has_rules:
                for pattern, replacement in (*CATEGORY_RULES, *compositions(feature.levels)):
                    cells = tf.strings.regex_replace(cells, pattern, replacement)
            width = len(feature.columns) - feature.has_missing
            mean = means[np.newaxis, start : start + width]
            if feature.is_text:
                block, empty = _text(cells, feature, mean, (lambda x: [x]) if has_rules else spellings)
            else:
                is_nan = tf.not_equal(cells, cells)
                block, empty = tf.where(is_nan, mean, cells), tf.cast(is_nan, tf.float32)
            blocks += [block, empty] if feature.has_missing else [block]
            start += len(feature.columns)
        encoded, steps = tf.concat(blocks, 1), rows[features[0].name].shape[1:]
        return tf.reshape(encoded, [-1, *steps, encoded.shape[1]]) if steps.rank else encoded

    return encode


def spellings(category: str) -> list[str]:
    """Return texts that name a category (`data.names.as_category`), the most frequent ones.

    Letters are composed or decomposed (NFC, NFD). Up to `MOST_SPACES` spaces are before and after, or a tab or the end
    of a line. A number has up to three zeros more after the point, a plus sign, or no zero before the point.
    """
    forms = [category, unicodedata.normalize("NFD", category)]
    if _PLAIN_NUMBER.fullmatch(category):
        zeros = [f"{category}{'' if '.' in category else '.'}{'0' * k}" for k in range(4)]
        short = [re.sub(r"^(-?)0\.", r"\1.", form) for form in zeros if "." in category]
        signed = [f"+{form}" for form in (category, *zeros, *short)] if category[:1] != "-" else []
        forms += [*zeros, *short, *signed, *(["-0", "-0.0"] if category == "0" else [])]
    spaces = [" " * k for k in range(MOST_SPACES + 1)]
    around = [*((a, b) for a in spaces for b in spaces), ("\t", ""), ("", "\t"), ("", "\n"), ("", "\r"), ("", "\r\n")]
    return list(dict.fromkeys(f"{before}{form}{after}" for form in forms for before, after in around))


def _text(
    cells: tf.Tensor, feature: Feature, mean: np.ndarray, texts_of: Callable[[str], list[str]]
) -> tuple[tf.Tensor, tf.Tensor]:
    empty = tf.reduce_sum(_among(cells, ("", *EMPTY), texts_of), 1, keepdims=True)
    hits = _among(cells, feature.levels, texts_of) if feature.levels else tf.zeros_like(empty)[:, :0]
    unknown = 1.0 - tf.reduce_sum(hits, 1, keepdims=True)
    codes = feature.codes.astype(np.float32)
    known = tf.matmul(hits, codes[:-1])
    other = mean if not feature.has_rare else empty * mean + (1.0 - empty) * codes[-1:]
    return known + unknown * other, empty if feature.has_rare else unknown


def _among(cells: tf.Tensor, words: Sequence[str], texts_of: Callable[[str], list[str]]) -> tf.Tensor:
    """Return 1 for the word that a cell names, else 0: [B, words]."""
    texts = [texts_of(word) for word in words]
    most = max(len(x) for x in texts)
    # As many for each word, of which some are repeated.
    each = [text for x in texts for text in (*x, *[x[0]] * (most - len(x)))]
    equal = tf.cast(tf.equal(cells, tf.constant([each], tf.string)), tf.float32)
    return equal if most == 1 else tf.reduce_max(tf.reshape(equal, [-1, len(words), most]), 2)
