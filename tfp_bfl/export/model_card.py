"""The model card: description, metrics, uncertainty, limits and usage of an exported model, from a template."""

import functools
import json
import re
from typing import Any

import jinja2

from tfp_bfl.export.info import Info, calibration_of, columns_of, features_of, offsets_of, scores_of, target_of
from tfp_bfl.export.rows import inputs_of
from tfp_bfl.export.statement import statement, temperature_of
from tfp_bfl.labels import label_of

NAME = "model_card.md"
# What Markdown makes links, pictures, code, headings, lists, tables or emphasis of.
_MARKS = re.compile(r"[\\`*\[\]!#|~]|:(?=//)|(?<=www)\.")

# Keys of the data that have a section of their own.
_ASIDE = ("metrics_on", "columns", "encoding", "target", "unusual", "scores")

# Of a column that are listed, and of classes and clients.
_MOST_LEVELS = 30
# Of a row of a class or a client -> the heading.
_HEADS = {"class": "class", "client": "client", "n": "test rows", "examples": "test examples", "accuracy": "accuracy"}
_HEADS |= {name: name for name in ("recall", "precision", "sensitivity", "specificity")}
_HEADS |= {"rmse": "RMSE", "test_nll": "NLL", "coverage": "coverage", "set_limit": "sets of the client from"}


def card(info: Info) -> str:
    """Return the text of the card; `info.model` is what `info.describe` gives."""
    data, settings, classes = dict(info.data or {}), info.configuration or {}, list(info.class_names or ())
    features = features_of(info)
    # A calibration has another temperature.
    full = {"temperature": "posterior temperature"}
    return _template().render(
        model=info.model,
        data=data,
        stated={name: x for name, x in data.items() if name not in _ASIDE},
        target=target_of(info),
        columns=columns_of(info),
        features=features,
        inputs=inputs_of(features, (info.model or {})["input_shape"]),
        rounding=rounding(info),
        statement=statement(info.configuration),
        options={full.get(name, name): x for name, x in settings.items()},
        scores=info.metrics or {},
        metrics={label_of(name): x for name, x in (info.metrics or {}).items()},
        calibration=calibration_of(info),
        tables=[(what, *_table(rows[:_MOST_LEVELS])) for what, rows in scores_of(info).items()],
        most=_MOST_LEVELS,
        classes=classes,
        are_numbers=classes == [str(number) for number in range(len(classes))],
        temperature=temperature_of(info.configuration),
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
    templates.filters["cell"] = _cell
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


def _table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of rows with scores, in brackets the 95 % intervals of those that have one."""
    used = [name for name in _HEADS if any(name in row for row in rows)]
    form = lambda x: f"{x:.3f}" if isinstance(x, float) else _cell(x)
    ends = lambda row, name: [row[f"{name}_{end}"] for end in ("low", "high") if f"{name}_{end}" in row]
    interval = lambda row, name: f" [{', '.join(map(form, ends(row, name)))}]" if ends(row, name) else ""
    cell = lambda row, name: f"{form(row[name])}{interval(row, name)}" if name in row else ""
    return [_HEADS[name] for name in used], [[cell(row, name) for name in used] for row in rows]


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split())).replace("<", "&lt;")
