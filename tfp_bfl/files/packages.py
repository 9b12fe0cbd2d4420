"""Files of installed packages that are not imported: of packages that hold weights, no code runs."""

import importlib.util
import pathlib

from tfp_bfl.errors import MissingDependency


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
        raise MissingDependency(
            f"{what} needs the package {package}, which is not installed: pip install {options}{package}"
        )
    return path
