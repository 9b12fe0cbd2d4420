"""Models as files that need nothing but TensorFlow, or TensorFlow Lite, to run."""

from tfp_bfl.export.info import Calibration, Info, calibration_of, columns_of, target_of
from tfp_bfl.export.loading import load, read_info
from tfp_bfl.export.saved_model import find, save
from tfp_bfl.export.statement import statement
from tfp_bfl.export.tflite import save_tflite

__all__ = [
    "Calibration",
    "Info",
    "calibration_of",
    "columns_of",
    "find",
    "load",
    "read_info",
    "save",
    "save_tflite",
    "statement",
    "target_of",
]
