"""Class weights of the training loss, from the option and the clients' labels."""

import csv
from collections.abc import Callable
from typing import Any

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.data.names import canonical
from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.files.tables import to_csv

BALANCED = "balanced"


def as_text(value: object) -> Any:
    """Return a mapping from classes to weights as the text of the option; `canonical` text of other values."""
    if not isinstance(value, dict):
        return canonical(value) if isinstance(value, str) else value
    pairs = [f"{name}={check_number(weight, f'class_weight of {name}')}" for name, weight in value.items()]
    return canonical(to_csv([pairs])[:-1])


def likelihood(text: str, clients: Callable[[], Any]) -> dict[str, Any]:
    """Return the recipe's argument `likelihood` for class weights.

    Args:
      text: "balanced", or CLASS=WEIGHT pairs separated by commas; other classes have the weight 1.
      clients: gives the clients of the training, or None where their data are not at hand.
    """
    held = clients()
    if held is None:  # Nobody trains with the process, such as one that only reads a state.
        return {}
    return {"likelihood": "class_weighted:" + ",".join(f"{weight:.9g}" for weight in by_class(text, held).values())}


def by_class(text: str, clients: Any) -> dict[str, float]:
    """Return the weight of each class by its name."""
    names = [str(name) for name in clients.source.class_names]
    if text != BALANCED:
        return _by_name(text, names)
    weights = bfl.training.balanced_weights(clients.label_counts().sum(0))
    return dict(zip(names, map(float, weights)))


def _by_name(text: str, names: list[str]) -> dict[str, float]:
    weights, given = dict.fromkeys(names, 1.0), set[str]()
    for pair in next(csv.reader([text])):
        name, equals, number = pair.rpartition("=")
        name = canonical(name)
        if not equals or name not in weights:
            raise InvalidArgument(
                f"class_weight has {shown(pair)}, but must be {BALANCED}, or CLASS=WEIGHT of the classes "
                f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}."
            )
        try:
            weight = float(number)
        except ValueError:
            raise InvalidArgument(f"class_weight has {shown(pair)}, but {shown(number)} is no number.") from None
        if name in given:
            raise InvalidArgument(f"class_weight has the class {shown(name)} twice: give each class one weight.")
        given.add(name)
        weights[name] = check_number(weight, f"class_weight of {name}")
    return weights
