"""Runs of FL-SWAG with other clients: added, replaced or removed after the run, without any training."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, Union

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app import build
from tfp_bfl.app.config import RunConfig, make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.servers import online

STATE = "server_state.npz"


def read_state(run: Union[str, pathlib.Path]) -> online.OnlineState:
    """The clients that a run's folder holds.

    Raises:
      InvalidArgument: it is not the folder of a complete run of fl_swag, or its file is damaged.
    """
    path = pathlib.Path(run) / STATE
    if not path.is_file():
        raise InvalidArgument(
            f"{run} holds no clients: it must be the folder of a complete run of the algorithm fl_swag, with {STATE}."
        )
    return online.load(path)


def describe(state: online.OnlineState) -> str:
    """A table of the clients: their examples and how sure they are, as the median standard deviation of a weight."""
    rows = [("client", "examples", "median sd")]
    for name, q in zip(state.product.names, state.product.posteriors):
        median = float(bfl.posterior.spread(bfl.posterior.marginals(q)).stddev_median)
        rows.append((name, str(state.num_examples[name]), f"{median:.2g}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows)


def revise(
    run: Union[str, pathlib.Path],
    change: Callable[[online.OnlineState], online.OnlineState],
    output: Union[str, pathlib.Path],
) -> dict[str, Any]:
    """Writes a run with other clients to a new folder, and returns its summary; the old one stays as it is.

    The folder holds config.yaml, server_state.npz, saved_model/ and summary.json, and can be revised again.

    Args:
      run: the folder of a run of fl_swag, or of one that was revised.
      change: the state -> that with other clients (`servers.online`).
      output: a new folder.

    Raises:
      InvalidArgument: `run` is no such folder, `output` exists or can't be made, or the change is refused. Then nothing
        is written.
    """
    folder = pathlib.Path(output)
    if os.path.lexists(folder):
        raise InvalidArgument(f"{folder} exists already: give --output a new folder, nothing is overwritten.")
    state = change(read_state(run))
    config = make_config(pathlib.Path(run) / "config.yaml", {})
    train, test = (bfl.data.load(config.dataset, split=s, data_dir=config.data_dir) for s in ("train", "test"))
    model = bfl.models.predictive_model(
        build.model_fn(config, test)(), online.pool(state, config.diagonal_only), _batch_norm_examples(config, train)
    )
    scores = bfl.evaluation.evaluate(
        model, test.features, test.labels, num_samples=config.num_samples, seed=config.seed
    ).metrics
    names = list(state.product.names)
    summary = {**scores, "clients": names}
    info = build.export_info(config, train, scores)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} can't be made ({error.strerror}): give --output another folder.") from None
    (folder / "config.yaml").write_text(config.record(), encoding="utf-8")
    online.save(state, folder / STATE)
    # Who left has left the card too.
    bfl.export.save(model, folder / "saved_model", info._replace(data={**(info.data or {}), "clients": names}))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _batch_norm_examples(config: RunConfig, train: bfl.data.Source) -> Any:
    if not config.pretrain_share or config.last_layer:
        return None
    return build.batch_norm_examples(config, build.shares(config, train).server)
