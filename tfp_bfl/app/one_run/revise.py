"""Runs with other clients: added, replaced or removed after the run, without any training."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, datasets
from tfp_bfl.app.one_run.records import MOST_SUMMARY_BYTES, config_with_code, in_columns, read_json
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.writing import begun

CLIENTS = "clients.npz"
Change = Callable[[Any], Any]
# Entries of a summary that hold for the run with other clients too.
_KEPT = ("trained", "temperature_by", "rounds")


def read_state(run: str | pathlib.Path) -> Any:
    """Return the clients that a run's folder holds, a `algorithms.held.Held`."""
    path = pathlib.Path(run) / CLIENTS
    if not path.is_file():
        raise InvalidArgument(
            f"{run} holds no clients: it must be the folder of a complete run of the algorithm fl_swag or "
            f"partitioned_vi, or of `tfp-bfl laplace` or `last-layer`, with {CLIENTS}."
        )
    return bfl.algorithms.held.Held.load(path)


def add(other: str | pathlib.Path, names: object, replace: bool) -> Change:
    """Return the change that takes clients of another run, all of them or those named."""
    taken = read_state(other)
    return lambda state: state.join(taken, names or None, replace)


def remove(names: Any) -> Change:
    """Return the change that leaves clients out, as if they had never taken part."""
    return lambda state: state.remove(*names)


def describe(state: Any) -> str:
    """Return a table of the clients: their examples and how much each one contributes, or how sure it is."""
    heading, numbers = state.settings.measured(state.rows)
    rows = [("client", "examples", heading)]
    rows += [(name, str(int(row.num_examples)), f"{x:.2g}") for (name, row), x in zip(state.rows.items(), numbers)]
    return in_columns(rows, str.rjust)


def revise(
    run: str | pathlib.Path,
    change: Change,
    output: str | pathlib.Path,
    code: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Write a run with other clients to a new folder, and return its summary; the old one stays as it is.

    The folder holds config.yaml, clients.npz, saved_model/ and summary.json, and can be revised again. `change` is of
    `add` or `remove`.
    """
    folder = new_folder(output)
    state = change(read_state(run))
    config = config_with_code(run, code)
    data = datasets.load(config)
    (summary,) = read_json(pathlib.Path(run) / "summary.json", "summary", MOST_SUMMARY_BYTES)
    return write(folder, config, data, state, **{name: summary[name] for name in _KEPT if summary.get(name)})


def new_folder(output: str | pathlib.Path) -> pathlib.Path:
    """Return the path of a folder that is still to be made."""
    folder = pathlib.Path(output)
    if os.path.lexists(folder):
        raise InvalidArgument(f"{folder} exists already: give --output a new folder, nothing is overwritten.")
    return folder


def write(folder: pathlib.Path, config: RunConfig, data: bfl.data.OwnData, state: Any, **more: Any) -> dict[str, Any]:
    """Write the folder of a server's clients: config.yaml, clients.npz, saved_model/ and summary.json.

    `more` are entries of the summary besides the scores on the test set, the clients' names and what the state states.
    """
    train, test = data.train, data.test
    model = bfl.weights.predictive_model(
        build.model_fn(config, test)(), state.pool(), _batch_norm_examples(config, data)
    )
    scores = build.scorer(config, test)(model, test.features, test.labels).metrics
    names, trained = list(state.rows), more.get("trained") or {}
    weights = resolve.weights_of(build.model_fn(config, test)())
    found = state.settings.found(state.rows, state.weights)
    if "noise_stddev" in found and train.target is not None:  # In the units of the label.
        found["noise_stddev"] *= train.target.scale
    own = {name: x for name, x in {**found, **more}.items() if name in ("temperature", "temperature_by")}
    if own:
        exact = "noise_stddev" in found
        weights_are = "with the exact posterior of the last layer" if exact else "with Laplace's posterior"
        own["weights"] = f"point weights {weights_are}"
    settings = {**resolve.stated(config, weights, trained), **own}
    summary = {**scores, **found, **more, "method": resolve.method(settings), "clients": names}
    info = build.export_info(config, train, scores, weights, trained, own)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} can't be made ({error.strerror}): give --output another folder.") from None
    with begun(folder, remove=True):
        (folder / "config.yaml").write_text(config.record(), encoding="utf-8")
        state.save(folder / CLIENTS)
        # Who left has left the card too.
        bfl.export.save(model, folder / "saved_model", info._replace(data={**(info.data or {}), "clients": names}))
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _batch_norm_examples(config: RunConfig, data: bfl.data.OwnData) -> Any:
    if config.algorithm != "fl_swag" or not config.pretrain_share or config.last_layer:
        return None
    return build.batch_norm_examples(config, datasets.shares(config, data.train, data.clients).server)
