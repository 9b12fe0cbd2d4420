"""The engine that runs clients on a Ray cluster. Ray is imported when something here is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.engines.ray.runtime import RayRuntime, ray_runtime

_RUNTIME = dict.fromkeys(("RayRuntime", "check_installed", "ray_runtime"), "tfp_bfl.engines.ray.runtime")
export_later(__name__, {**_RUNTIME, "running": "tfp_bfl.engines.ray.cluster"})

__all__ = ["RayRuntime", "ray_runtime"]
