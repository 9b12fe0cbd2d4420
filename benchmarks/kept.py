"""Stored results of benchmarks, each with its machine and date; results that are not measured again stay."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Mapping
from typing import Any


def merge(path: pathlib.Path, found: Mapping[str, Mapping[str, Any]], where: Mapping[str, Any]) -> None:
    """Write what was measured by name, in the place of what was known of these names.

    Args:
      path: of the results, JSON.
      found: name -> its figures.
      where: `machine`, asked before it was put to work.
    """
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = {name: {**one, "measured": now, "machine": dict(where)} for name, one in found.items()}
    path.write_text(json.dumps({**before, **rows}, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Return the processor, how many cores there are for this process, and the load of the last minute."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """Return the commit of the working tree, with "-dirty" if its files differ from it."""
    described = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    done = subprocess.run(described, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
