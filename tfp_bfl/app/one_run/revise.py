"""Runs with other clients: added, replaced or removed after the run, without any training."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, datasets
from tfp_bfl.app.one_run.records import MOST_SUMMARY_BYTES, config_with_code, read_json
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import Later
from tfp_bfl.files.writing import begun

if TYPE_CHECKING:
    from tfp_bfl.servers import curvatures, factors, online

    State = online.OnlineState | factors.Factors | curvatures.Curvatures
else:
    curvatures, factors, online = (Later(f"tfp_bfl.servers.{name}") for name in ("curvatures", "factors", "online"))

STATE = "server_state.npz"
SITES = "sites.npz"
CURVATURES = "curvatures.npz"
_MODULES: dict[str, Any] = {STATE: online, SITES: factors, CURVATURES: curvatures}
Change = Callable[[Any], Any]


def clients_file(run: str | pathlib.Path) -> pathlib.Path:
    """Return the file of a run's folder that holds its clients.

    Raises:
      InvalidArgument: there is none.
    """
    for file in _MODULES:
        if (pathlib.Path(run) / file).is_file():
            return pathlib.Path(run) / file
    raise InvalidArgument(
        f"{run} holds no clients: it must be the folder of a complete run of the algorithm fl_swag or partitioned_vi, "
        f"or of `tfp-bfl laplace` or `last-layer`, with {STATE}, {SITES} or {CURVATURES}."
    )


def read_state(run: str | pathlib.Path) -> Any:
    """Return the clients that a run's folder holds.

    Raises:
      InvalidArgument: it is not the folder of a complete run with separate clients, or its file is damaged.
    """
    path = clients_file(run)
    return _MODULES[path.name].load(path)


def add(run: str | pathlib.Path, other: str | pathlib.Path, names: object, replace: bool) -> Change:
    """Return the change that takes clients of another run, all of them or those named.

    Raises:
      InvalidArgument: the runs are of two algorithms, or as `read_state`.
    """
    target, others = clients_file(run), clients_file(other)
    if target.name != others.name:
        raise InvalidArgument(f"{other} is a run of another algorithm than {run}: their clients do not go together.")
    taken = read_state(other)
    return lambda state: _MODULES[target.name].join(state, taken, names or None, replace)


def remove(run: str | pathlib.Path, names: Any) -> Change:
    """Return the change that leaves clients out, as if they had never taken part."""
    return lambda state: _MODULES[clients_file(run).name].remove(state, *names)


def describe(state: State) -> str:
    """Return a table of the clients: their examples and how sure they are."""
    if isinstance(state, factors.Factors):
        rows = [("client", "examples", "share of the precision")]
        total = sum(float(np.sum(1 / np.float64(v))) for v in state.weights.posterior.variance)
        for name, number, site in zip(state.names, state.num_examples, state.sites):
            rows.append((name, str(number), f"{np.sum(np.float64(site.precision)) / total:.2g}"))
    elif isinstance(state, curvatures.Curvatures):
        rows = [("client", "examples", "share of the curvature")]
        traces = {name: _trace(part.curvature) for name, part in state.clients.items()}
        for name, part in state.clients.items():
            rows.append((name, str(int(part.num_examples)), f"{traces[name] / sum(traces.values()):.2g}"))
    else:
        rows = [("client", "examples", "median sd")]
        for name, q in zip(state.product.names, state.product.posteriors):
            median = float(bfl.posterior.spread(bfl.posterior.marginals(q)).stddev_median)
            rows.append((name, str(state.num_examples[name]), f"{median:.2g}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows)


def revise(
    run: str | pathlib.Path,
    change: Change,
    output: str | pathlib.Path,
    code: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Write a run with other clients to a new folder, and return its summary; the old one stays as it is.

    The folder holds config.yaml, the file of the clients, saved_model/ and summary.json, and can be revised again.

    Args:
      run: the folder of a run of fl_swag or partitioned_vi, or of `tfp-bfl laplace`, or of one that was revised.
      change: the state -> that with other clients, as `add` and `remove` give it.
      output: a new folder.
      code: FILE.py:FUNCTION of a run that names code, by option, named again as the code is run.

    Raises:
      InvalidArgument: `run` is no such folder, `output` exists or can't be made, or the change is refused. Then nothing
        is written.
    """
    folder = new_folder(output)
    file = clients_file(run).name
    state = change(read_state(run))
    config = config_with_code(run, code)
    data = datasets.load(config)
    (summary,) = read_json(pathlib.Path(run) / "summary.json", "summary", MOST_SUMMARY_BYTES)
    more = {"trained": summary["trained"]} if summary.get("trained") else {}
    if file == STATE:
        pooled = online.pool(state, config.diagonal_only, config.between_clients)
        return write(folder, config, data, file, state, pooled, _batch_norm_examples(config, data), **more)
    return write(folder, config, data, file, state, _MODULES[file].pool(state), **more)


