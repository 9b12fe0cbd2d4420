"""Results that are kept: each with the machine that it was measured on, and when; the others stay as they were."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
from collections.abc import Mapping
from typing import Any


def merge(path: pathlib.Path, found: Mapping[str, Mapping[str, Any]], where: Mapping[str, Any]) -> None:
    """Writes what was measured by name, in the place of what was known of these names.

    Args:
      path: of the results, JSON.
      found: name -> its figures.
      where: `machine`, asked before it was put to work.
    """
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    rows = {name: {**one, "measured": now, "machine": dict(where)} for name, one in found.items()}
    path.write_text(json.dumps({**before, **rows}, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """The processor, how many cores there are for this process, and the load of the last minute."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }
