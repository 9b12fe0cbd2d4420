"""The model card: description, metrics, uncertainty, limits and usage of an exported model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfp_bfl.export.info import Info, calibration_of, columns_of, features_of, offsets_of, target_of
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

_CARD = """# {name}

{what} Input: examples of shape {shape}. Output: {output}. It has {num_weights:,} parameters. Written by
tfp_bfl {tfp_bfl} with TensorFlow {tensorflow}. `assets/info.json` has the contents of this card for programs.

## Training data

{data}

## Training

{configuration}

## Metrics

{metrics}

## Calibration

{calibration}

{answers}"""


_ANSWERS = """{classes}## What the uncertainty means

{meaning} {epistemic}
  It is zero for one sample{zero}. {total}

## Limits

{limits}
- The Monte Carlo error falls by 1 / sqrt(S); each sample costs one forward pass.
- Membership inference is possible: a user of the model can test whether an example was in the training data.

## How to call

```python
import tensorflow as tf

model = tf.saved_model.load("FOLDER")
model.predict(images)  # 20 samples, seed 0: {outputs}
model.predict(images, num_samples=100, seed=1)
model.mean(images)     # one pass at the posterior's mean{at_mean}
model.sample(images, num_samples=20, seed=0)   # {sampled}
# As predict; {abstains}.
model.abstain(images, num_samples=20, seed=0, max_uncertainty={limit})
```

`images` is [B, {sizes}]: {types}.
The same seed gives the same prediction. Each function is also a serving signature{signatures}.
"""

# The parts of the answers that depend on what a model predicts.
_CLASSES = {
    "meaning": """\
- `probabilities`: the mean over S weight samples, p = (1/S) sum_s p_s.
- `entropy`: entropy of p divided by log C; 0 is certain, 1 is uniform. `abstain` compares it with a threshold.
- `aleatoric`: (1/S) sum_s sum_c p_sc (1 - p_sc), the mean variance within the weight samples.
- `epistemic`: (1/S) sum_s sum_c (p_sc - p_c)^2, the variance between the weight samples.""",
    "total": "Aleatoric and epistemic variance sum to 1 - sum_c p_c^2.",
    "limits": """\
- The model knows the classes above and no others: it assigns one of them to any input. Its uncertainty on such
  inputs is not guaranteed to be high; test it on out-of-distribution examples first.
- Metrics and calibration hold for data like the test data.""",
    "outputs": "label, probabilities, entropy, aleatoric, epistemic",
    "at_mean": "",
    "sampled": "probabilities [S, B, C]",
    "abstains": "label is -1 if the entropy exceeds 0.5",
    "limit": "0.5",
}
_NUMBERS = {
    "meaning": """\
- The prediction of {target}, in its units, is a mixture of Gaussians N(m_s, v_s), one for each weight sample.
- `mean`: (1/S) sum_s m_s. `stddev`: of the mixture. `low`, `high`: its central 90 % interval. `abstain` compares
  `stddev` with a threshold.
- `aleatoric`: (1/S) sum_s v_s, the mean variance within the weight samples.
- `epistemic`: (1/S) sum_s (m_s - mean)^2, the variance between the weight samples.""",
    "total": "Aleatoric and epistemic variance sum to stddev^2.",
    "limits": """\
- Coverage of the intervals and high uncertainty are not guaranteed on data unlike the training data. The metric
  `coverage` is the fraction of test labels inside the 90 % intervals.""",
    "outputs": "mean, stddev, low, high, aleatoric, epistemic",
    "at_mean": ": mean, stddev",
    "sampled": "mean, stddev [S, B]",
    "abstains": "mean is NaN if the standard deviation exceeds 1",
    "limit": "1.0",
}
_ROWS = """

These columns are encoded from rows of a table as they are:

{lines}

