"""The model card: what an exported model is, for those who will use it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Optional

from tfp_bfl.export.info import Info, calibration_of, columns_of, target_of
from tfp_bfl.export.statement import statement, temperature_of

NAME = "model_card.md"
# What Markdown makes links, pictures, code, headings, lists, tables or emphasis of.
_MARKS = re.compile(r"[\\`*\[\]!#|~]|:(?=//)|(?<=www)\.")

# Of the data, what is told elsewhere.
_ASIDE = ("metrics_on", "columns", "target")

_CARD = """# {name}

{what} It takes examples of shape {shape} and {tells}; it has {num_weights:,} numbers. Written by tfp_bfl {tfp_bfl}
with TensorFlow {tensorflow}. What is below is also in `assets/info.json`, for programs.

## Trained on

{data}

## Training

{configuration}

## Metrics

{metrics}

## Calibration

{calibration}

{answers}"""


_CLASSES = """## Classes

{class_names}

## What the uncertainty means

- `probabilities`: the mean over S weight samples, p = (1/S) sum_s p_s.
- `entropy`: of p, divided by log C: 0 is certain, 1 is uniform. `abstain` compares this one with its limit.
- `aleatoric`: (1/S) sum_s sum_c p_sc (1 - p_sc), what each weight sample leaves open.
- `epistemic`: (1/S) sum_s sum_c (p_sc - p_c)^2, what weight samples disagree by. {epistemic}
  It is zero for one sample{zero}. The two add up to 1 - sum_c p_c^2.

## Limits

- It knows the classes above and no others: something else is still given one of them. Nothing guarantees that its
  uncertainty is high then; try it on such images first.
- Metrics hold for data like those they were measured on, its calibration too.
- More samples make an answer steadier, by 1 / sqrt(S), and cost a pass each.
- Whoever has the model can test whether an example was among its training data.

## How to call

```python
import tensorflow as tf

model = tf.saved_model.load("FOLDER")
model.predict(images)  # 20 samples, seed 0: label, probabilities, entropy, aleatoric, epistemic
model.predict(images, num_samples=100, seed=1)
model.mean(images)     # one pass at the posterior's mean
model.sample(images, num_samples=20, seed=0)   # probabilities [S, B, C]
# As predict; label is -1 where the entropy exceeds 0.5.
model.abstain(images, num_samples=20, seed=0, max_uncertainty=0.5)
```

`images` is [B, {sizes}]: {types}.
The same seed gives the same answer. Each function is a serving signature as well{signatures}.
"""

_NUMBERS = """## What the uncertainty means

- It predicts {target}, in its own units: a mixture of one Gaussian a weight sample, N(m_s, v_s).
- `mean`: (1/S) sum_s m_s. `stddev`: of the mixture. `low`, `high`: its central 90 % interval. `abstain` compares
  `stddev` with its limit.
- `aleatoric`: (1/S) sum_s v_s, what each weight sample leaves open.
- `epistemic`: (1/S) sum_s (m_s - mean)^2, what weight samples disagree by. {epistemic}
  It is zero for one sample{zero}. The two add up to stddev^2.

## Limits

- Nothing guarantees that its intervals hold, or its uncertainty is high, away from the data it was trained on; the
  metric `coverage` says how many labels of the test set the 90 % intervals held.
- More samples make an answer steadier, by 1 / sqrt(S), and cost a pass each.
- Whoever has the model can test whether an example was among its training data.

## How to call

```python
import tensorflow as tf

model = tf.saved_model.load("FOLDER")
model.predict(images)  # 20 samples, seed 0: mean, stddev, low, high, aleatoric, epistemic
model.predict(images, num_samples=100, seed=1)
model.mean(images)     # one pass at the posterior's mean: mean, stddev
model.sample(images, num_samples=20, seed=0)   # mean, stddev [S, B]
# As predict; mean is NaN where the standard deviation exceeds 1.
model.abstain(images, num_samples=20, seed=0, max_uncertainty=1.0)
```

