"""Models as files that need nothing but TensorFlow, or TensorFlow Lite, to run.

Names are imported when they are first used: `find` refuses a folder without TensorFlow.
"""

from typing import TYPE_CHECKING

from tfp_bfl.export.paths import find
from tfp_bfl.export.statement import statement
from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.export.info import Calibration, Info, calibration_of, columns_of, features_of, target_of
    from tfp_bfl.export.loading import load, read_info
    from tfp_bfl.export.saved_model import save
    from tfp_bfl.export.tflite import save_tflite

export_later(__name__)

__all__ = [
    "Calibration",
    "Info",
    "calibration_of",
    "columns_of",
    "features_of",
    "find",
    "load",
    "read_info",
    "save",
    "save_tflite",
    "statement",
    "target_of",
]
