"""The model card: description, metrics, uncertainty, limits and usage of an exported model, from a template."""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import jinja2

from tfp_bfl.data import Feature
from tfp_bfl.export.info import Calibration, Info, calibration_of, columns_of, features_of, offsets_of, target_of
from tfp_bfl.export.rows import inputs_of
from tfp_bfl.export.statement import statement, temperature_of
from tfp_bfl.labels import label_of

NAME = "model_card.md"
# What Markdown makes links, pictures, code, headings, lists, tables or emphasis of.
_MARKS = re.compile(r"[\\`*\[\]!#|~]|:(?=//)|(?<=www)\.")

# Keys of the data that have a section of their own.
_ASIDE = ("metrics_on", "columns", "encoding", "target", "unusual")

# Of a column that are listed, and the cells of other columns.
_MOST_LEVELS = 30
_UNITS = {"number": "numbers", "truth": "0 or 1", "date": "{unit} since 1970-01-01"}


def card(info: Info) -> str:
    """Return the text of the card; `info.model` is what `info.describe` gives."""
    data, settings, classes = dict(info.data or {}), info.configuration or {}, list(info.class_names or ())
    features, calibration = features_of(info), calibration_of(info)
    # A calibration has another temperature.
    full = {"temperature": "posterior temperature"}
    return _template().render(
        model=info.model,
        data=data,
        stated={name: x for name, x in data.items() if name not in _ASIDE},
        target=target_of(info),
        columns=columns_of(info),
        features=features,
        inputs=inputs_of(features),
        rounding=rounding(info),
        statement=statement(info.configuration),
        options={full.get(name, name): x for name, x in settings.items()},
        scores=info.metrics or {},
        metrics={label_of(name): x for name, x in (info.metrics or {}).items()},
        exact=_exact(data),
        calibration=calibration,
        threshold=_threshold(calibration) if calibration else "",
        most=_MOST_LEVELS,
        classes=classes,
        are_numbers=classes == [str(number) for number in range(len(classes))],
        epistemic=_epistemic(temperature_of(info.configuration)),
        is_image=len((info.model or {})["input_shape"]) == 3,
        image_size=settings.get("image_size"),
    )


@functools.cache
def _template() -> jinja2.Template:
    templates = jinja2.Environment(  # Of Markdown: `cell` escapes what users wrote.
        loader=jinja2.PackageLoader("tfp_bfl.export", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"cell": _cell, "cells": _cells}
    return templates.get_template("model_card.md.jinja")


def rounding(info: Info) -> str:
    """Return a warning about numbers that the float32 inputs and outputs of a model round visibly; "" for none."""
    offsets = offsets_of(info)
    if not offsets:
        return ""
    names = ", ".join(list(offsets)[:_MOST_LEVELS])
    return (
        f"float32 rounds these numbers, far from zero for their standard deviation, by up to "
        f"{max(offsets.values()) * 2**-24:.2g} of one: {names}. Call the functions with float64; signatures, "
        "predict_rows and TensorFlow Lite accept only float32."
    )


def _threshold(found: Calibration) -> str:
    """Return the abstention threshold of a calibration, and what it promises."""
    asked = "" if found.at_least is None else f"{found.at_least:g} with confidence {found.confidence:g}"
    if found.limit is None:
        best = f"Accuracy {found.best_accuracy:g} can be promised, at coverage {found.best_coverage:.1%}."
        return f"none, as no threshold has accuracy {asked}. {best}"
    bound = f"; on new examples at least {asked}" if asked else ""
    return f"{found.by} above {found.limit:.4g}. Coverage {found.coverage:.1%}, accuracy {found.accuracy:.4f}{bound}."


def _epistemic(temperature: float | None) -> str:
    """Return the meaning of the epistemic part, given the posterior temperature (None if unknown)."""
    if temperature is None or temperature == 1:
        return "More training data would\n  reduce it, if the approximate posterior is as wide as the exact one."
    change, than = ("sharpened", "less") if temperature < 1 else ("widened", "more")
    posterior = f"The posterior is\n  {change} (posterior temperature {temperature:.3g})"
    return f"{posterior}: this is {than} than more training data would\n  remove."


def _exact(data: Mapping[str, Any]) -> list[str]:
    """Return what the model contains as it is, which an epsilon does not cover."""
    return [
        *(f"means and standard deviations of the {name}" for name in ("columns", "target") if data.get(name)),
        *(["names and shares of categories"] if data.get("encoding") else []),
        *(["ranges and features of examples, in `unusual`"] if data.get("unusual") else []),
    ]


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split())).replace("<", "&lt;")


def _cells(feature: Feature) -> str:
    """Return the cells of a column: its categories, or its unit."""
    levels = [_cell(x) for x in feature.levels[:_MOST_LEVELS]]
    more = [f"{len(feature.levels) - _MOST_LEVELS} more"] if len(feature.levels) > _MOST_LEVELS else []
    cells = ", ".join([*levels, *more]) if feature.is_text else _UNITS[feature.kind].format(unit=feature.unit)
    return cells + (f" in {_cell(feature.sign)}" if feature.sign else "")
