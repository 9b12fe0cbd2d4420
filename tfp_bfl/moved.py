"""Modules by the names that they had before: importing an old name gives the module, with a DeprecationWarning.

Delete this file with the next release.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence

# Old package, new package -> the modules that moved, NEW=OLD where their own name changed. A module that is named as a
# function of its old package (models.functional_call) is left out: there the name is the function's.
_MOVES = {
    ("models", "weights"): "change exchange flat head numbers personal_variances posterior_model weight_vectors",
    ("clients", "training"): "adam batches curvature example_privacy likelihoods mode natural optimizers potential "
    "schedules target trainer updates inference",
    ("clients", "baselines"): "exact langevin",
    ("rules", "contrib.kernel"): "posterior=kernel mean_shift bandwidths plug_in",
    ("federated", "engines"): "tff",
    ("federated", "engines.ray"): "cluster",
    ("federated", "parties"): "arrays masks party=parties sealed",
    ("data", "parties"): "schema=parties",
    ("app", "parties"): "deployment",
    ("app", "parties.deployment"): "cli=cli_deploy",
    ("app", "app.options"): "config command=cli_options own_model resolve",
    ("app", "app.one_run"): "build run run_folder program progress predict calibrate laplace revise client_model "
    "client_scores ensembles records=report command=cli_models",
    ("app", "app.many_runs"): "cells groups listing sweep command=cli_many",
}
MOVED = {
    f"tfp_bfl.{old}.{names[-1]}": f"tfp_bfl.{new}.{names[0]}"
    for (old, new), modules in _MOVES.items()
    for names in (name.split("=") for name in modules.split())
}
MOVED["tfp_bfl.models.weights"] = "tfp_bfl.weights.model_weights"


class _OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if _new_name(fullname) else None

    def exec_module(self, module: types.ModuleType) -> None:
        old = module.__name__
        new = _new_name(old)
        assert new is not None
        warnings.warn(f"{old} is now {new}: import that.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def _new_name(name: str) -> str | None:
    """Return the name of a moved module, or of a module in a moved package; None for one that has not moved."""
    parts = name.split(".")
    for count in range(len(parts), 2, -1):
        if (new := MOVED.get(".".join(parts[:count]))) is not None:
            return ".".join([new, *parts[count:]])
    return None


def keep_old_names() -> None:
    """Make the old names importable."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())  # Before a moved package finds modules in its folder by their old names.
