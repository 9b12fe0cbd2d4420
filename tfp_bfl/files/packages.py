"""Installed packages: whether one is there, and files of those that are not imported, as they hold weights alone."""

import importlib.util
import pathlib

from tfp_bfl.errors import MissingDependency


def check_installed(package: str, what: str, options: str = "") -> None:
    """Raise MissingDependency if a package is not installed; arguments are as of `file_of_package`."""
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        raise _missing(package, what, options)


def file_of_package(package: str, file: str, what: str, options: str = "") -> pathlib.Path:
    """Return the path of a file of a package.

    Args:
      package: as pip names it.
      file: its path in the package.
      what: needs it, in errors.
      options: of the command that installs it.

    Raises:
      MissingDependency: the package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec(package.replace("-", "_"))
    folders = list(spec.submodule_search_locations or ()) if spec else []
    path = pathlib.Path(folders[0]) / file if folders else None
    if path is None or not path.is_file():
        raise _missing(package, what, options)
    return path


def _missing(package: str, what: str, options: str) -> MissingDependency:
    return MissingDependency(
        f"{what} needs the package {package}, which is not installed: pip install {options}{package}"
    )
