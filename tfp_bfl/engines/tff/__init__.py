"""The engine that runs rounds on TensorFlow Federated: the only package that imports TFF.

TFF is imported when something here is first used.
"""

import importlib.util
import sys
from typing import TYPE_CHECKING

from tfp_bfl.errors import missing_package
from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.engines.tff.context import Runtime, local_workers, remote_workers
    from tfp_bfl.engines.tff.engine import learning_process, running  # noqa: F401
    from tfp_bfl.engines.tff.installation import require_tff
    from tfp_bfl.engines.tff.workers import Tls

export_later(__name__)

__all__ = ["Runtime", "Tls", "local_workers", "remote_workers", "require_tff"]


def is_installed() -> bool:
    """Return whether TensorFlow Federated is installed; importing it may still fail."""
    return importlib.util.find_spec("tensorflow_federated") is not None


def process_type() -> type | None:
    """Return TFF's class of learning processes, if TFF has been imported."""
    tff = sys.modules.get("tensorflow_federated")
    return getattr(getattr(getattr(tff, "learning", None), "templates", None), "LearningProcess", None)


def check_installed() -> None:
    """Raise MissingDependency where TensorFlow Federated is not installed."""
    if not is_installed():
        raise missing_package("tensorflow_federated")