`model.predict_rows({{column: [B], ...}})`, and the signature `predict_rows`, accept them: text as
strings, `''` for an empty cell; numbers as float32, NaN for an empty cell. An empty cell becomes
the mean. A category that is not listed counts as rare, and as an empty cell where the column has
no rare categories."""
_TYPES = {
    "image": "raw pixels as uint8, or floats in [0, 1]; they are scaled inside",
    "encoding": "the columns of numbers above, in that order; they are standardised inside",
    "columns": "the columns above, in that order; they are standardised inside",
    "": "floats, as trained on",
}
_RESIZED = """. Photographs of other sizes
  are resized first, as in training: `tf.image.resize(photograph, [height, width], antialias=True)`,
  rounded to uint8; `tfp-bfl predict` does so"""


def card(info: Info) -> str:
    """Return the text of the card; `info.model` is what `info.describe` gives."""
    facts, data, target = dict(info.model or {}), dict(info.data or {}), target_of(info)
    is_image = len(facts["input_shape"]) == 3
    kind = "image" if is_image else next((name for name in ("encoding", "columns") if data.get(name)), "")
    parts = _CLASSES if target is None else {**_NUMBERS, "meaning": _NUMBERS["meaning"].format(target=_cell(target[0]))}
    answers = _ANSWERS.format(
        **parts,
        classes=f"## Classes\n\n{_list(info.class_names)}\n\n" if target is None else "",
        epistemic=_epistemic(temperature_of(info.configuration)),
        zero="" if facts["stochastic"] else ", and for this model always",
        sizes=", ".join(map(str, facts["input_shape"])),
        types=_TYPES[kind] + (_RESIZED if is_image and (info.configuration or {}).get("image_size") else ""),
        signatures=", for bytes with `_uint8` at the end of its name" if is_image else "",
    )
    what = f"A {'classifier' if target is None else 'regression model'} with predictive uncertainty."
    points = "It has point weights, not a distribution over weights: it has no epistemic uncertainty."
    weights = "Its weights are sampled from a posterior." if facts["stochastic"] else points
    named = ", ".join(_cell(name) for name, _, _ in columns_of(info))
    columns = f"\n\nColumns: {named}." if named else ""
    client = ""
    if "client" in data:
        trained = "" if data.get("client_in_training") else ", which was held out of training"
        client = f" It is the personal model of client {_cell(data['client'])} of a federation{trained}."
    found, note = statement(info.configuration), rounding(info)
    # A calibration has another temperature.
    full = {"temperature": "posterior temperature"}
    options = {full.get(name, name): x for name, x in (info.configuration or {}).items()}
    metrics = {label_of(name): x for name, x in (info.metrics or {}).items()}
    return _CARD.format(
        name=facts["name"],
        what=f"{what} {weights}{client}",
        shape=facts["input_shape"],
        output=_cell(target[0]) if target else f"{facts['num_classes']} classes",
        num_weights=facts["num_weights"],
        **facts["versions"],
        data=_table({name: x for name, x in data.items() if name not in _ASIDE}, "data")
        + columns
        + _rows(info)
        + (f"\n\n{_cell(note)}" if note else ""),
        configuration=(f"{_cell(found)}.\n\n" if found else "") + _table(options, "option"),
        metrics=(f"Split: {_cell(data['metrics_on'])}.\n\n" if data.get("metrics_on") else "")
        + _table(metrics, "metric")
        + _outside(info.metrics, data, info.calibration is not None),
        calibration=_calibration(info) + _unusual(data.get("unusual")),
        answers=answers,
    )


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


def _rows(info: Info) -> str:
    """Return which rows of a table the model accepts as they are; "" for a model of numbers."""
    features = features_of(info)
    if not features:
        return ""
    names = inputs_of(features)
    lines = ["| column | input of the signature | cells |", "|---|---|---|"]
    for feature in features:
        levels = [_cell(x) for x in feature.levels[:_MOST_LEVELS]]
        more = [f"{len(feature.levels) - _MOST_LEVELS} more"] if len(feature.levels) > _MOST_LEVELS else []
        cells = ", ".join([*levels, *more]) if feature.is_text else _UNITS[feature.kind].format(unit=feature.unit)
        cells += f" in {_cell(feature.sign)}" if feature.sign else ""
        lines.append(f"| {_cell(feature.name)} | `{names[feature.name].name}` | {cells} |")
    return _ROWS.format(lines="\n".join(lines))


def _calibration(info: Info) -> str:
    result = calibration_of(info)
    if result is None:
        return "None. Use `tfp-bfl calibrate` to fit an abstention threshold on held-out examples."
    asked = "" if result.at_least is None else f"{result.at_least:g} with confidence {result.confidence:g}"
    if result.limit is None:
        best = f"Accuracy {result.best_accuracy:g} can be promised, at coverage {result.best_coverage:.1%}."
        threshold = f"none, as no threshold has accuracy {asked}. {best}"
    else:
        found = f"Coverage {result.coverage:.1%}, accuracy {result.accuracy:.4f}"
        bound = f"; on new examples at least {asked}" if asked else ""
        threshold = f"{result.by} above {result.limit:.4g}. {found}{bound}."
    return (
        f"Fitted on {result.number:,} held-out examples with {result.num_samples} weight samples. `tfp-bfl predict` "
        "uses it. The functions below do not: their softmax temperature is 1.\n\n"
        f"- Softmax temperature {result.temperature:.3g}: probabilities are softmax(log p / T).\n"
        f"- Abstention threshold: {threshold}\n"
        f"- Prediction sets: the likeliest class and all classes of {result.set_score} {result.set_limit:.4g} or more. "
        f"They contain the label of at least {result.set_coverage:.0%} of examples." + _clients(result.clients or ())
    )


def _clients(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the clients' test rows; "" for no rows."""
    if not rows:
        return ""
    lines = ["| client | test rows | accuracy | coverage of sets | sets of the client from |", "|---|---|---|---|---|"]
    for row in rows[:_MOST_LEVELS]:
        numbers = (f"{row[name]:.3f}" if name in row else "" for name in ("accuracy", "coverage", "set_limit"))
        lines.append(f"| {_cell(row['client'])} | {row['n']} | {' | '.join(numbers)} |")
    return "\n\n" + "\n".join(lines)


