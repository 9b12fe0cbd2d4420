"""Bayesian federated learning on TensorFlow Probability, Keras and TensorFlow Federated.

    import tfp_bfl as bfl

Subpackages are imported when they are first used, so that the command line starts at once and what needs no TensorFlow
Federated works without it. In a program that imports this, `tf.keras` is Keras 2.
"""

import importlib
import os
import sys
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tfp_bfl.errors import MissingDependency


def _take_keras_2() -> None:
    """Select Keras 2. From TensorFlow 2.16 on, `tf.keras` is Keras 3 unless this is set when it is first used."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    if getattr(tensorflow.keras, "__version__", "2") >= "3":
        raise MissingDependency(
            "tfp_bfl needs Keras 2 and this program has taken Keras 3 from TensorFlow already: import tfp_bfl before "
            "tensorflow.keras, or set the environment variable TF_USE_LEGACY_KERAS=1."
        )
    # Imported before, TensorFlow would still take `from tensorflow.keras import ...` from Keras 3, and `tf.keras` too.
    if "tf_keras" in sys.modules:
        sys.modules.setdefault("tensorflow.keras", importlib.import_module("tf_keras.api._v2.keras"))


_take_keras_2()
# Before TensorFlow is imported: without a GPU it complains of CUDA at start-up, as errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if TYPE_CHECKING:
    import tfp_bfl.bench.reports
    import tfp_bfl.bench.runs
    import tfp_bfl.edges
    from tfp_bfl import (
        algorithms,
        clients,
        compression,
        contracts,
        data,
        engines,
        errors,
        evaluation,
        export,
        federated,
        layers,
        models,
        plots,
        posterior,
        privacy,
        rules,
        servers,
        training,
        weighting,
        weights,
    )
    from tfp_bfl.app.one_run.program import run
    from tfp_bfl.federated import simulate

    __version__: str
    interop: ModuleType
    load_runs = tfp_bfl.bench.runs.load_runs
    report = tfp_bfl.bench.reports.report

__all__ = [
    "__version__",
    "algorithms",
    "clients",
    "compression",
    "contracts",
    "data",
    "engines",
    "errors",
    "evaluation",
    "export",
    "federated",
    "glm",
    "interop",
    "layers",
    "load_runs",
    "models",
    "plots",
    "posterior",
    "privacy",
    "report",
    "rules",
    "run",
    "servers",
    "simulate",
    "sites",
    "sklearn",
    "training",
    "weighting",
    "weights",
]


if not TYPE_CHECKING:  # Type checkers refuse names that are not there.

    def __getattr__(name: str) -> Any:
        if name == "simulate":
            return importlib.import_module("tfp_bfl.federated").simulate
        if name == "run":
            return importlib.import_module("tfp_bfl.app.one_run.program").run
        if name == "__version__":
            return metadata.version("tfp_bfl")
        edges = importlib.import_module("tfp_bfl.edges")
        if name in edges.PACKAGES:
            found = edges.package(name)
            return getattr(found, name, found)
        if name in __all__:
            return importlib.import_module(f"tfp_bfl.{name}")
        raise AttributeError(f"module 'tfp_bfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
