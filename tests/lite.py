"""Run exported files for devices by LiteRT's interpreter where it is installed, else by TensorFlow's own."""

import importlib.util
import pathlib
from typing import Any


def lite_interpreter(path: str | pathlib.Path) -> Any:
    """Return an interpreter of the file; TensorFlow 2.21 deprecates its own."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        import tensorflow as tf

        return tf.lite.Interpreter(str(path))
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(str(path))
