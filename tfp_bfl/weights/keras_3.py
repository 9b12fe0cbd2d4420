"""Models of Keras 3, whose weights this package does not read."""

from __future__ import annotations

import sys
from typing import Any

from tfp_bfl.errors import InvalidArgument


def is_keras_3(model: object) -> bool:
    """Return whether this is a model of Keras 3; False where Keras 3 has not been imported."""
    keras: Any = sys.modules.get("keras")
    version = str(getattr(keras, "__version__", "0")).partition(".")[0]
    return version.isdigit() and int(version) >= 3 and isinstance(model, keras.Model)


def check_keras_2(model: Any) -> None:
    """Check that this is no model of Keras 3.

    Raises:
      InvalidArgument: it is one.
    """
    if is_keras_3(model):
        raise InvalidArgument(
            f"The model {model.name!r} is a model of Keras 3: give bfl.models.from_keras_3(model), or what simulate "
            "returned for it."
        )
