"""Models as files that need nothing but TensorFlow to run."""

from tfp_bfl.export.loading import load
from tfp_bfl.export.saved_model import save

__all__ = ["load", "save"]
