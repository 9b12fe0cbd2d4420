"""The method and the posterior of a trained model in a sentence, from the settings of its training."""

import math
from collections.abc import Mapping
from typing import Any

# Setting -> its name in a sentence.
_NAMES = {name: name.replace("_", " ") for name in ("rule", "inference", "optimizer", "learning_rate", "schedule")}
_NAMES |= {"kl": "KL scaling", "prior_stddev": "prior standard deviation"}
_WITHOUT_POSTERIOR = "there is no posterior over the weights, and temperature, KL, prior and noise are not used"


def temperature_of(settings: Mapping[str, Any] | None) -> float | None:
    """Return the posterior temperature in the settings of a training; None where they state none."""
    value: Any = (settings or {}).get("temperature")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value > 0 else None


def in_words(temperature: float, of_covariance: bool = False) -> str:
    """Return what a posterior temperature T means: 1 / T of each example, or T times the covariance."""
    if temperature == 1:
        return "temperature 1: the Bayesian posterior"
    if of_covariance:
        return f"posterior at temperature {temperature:.3g}: its covariance is {temperature:.3g} times the Bayesian one"
    times = 1 / temperature
    number = f"{times:,.0f}" if times >= 1000 else f"{times:.3g}"
    width = "sharper" if temperature < 1 else "wider"
    seen = f"as if each example had been seen {number} times"
    return f"posterior at temperature {temperature:.3g}, {width} than the Bayesian one: {seen}"


def statement(settings: Mapping[str, Any] | None) -> str:
    """Return the weights, the method and the posterior temperature in the settings of a training, without a full stop.

    Such as "Gaussian weights by variational: rule mean_precision_average, inference curvature, optimizer momentum,
    learning rate 0.03, schedule inverse, KL scaling total, prior standard deviation fan_in; posterior at temperature
    0.01, sharper than the Bayesian one: as if each example had been seen 100 times". What the settings do not state
    is left out; the temperature alone is stated where they state no weights.
    """
    settings = settings or {}
    weights, temperature = settings.get("weights"), temperature_of(settings)
    if not isinstance(weights, str):
        return "" if temperature is None else in_words(temperature)
    algorithm = settings.get("algorithm")
    text = f"{weights[:1].upper()}{weights[1:]}{f' by {_text(algorithm)}' if algorithm else ''}"
    parts = [f"{name} {_text(settings[key])}" for key, name in _NAMES.items() if settings.get(key) is not None]
    text += f": {', '.join(parts)}" if parts else ""
    if temperature is not None:
        return f"{text}; {in_words(temperature, weights.startswith('point weights with'))}"
    is_variational = algorithm in ("default", "variational")  # Which fit posteriors of Gaussian weights.
    return f"{text}; {_WITHOUT_POSTERIOR}" if is_variational and weights == "point weights" else text


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
