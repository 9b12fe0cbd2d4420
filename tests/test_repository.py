"""Where files of the repository lie, and that what names them names files that exist."""

import re
from pathlib import Path

import pytest

from tfp_bfl import errors

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"requirements/[a-z0-9]+\.(?:in|lock|txt)")
FILES = [
    ".ci/run",
    "CONTRIBUTING.md",
    "Makefile",
    "docs/deployment.md",
    "docs/security.md",
    "docs/troubleshooting.md",
    "tests/environments.sh",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "requirements").iterdir()),
]


@pytest.mark.parametrize("name", FILES)
def test_named_lock_files_exist(name):
    named = set(NAMED.findall((ROOT / name).read_text()))
    assert {path for path in named if not (ROOT / path).is_file()} == set()
    assert named or name == "requirements/overrides.txt"


def test_the_error_of_a_missing_federation_names_a_lock():
    (path,) = NAMED.findall(errors.INSTALL_TFF_COMMAND)
    assert (ROOT / path).is_file()
