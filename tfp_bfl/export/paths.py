"""Files and folders of exported models: where one is, and where a new one may be written. No TensorFlow is needed."""

import os
import pathlib
from typing import Any

from tfp_bfl import files
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import Path

# The file of a SavedModel that holds its graph.
GRAPH = "saved_model.pb"


def find(run: Path) -> pathlib.Path:
    """Return the folder of the SavedModel of a run, or of one that is given itself."""
    try:
        folder = pathlib.Path(run)
    except TypeError:
        raise InvalidArgument(f"{shown(run)} is not a path: give the folder of a run or of a SavedModel.") from None
    exported = next((f for f in (folder / "saved_model", folder) if (f / GRAPH).is_file()), None)
    if exported:
        return exported
    name = files.name(run)
    if (folder / "config.yaml").is_file():
        raise InvalidArgument(f"The run in {name} is not complete and has no model yet: continue it with --resume.")
    raise InvalidArgument(f"{name} is neither the folder of a complete run nor a SavedModel of this library.")


def new_folder(path: Any) -> pathlib.Path:
    """Return the path of a folder for a SavedModel, which does not exist or is empty."""
    try:
        folder = pathlib.Path(path)
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (TypeError, ValueError):
        raise InvalidArgument(f"{shown(path)} is not a path: give a new folder for the SavedModel.") from None
    if taken:
        raise InvalidArgument(f"{files.name(path)} exists already: choose a new folder for the SavedModel.")
    return folder


def new_file(path: Any) -> pathlib.Path:
    """Return the path of a file for a model, which does not exist."""
    try:
        file = pathlib.Path(path)
        taken = os.path.lexists(file)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{shown(path)} is not a path: give a new file.") from None
    if taken:
        raise InvalidArgument(f"{files.name(path)} exists already: choose a new file for the model.")
    if not file.parent.is_dir():
        raise InvalidArgument(f"{files.name(path)} can't be written: there is no folder {files.name(file.parent)}.")
    return file
