"""Runs with other clients: added, replaced or removed after the run, without any training."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, Union

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app import build, resolve
from tfp_bfl.app.config import RunConfig, make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.servers import factors, online

STATE = "server_state.npz"
SITES = "sites.npz"
_MODULES: dict[str, Any] = {STATE: online, SITES: factors}
State = Union[online.OnlineState, factors.Factors]
Change = Callable[[Any], Any]


def clients_file(run: Union[str, pathlib.Path]) -> pathlib.Path:
    """The file of a run's folder that holds its clients.

    Raises:
      InvalidArgument: there is none.
    """
    for file in _MODULES:
        if (pathlib.Path(run) / file).is_file():
            return pathlib.Path(run) / file
    raise InvalidArgument(
        f"{run} holds no clients: it must be the folder of a complete run of the algorithm fl_swag or partitioned_vi, "
        f"with {STATE} or {SITES}."
    )


def read_state(run: Union[str, pathlib.Path]) -> Any:
    """The clients that a run's folder holds.

    Raises:
      InvalidArgument: it is not the folder of a complete run whose clients can be told apart, or its file is damaged.
    """
    path = clients_file(run)
    return _MODULES[path.name].load(path)


def add(run: Union[str, pathlib.Path], other: Union[str, pathlib.Path], names: Any, replace: bool) -> Change:
    """The change that takes clients of another run, all of them or those named.

    Raises:
      InvalidArgument: the runs are of two algorithms, or as `read_state`.
    """
    own, others = clients_file(run), clients_file(other)
    if own.name != others.name:
        raise InvalidArgument(f"{other} is a run of another algorithm than {run}: their clients do not go together.")
    taken = read_state(other)
    return lambda state: _MODULES[own.name].join(state, taken, names or None, replace)


def remove(run: Union[str, pathlib.Path], names: Any) -> Change:
    """The change that leaves clients out, as if they had never taken part."""
    return lambda state: _MODULES[clients_file(run).name].remove(state, *names)


def describe(state: State) -> str:
    """A table of the clients: their examples and how sure they are."""
    if isinstance(state, factors.Factors):
        rows = [("client", "examples", "share of the precision")]
        total = sum(float(np.sum(1 / np.float64(v))) for v in state.weights.posterior.variance)
        for name, number, site in zip(state.names, state.num_examples, state.sites):
            rows.append((name, str(number), f"{np.sum(np.float64(site.precision)) / total:.2g}"))
    else:
        rows = [("client", "examples", "median sd")]
        for name, q in zip(state.product.names, state.product.posteriors):
            median = float(bfl.posterior.spread(bfl.posterior.marginals(q)).stddev_median)
            rows.append((name, str(state.num_examples[name]), f"{median:.2g}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows)


def revise(
    run: Union[str, pathlib.Path],
    change: Change,
    output: Union[str, pathlib.Path],
) -> dict[str, Any]:
    """Writes a run with other clients to a new folder, and returns its summary; the old one stays as it is.

    The folder holds config.yaml, the file of the clients, saved_model/ and summary.json, and can be revised again.

    Args:
      run: the folder of a run of fl_swag or partitioned_vi, or of one that was revised.
      change: the state -> that with other clients, as `add` and `remove` give it.
      output: a new folder.

    Raises:
      InvalidArgument: `run` is no such folder, `output` exists or can't be made, or the change is refused. Then nothing
        is written.
    """
    folder = pathlib.Path(output)
    if os.path.lexists(folder):
        raise InvalidArgument(f"{folder} exists already: give --output a new folder, nothing is overwritten.")
    file = clients_file(run).name
    state = change(read_state(run))
    config = make_config(pathlib.Path(run) / "config.yaml", {})
    data = build.load(config)
    train, test = data.train, data.test
    pooled = factors.pool(state) if file == SITES else online.pool(state, config.diagonal_only, config.between_clients)
    model = bfl.models.predictive_model(build.model_fn(config, test)(), pooled, _batch_norm_examples(config, data))
    scores = bfl.evaluation.evaluate(
        model, test.features, test.labels, num_samples=config.num_samples, seed=config.seed
    ).metrics
    names = list(state.names if file == SITES else state.product.names)
    weights = resolve.weights_of(build.model_fn(config, test)())
    settings = resolve.stated(config, test.target is not None, weights)
    summary = {**scores, "method": resolve.method(settings), "clients": names}
    info = build.export_info(config, train, scores, weights)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} can't be made ({error.strerror}): give --output another folder.") from None
    (folder / "config.yaml").write_text(config.record(), encoding="utf-8")
    _MODULES[file].save(state, folder / file)
    # Who left has left the card too.
    bfl.export.save(model, folder / "saved_model", info._replace(data={**(info.data or {}), "clients": names}))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _batch_norm_examples(config: RunConfig, data: bfl.data.OwnData) -> Any:
    if not config.pretrain_share or config.last_layer:
        return None
    return build.batch_norm_examples(config, build.shares(config, data.train, data.clients).server)
