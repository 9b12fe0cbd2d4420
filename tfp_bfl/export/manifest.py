"""The checksums of a SavedModel's files, in a file that `sha256sum --check sha256sums.txt` reads as well."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Sequence

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.export import info, model_card
from tfp_bfl.export.paths import GRAPH
from tfp_bfl.files import digest, read_regular

MANIFEST = "sha256sums.txt"
INDEX = "variables/variables.index"
VALUES = "variables/variables.data-00000-of-00001"
INFO = f"assets/{info.NAME}"
# Just these: TensorFlow would also read other assets, debug information and other forms of the graph.
FILES = (GRAPH, "fingerprint.pb", INDEX, VALUES, INFO, model_card.NAME)
_FOLDERS = ("assets", "variables")
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
_MOST_BYTES = 4096


def write_manifest(folder: pathlib.Path) -> None:
    """Write the checksums of all files in `folder`."""
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    lines = [f"{digest(folder / name)}  {name}\n" for name in sorted(names - {MANIFEST})]
    (folder / MANIFEST).write_text("".join(lines), encoding="ascii")


def read_manifest(folder: pathlib.Path) -> dict[str, str]:
    """Return the checksums that the manifest gives, by file."""
    files = sorted(_walk(folder))
    if GRAPH not in files:
        raise InvalidArgument(f"it has no {GRAPH}")
    if MANIFEST not in files:
        raise InvalidArgument(f"it has no checksums, {MANIFEST}")
    if files != sorted((*FILES, MANIFEST)):
        raise InvalidArgument(f"its files must be {', '.join((*FILES, MANIFEST))}, each once and no others")
    text = read_regular(folder / MANIFEST, "file of checksums", _MOST_BYTES).decode("latin-1")
    lines = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    entries = [(line[2], line[1]) for line in lines if line]
    if not text.endswith("\n") or len(entries) < len(lines) or sorted(n for n, _ in entries) != sorted(FILES):
        raise InvalidArgument(f"its {MANIFEST} must have one line of checksum and name for each file")
    return dict(entries)


def check_digest(folder: pathlib.Path, name: str, wanted: str) -> None:
    """Raise InvalidArgument unless a file has this checksum."""
    if digest(folder / name) != wanted:
        raise InvalidArgument(f"{name} is not the file that was saved, by its checksum")


def _walk(folder: pathlib.Path) -> Sequence[str]:
    """Return names of all that is in a folder but for the two folders of an export; links are not followed."""
    with os.scandir(folder) as entries:
        names = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.name in _FOLDERS:
                names += [f"{entry.name}/{inside}" for inside in os.listdir(entry.path)]
            else:
                names.append(entry.name)
    return [name for name in names if not (folder / name).is_symlink()] + [
        f"{name} (a link)" for name in names if (folder / name).is_symlink()
    ]