def new_folder(output: str | pathlib.Path) -> pathlib.Path:
    """Return the path of a folder that is still to be made.

    Raises:
      InvalidArgument: it exists.
    """
    folder = pathlib.Path(output)
    if os.path.lexists(folder):
        raise InvalidArgument(f"{folder} exists already: give --output a new folder, nothing is overwritten.")
    return folder


def write(
    folder: pathlib.Path,
    config: RunConfig,
    data: bfl.data.OwnData,
    file: str,
    state: State,
    pooled: bfl.models.ModelWeights,
    batch_norm_examples: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Write the folder of a state of clients: config.yaml, the state in `file`, saved_model/ and summary.json.

    Args:
      folder: as `new_folder` gives it.
      config, data: of the run.
      file: the name of the state's file.
      state: of the clients.
      pooled: the weights that predict.
      batch_norm_examples: of `models.predictive_model`.
      **more: entries of the summary besides the scores on the test set and the clients' names.

    Returns:
      The summary.

    Raises:
      InvalidArgument: the folder can't be made.
      OSError: the disk is full; nothing is left of the folder then.
    """
    train, test = data.train, data.test
    model = bfl.models.predictive_model(build.model_fn(config, test)(), pooled, batch_norm_examples)
    scores = build.scorer(config, test)(model, test.features, test.labels).metrics
    names = list(state.product.names if isinstance(state, online.OnlineState) else _names(state))
    weights = resolve.weights_of(build.model_fn(config, test)())
    laplace, trained = {}, more.get("trained") or {}
    if isinstance(state, curvatures.Curvatures):
        head = state.settings.head
        exact = "with the exact posterior of the last layer"
        weights_are = exact if head and head.gaussian else "with Laplace's posterior"
        laplace = {"weights": f"point weights {weights_are}", "temperature": state.settings.temperature}
        laplace |= {"temperature_by": more["temperature_by"]} if "temperature_by" in more else {}
    settings = {**resolve.stated(config, weights, trained), **laplace}
    summary = {**scores, **more, "method": resolve.method(settings), "clients": names}
    info = build.export_info(config, train, scores, weights, trained, laplace)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} can't be made ({error.strerror}): give --output another folder.") from None
    with begun(folder, remove=True):
        (folder / "config.yaml").write_text(config.record(), encoding="utf-8")
        _MODULES[file].save(state, folder / file)
        # Who left has left the card too.
        bfl.export.save(model, folder / "saved_model", info._replace(data={**(info.data or {}), "clients": names}))
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _names(state: factors.Factors | curvatures.Curvatures) -> Any:
    return state.names if isinstance(state, factors.Factors) else state.clients


def _trace(curvature: Any) -> float:
    """Return the trace of a matrix, or of its diagonal in leaves."""
    return float(sum(np.sum(x) for x in curvature) if isinstance(curvature, tuple) else np.trace(curvature))


def _batch_norm_examples(config: RunConfig, data: bfl.data.OwnData) -> Any:
    if not config.pretrain_share or config.last_layer:
        return None
    return build.batch_norm_examples(config, datasets.shares(config, data.train, data.clients).server)