def _unusual(stated: Mapping[str, Any] | None) -> str:
    """Return the meaning of the output `unusual`, if the model has it."""
    if stated is None:
        return ""
    return (
        "\n\n`unusual`, an output of mean, predict and abstain, exceeds 1 for examples unlike the training data: by "
        "the distance of the features below the last layer to those of the nearest class, or by a column outside its "
        f"range. Of examples like the {stated['number']:,} held-out ones at most {stated['rate']:.2%} exceed 1."
    )


def _epistemic(temperature: float | None) -> str:
    """Return the meaning of the epistemic part, given the posterior temperature (None if unknown)."""
    if temperature is None or temperature == 1:
        return "More training data would\n  reduce it, if the approximate posterior is as wide as the exact one."
    change, than = ("sharpened", "less") if temperature < 1 else ("widened", "more")
    posterior = f"The posterior is\n  {change} (posterior temperature {temperature:.3g})"
    return f"{posterior}: this is {than} than more training data would\n  remove."


def _outside(metrics: Mapping[str, Any] | None, data: Mapping[str, Any], calibrated: bool) -> str:
    """Return what an epsilon among the metrics does not cover."""
    if not {"epsilon", "example_epsilon"} & set(metrics or {}):
        return ""
    exact = [
        *(f"means and standard deviations of the {name}" for name in ("columns", "target") if data.get(name)),
        *(["names and shares of categories"] if data.get("encoding") else []),
        *(["ranges and features of examples, in `unusual`"] if data.get("unusual") else []),
    ]
    named = f" The model contains exact {'; '.join(exact)}." if exact else ""
    held_out = " So is the calibration, which follows from held-out examples." if calibrated else ""
    return (
        "\n\nThe guarantee of differential privacy covers the weights of the model. Metrics, baselines, class weights, "
        "numbers of clients and examples, classes and the checksum of the training data are outside it: they may "
        f"reveal more about a client or an example than epsilon states.{held_out}{named}"
    )


def _table(values: Mapping[str, Any] | None, title: str) -> str:
    if not values:
        return "Not recorded at export."
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items() if value is not None]
    return "\n".join([f"| {title} | value |", "|---|---|", *rows])


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split())).replace("<", "&lt;")


def _list(names: Any | None) -> str:
    if not names:
        return "Not recorded at export."
    if list(names) == [str(number) for number in range(len(names))]:
        return f"The numbers 0 to {len(names) - 1}."
    return "\n".join(f"{number}. {_cell(name)}" for number, name in enumerate(names))
