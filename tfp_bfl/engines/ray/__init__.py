"""The engine that runs clients on a Ray cluster. Ray is imported when something here is first used."""

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.engines.ray.cluster import running  # noqa: F401
    from tfp_bfl.engines.ray.runtime import RayRuntime, check_installed, ray_runtime  # noqa: F401

export_later(__name__)

__all__ = ["RayRuntime", "ray_runtime"]
