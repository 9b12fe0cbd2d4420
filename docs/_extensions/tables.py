"""Builds the tables and figures of the studies before Sphinx looks for pages."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent.parent


def _build(app: Sphinx) -> None:
    subprocess.run([sys.executable, "-m", "experiments.build_tables"], cwd=ROOT, check=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", _build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
