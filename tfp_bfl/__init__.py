"""Bayesian federated learning on TensorFlow Probability, Keras and TensorFlow Federated.

    import tfp_bfl as bfl

Subpackages are imported when they are first used, so that the command line starts at once and what needs no TensorFlow
Federated works without it.
"""

import importlib
import os
from importlib import metadata
from typing import TYPE_CHECKING, Any

# Before TensorFlow is imported: without a GPU it complains of CUDA at start-up, as errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if TYPE_CHECKING:
    from tfp_bfl import (
        algorithms,
        clients,
        data,
        errors,
        evaluation,
        export,
        federated,
        layers,
        models,
        plots,
        posterior,
        rules,
        servers,
        weighting,
    )
    from tfp_bfl.federated import simulate

__all__ = [
    "__version__",
    "algorithms",
    "clients",
    "data",
    "errors",
    "evaluation",
    "export",
    "federated",
    "layers",
    "models",
    "plots",
    "posterior",
    "rules",
    "servers",
    "simulate",
    "weighting",
]


def __getattr__(name: str) -> Any:
    if name == "simulate":
        return importlib.import_module("tfp_bfl.federated").simulate
    if name == "__version__":
        return metadata.version("tfp_bfl")
    if name in __all__:
        from tfp_bfl.errors import check_python

        if name != "errors":
            check_python()
        return importlib.import_module(f"tfp_bfl.{name}")
    raise AttributeError(f"module 'tfp_bfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
