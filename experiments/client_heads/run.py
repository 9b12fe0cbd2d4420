"""Client heads on random features against linear models: `python -m experiments.client_heads.run --folder natural`."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import click
import numpy as np

import tfp_bfl as bfl
from experiments.cells import Study, study_options, write_summary
from experiments.client_heads.config import (
    CONTROL,
    FEDERATIONS,
    FEW_CLIENTS,
    FOLDER,
    FOR_SLOPES,
    MODELS,
    Options,
    cells,
)
from experiments.client_heads.data import Split, split_of
from experiments.tables import interval, paired, write
from tfp_bfl.errors import InvalidArgument

HERE = pathlib.Path(__file__).parent
INTERCEPT = "(intercept)"


def predict(fitted: bfl.glm.Hierarchical, split: Split, names: list[str]) -> float:
    """Return the NLL of a hierarchical model: test rows of clients without training rows are those of a new client."""
    features = split.test.features.astype(np.float64)
    centre, stddev = (x.copy() for x in fitted.linear_predictor(features))
    for k, name in enumerate(names):
        own = np.flatnonzero(split.test.owners == name)
        if len(own):
            centre[own], stddev[own] = fitted.linear_predictor(features[own], k)
    return split.nll(centre, stddev, fitted.posterior.dispersion)


def pooled(fitted: bfl.glm.Hierarchical | None, split: Split, rows: list[Any], prior_stddev: float) -> float:
    """Return the NLL of a model without client effects, with the features and the prior of a hierarchical one."""
    expand: Callable[[np.ndarray], np.ndarray] = lambda x: x
    options: Options = {"prior_stddev": prior_stddev}
    if fitted is not None:  # Columns times the standard deviations of their prior, which is then 1.
        width, total = rows[0][0].shape[1], len(fitted.posterior.names) - 1
        of_each = 1 / np.sqrt(fitted.posterior.precision[1:])
        assert total > width and fitted.features is not None
        features = fitted.features
        expand = lambda x: features(x) * of_each
        options = {"prior_stddev": 1.0, "intercept_stddev": np.inf}
    result = bfl.glm.fit([(expand(x), y) for x, y in rows], split.family, **options)
    predicted = result.linear_predictor(expand(split.test.features.astype(np.float64)))
    return split.nll(*predicted, result.dispersion)


def with_slope(fit: Callable[..., bfl.glm.Hierarchical], without: bfl.glm.Hierarchical, width: int) -> list[str]:
    """Choose one slope, if the marginal likelihood of the linear model with it is higher by more than 2 (AIC)."""
    best, chosen = without.log_evidence + 2, [INTERCEPT]  # A slope has a variance and a correlation.
    for j in range(width):
        try:
            found = fit(random=[INTERCEPT, f"x{j + 1}"])
        except InvalidArgument:  # The column does not vary within clients.
            continue
        if found.log_evidence > best:
            best, chosen = found.log_evidence, list(found.random)
    return chosen


def score(folder: pathlib.Path, options: Options) -> Options:
    """Fit all models of a split, and return their NLL on its test rows."""
    split = split_of(folder, options)
    names, rows = split.clients()
    restricted = None if len(names) <= FEW_CLIENTS or split.family != "gaussian" else False
    fit = functools.partial(bfl.glm.fit_hierarchical, rows, split.family, restricted=restricted)
    fitted = functools.partial(fit, prior_stddev="fitted")
    seed, number = options["split"], options["features"]
    random, rng = f"random:{number}:{seed}", np.random.default_rng(seed)
    noise = lambda x: np.column_stack([x, np.tanh(rng.normal(size=(len(x), number)))])
    linear, features, of_noise = fitted(), fitted(features=random), fitted(features=noise)
    has_slopes = len(names) in FOR_SLOPES
    chosen = with_slope(fitted, linear, rows[0][0].shape[1]) if has_slopes else [INTERCEPT]
    slopes = fitted(features=random, random=chosen) if len(chosen) > 1 else features
    of_each = {"linear": fit(prior_stddev=options["prior_stddev"]), "linear_fitted": linear, "features": features}
    of_each |= {"slopes": slopes, "noise": of_noise}
    found: Options = {f"{name}_nll": predict(model, split, names) for name, model in of_each.items()}
    found["linear_pooled_nll"] = pooled(None, split, rows, options["prior_stddev"])
    found["features_pooled_nll"] = pooled(features, split, rows, options["prior_stddev"])
    found |= {f"{name}_stddevs": list(of_each[name].prior_stddevs) for name in ("linear_fitted", "features", "noise")}
    found |= {f"{name}_evidence": of_each[name].log_evidence for name in ("linear_fitted", "features", "slopes")}
    column = None if len(chosen) == 1 else split.train.columns[int(chosen[1][1:]) - 1].name
    facts = {"clients": len(names), "rows": split.train.num_examples, "test_rows": split.test.num_examples}
    return {**found, **facts, "slope": column, "messages": features.posterior.messages}


def table(records: list[Options]) -> list[list[str]]:
    """Return the NLL of the control, and paired differences of all models to it."""
    rows = [["model", *FEDERATIONS]]
    for name, key in MODELS.items():
        cells = []
        for federation in FEDERATIONS:
            same = [r for r in records if r["options"]["federation"] == federation and "failed" not in r]
            of = lambda key, same=same: {r["options"]["split"]: r[f"{key}_nll"] for r in same}
            difference = paired(of(key), of(MODELS[CONTROL]))
            mean = f"{np.mean([*of(key).values()]):.4f}" if same else ""
            cells.append(mean if name == CONTROL or difference is None else interval(difference))
        rows.append([name, *cells])
    return rows


@click.command()
@study_options("client_heads", HERE / "results")
@click.option("--folder", type=click.Path(path_type=pathlib.Path), default=pathlib.Path(FOLDER), help="Tables.")
def main(study: Study, folder: pathlib.Path) -> None:
    """Run the cells that are not done, and write the table."""
    every = cells()
    describe = lambda s: s.get("failed") or f"features - control {s['features_nll'] - s['linear_nll']:+.4f}"
    run = lambda path, options: write_summary(path, options, lambda: score(folder, options))
    study.run(every, run, describe)
    if not study.listed:
        records = list(study.records(every).values())
        if records:
            write(table(records), study.results / "differences")


if __name__ == "__main__":
    main()