`images` is [B, {sizes}]: {types}.
The same seed gives the same answer. Each function is a serving signature as well{signatures}.
"""


def card(info: Info) -> str:
    """Return the text of the card; `info.model` is what `info.describe` gives."""
    facts, data = dict(info.model or {}), dict(info.data or {})
    is_image = len(facts["input_shape"]) == 3
    target = target_of(info)
    answers = (_CLASSES if target is None else _NUMBERS).format(
        target=_cell(target[0]) if target else "",
        class_names=_list(info.class_names),
        epistemic=_epistemic(temperature_of(info.configuration)),
        zero="" if facts["stochastic"] else ", and for this model always",
        sizes=", ".join(map(str, facts["input_shape"])),
        types=(
            "raw pixels as uint8, or floats in [0, 1]; they are scaled inside"
            if is_image
            else "the columns above, in that order; they are standardised inside"
            if data.get("columns")
            else "floats, as trained on"
        ),
        signatures=", for bytes with `_uint8` at the end of its name" if is_image else "",
    )
    what = "A classifier that says how sure it is." if target is None else "A regression that says how sure it is."
    kind = (
        "Its weights are draws from a posterior."
        if facts["stochastic"]
        else "Its weights are numbers (point weights), not a distribution: it has no epistemic uncertainty."
    )
    return _CARD.format(
        name=facts["name"],
        what=f"{what} {kind}{_whose(data)}",
        shape=facts["input_shape"],
        tells=f"predicts {_cell(target[0])}" if target else f"tells {facts['num_classes']} classes apart",
        num_weights=facts["num_weights"],
        **facts["versions"],
        data=_table({name: x for name, x in data.items() if name not in _ASIDE}, "data")
        + (f"\n\nColumns: {', '.join(_cell(name) for name, _, _ in columns_of(info))}." if data.get("columns") else ""),
        configuration=_method(info.configuration) + _table(_renamed(info.configuration), "option"),
        metrics=_measured_on(data) + _table(info.metrics, "metric") + _outside(info.metrics, data),
        calibration=_calibration(info),
        answers=answers,
    )


def _calibration(info: Info) -> str:
    result = calibration_of(info)
    if result is None:
        return "None: no limit was chosen on held-out examples (`tfp-bfl calibrate`)."
    sure = (
        ""
        if result.at_least is None
        else (f", and on new ones like them at least {result.at_least:g} with confidence {result.confidence:g}")
    )
    return (
        f"By {result.number:,} held-out examples, on which nobody trained, with {result.num_samples} weight samples. "
        "`tfp-bfl predict` uses it; the functions below do not: they give probabilities at softmax temperature 1.\n\n"
        f"- Softmax temperature {result.temperature:.3g}: probabilities are softmax(log p / T).\n"
        f"- Abstain where the {result.by} is above {result.limit:.4g}: {result.coverage:.1%} of the held-out examples are "
        f"below, and {result.accuracy:.4f} of those are right{sure}.\n"
        f"- The classes of probability {result.set_limit:.4g} or more, and the likeliest, hold the label of at least "
        f"{result.set_coverage:.0%} of examples like those."
    )


def _method(configuration: Optional[Mapping[str, Any]]) -> str:
    found = statement(configuration)
    return f"{_cell(found)}.\n\n" if found else ""


def _renamed(configuration: Optional[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:
    """Return the options with the posterior temperature by its full name: a calibration has another temperature."""
    if configuration is None:
        return None
    return {"posterior temperature" if name == "temperature" else name: x for name, x in configuration.items()}


def _epistemic(temperature: Optional[float]) -> str:
    """Return what the epistemic part stands for, given the posterior temperature; None if that is unknown."""
    if temperature is None or temperature == 1:
        return (
            "This is what more training\n  data would remove, as far as the approximate posterior is as wide as the "
            "exact one."
        )
    change, than = ("sharpened", "less") if temperature < 1 else ("widened", "more")
    return (
        f"The posterior is\n  {change} on purpose (posterior temperature {temperature:g}), so that this is {than} than "
        "what more\n  training data would remove."
    )


def _whose(data: Mapping[str, Any]) -> str:
    if "client" not in data:
        return ""
    trained = "" if data.get("client_in_training") else ", who was never in training"
    return f" It is the own model of client {_cell(data['client'])} of a federation{trained}."


def _measured_on(data: Mapping[str, Any]) -> str:
    return f"On the split {_cell(data['metrics_on'])}.\n\n" if data.get("metrics_on") else ""


def _outside(metrics: Optional[Mapping[str, Any]], data: Mapping[str, Any]) -> str:
    """Return what an epsilon among the metrics does not cover."""
    if not {"epsilon", "example_epsilon"} & set(metrics or {}):
        return ""
    exact = [name for name in ("columns", "target") if data.get(name)]
    named = (
        f" The means and standard deviations of the {' and of the '.join(exact)}, which the model holds, are exact: "
        "they reveal more of a client or an example than epsilon says."
        if exact
        else ""
    )
    return (
        "\n\nThe guarantee of differential privacy covers the weights of the model. Metrics, numbers of clients and "
        f"examples, and classes are outside it.{named}"
    )


def _table(values: Optional[Mapping[str, Any]], title: str) -> str:
    if not values:
        return "Unknown: whoever exported the model did not say."
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items() if value is not None]
    return "\n".join([f"| {title} | value |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split())).replace("<", "&lt;")


def _list(names: Optional[Any]) -> str:
    if not names:
        return "Unknown: whoever exported the model did not name them."
    if list(names) == [str(number) for number in range(len(names))]:
        return f"The numbers 0 to {len(names) - 1}."
    return "\n".join(f"{number}. {_cell(name)}" for number, name in enumerate(names))
