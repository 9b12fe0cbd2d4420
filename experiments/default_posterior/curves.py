"""Curves: scores of methods by number of rounds, against bytes and client steps.

Each number of rounds is a run of its own, as rates fall to zero over the rounds. Rounds are doubled while that lowers
the NLL of held-out images (`is_due`). The NLL of all methods but the default is at a fitted softmax temperature.
"""

from __future__ import annotations

import itertools
import pathlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import click
import numpy as np

import tfp_bfl as bfl
from experiments.cells import Study, write_summary
from experiments.default_posterior.cell import method_of, on_held_out, on_test
from experiments.default_posterior.config import (
    BY_SKEW,
    CURVE_RATES,
    CURVE_SEEDS,
    CURVES,
    FALL,
    MILD,
    MORE_ROUNDS,
    ROUNDS,
    SIZES,
)
from experiments.default_posterior.controls import small_clothes
from experiments.global_posterior.federation import data_of
from experiments.global_posterior.scores import constant_spread, permuted, spread_scores
from tfp_bfl.app.one_run import build
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.bench.cell import megabytes
from tfp_bfl.federated import Thinning
from tfp_bfl.options import methods

Options = dict[str, Any]
Record = dict[str, Any]
# Rounds -> seed -> record, of a method on a setting.
Curve = dict[int, dict[int, Record]]
Describe = Callable[[Record], str]


def curve_cells() -> Iterator[tuple[str, Options]]:
    """Return the name and the options of each cell that may run, by setting."""
    numbers = sorted({*ROUNDS, *itertools.chain(*MORE_ROUNDS.values())})
    for (data, partition), seeds in CURVE_SEEDS.items():
        size = {name: x for name, x in SIZES[data].items() if name not in ("rounds", "average", "model")}
        for rounds, seed, (method, settings) in itertools.product(numbers, seeds, CURVES.items()):
            if rounds in (*ROUNDS, *MORE_ROUNDS.get(method, ())):
                own = {**settings, **_rate(data, method, partition)}
                options = {**size, "settings": own, "partition": partition, "seed": seed}
                name = f"curve,{data},{partition},{method},rounds={rounds},seed={seed}"
                yield name, {**options, "curve": True, "rounds": rounds}


def _rate(data: str, method: str, partition: str) -> Options:
    """Return the clients' learning rate that trials chose; methods with the steps of the default have its own."""
    if "algorithm" not in CURVES[method]:
        return {}
    family = "mc_dropout" if method.startswith("mc_dropout") else "fed_avg_momentum"
    skew = "mild" if partition in MILD else "strong"
    own = CURVE_RATES.get(data, {}).get(method, {}).get(skew)
    return {"learning_rate": own or BY_SKEW[family][skew]["rate"]}


def run_curve_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell and write its summary; of a method that fails, why."""
    write_summary(folder, options, lambda: curve_point(options))


def curve_point(options: Options) -> dict[str, Any]:
    """Return the rows of a cell, and its bytes and client steps.

    Controls of the default: its standard deviations "permuted" within each layer, and "constant", all at their
    geometric mean.
    """
    data, seed, wall = data_of(options), options["seed"], time.perf_counter()
    config, process, kept = _built(options, data.clients)
    rounds = config.rounds
    result = bfl.simulate(process, data.clients, rounds=rounds, seed=seed, engine="local", draws=kept)
    sent = np.array(megabytes(process, result.rounds))
    if "then" in options["settings"]:
        name, messages = options["settings"]["then"]
        process = getattr(bfl.algorithms, name)(process.model_fn, structure="kronecker", batch_size=256)
        result = bfl.simulate(process, data.clients, rounds=messages, start=result.state.weights, seed=seed)
        sent += megabytes(process, result.rounds)
    steps = sum(methods.method_of(config.algorithm).steps(config, int(size)) for size in data.clients.sizes)
    training = {
        **{"upload_mb": sent[0], "download_mb": sent[1], "client_steps": rounds * steps / data.clients.num_clients},
        **({} if options["settings"] else {"shipped": method_of(config)}),
    }
    elsewhere = small_clothes(data.test.num_examples) if data.elsewhere is None else data.elsewhere
    images = (data.held_out.features, data.test.features, elsewhere)
    # Of snapshots as many samples that each has about the same share.
    samples = options["num_samples"] * options["settings"].get("snapshots", 1)
    predict = lambda model: [bfl.evaluation.predict(model, x, samples, seed) for x in images]
    predicted = {"last": predict(result.model)}
    weights = result.state.weights
    if weights.posterior.variance:
        training |= spread_scores(weights, bfl.weights.prior(result.model))
        for name, own in {"permuted": permuted(weights, (seed, 0)), "constant": constant_spread(weights)}.items():
            predicted[name] = predict(bfl.weights.predictive_model(process.model_fn(), own))
    rows = {name: on_test(x, data) for name, x in predicted.items()}
    rows["held_out"] = on_held_out(predicted["last"][:1], data)
    return {"training": {"seconds": time.perf_counter() - wall, **training}, "rows": rows}


def _built(options: Options, clients: Any) -> tuple[RunConfig, bfl.federated.BayesianProcess, Thinning | None]:
    """Return the configuration of a cell, its process, and which rounds predict together; None for the last."""
    given = {**options["settings"], "rounds": options["rounds"], "seed": options["seed"]}
    snapshots, source = given.pop("snapshots", 0), clients.source
    given.pop("then", None)
    config, _ = build.settle(make_config(None, given), source)
    if not snapshots:
        return config, build.process(config, source, lambda: None), None
    cycle = config.rounds // snapshots
    falling = bfl.training.linear_decay(config.learning_rate, cycle)
    process = bfl.algorithms.fed_opt(
        build.model_fn(config, source),
        learning_rate=lambda done: falling(done % cycle),
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        element_spec=clients.element_spec,
    )
    return config, process, Thinning(cycle - 1, cycle)


def run_curves(study: Study, every: dict[str, Options], describe: Describe, only: str) -> None:
    """Run the cells that have no record, setting by setting, rounds after rounds; only settings with such a name."""
    if not any(only in _setting(name) and study.only in name for name in every):
        raise click.UsageError(f"No setting's name holds {only!r}, with {study.only!r} in a cell's: --list shows them.")
    for setting in settings_of(every):
        cells = {name: x for name, x in every.items() if _setting(name) == setting and study.only in name}
        if only not in setting or not cells:
            continue
        if study.listed:
            study.run(cells, run_curve_cell, describe)
            continue
        for rounds in sorted({x["rounds"] for x in cells.values()}):
            records = study.records(every)
            curves = curves_of(records).get(setting, {})
            due = {
                name: x
                for name, x in cells.items()
                if x["rounds"] == rounds
                and name not in records
                and is_due(_method(name), curves.get(_method(name), {}), rounds)
            }
            if due and not study.tables_only:
                study.run(due, run_curve_cell, describe)


def settings_of(names: Any) -> list[str]:
    """Return the settings of cells, each once, in their order."""
    return [*dict.fromkeys(_setting(name) for name in names)]


def _setting(name: str) -> str:
    return "-".join(name.split(",")[1:3])


def _method(name: str) -> str:
    return name.split(",")[3]


def curves_of(records: dict[str, Record]) -> dict[str, dict[str, Curve]]:
    """Return setting -> method -> rounds -> seed -> record of the cells that did not fail."""
    found: dict[str, dict[str, Curve]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for name, record in records.items():
        if name.startswith("curve,") and "rows" in record:
            rounds, seed = (int(part.partition("=")[2]) for part in name.split(",")[4:])
            found[_setting(name)][_method(name)][rounds][seed] = record
    return found


def scores_of(method: str, records: dict[int, Record], column: str = "nll", row: str = "last") -> dict[int, float]:
    """Return seed -> score: NLL at a fitted softmax temperature but for the default, "ood_auroc" by the epistemic part,
    of point weights by entropy, or a number of the training.
    """
    if column in ("upload_mb", "download_mb", "client_steps"):
        return {seed: record["training"][column] for seed, record in records.items()}
    rows = {seed: record["rows"][row] for seed, record in records.items() if row in record["rows"]}
    if column == "ood_auroc":
        epistemic = {seed: x["ood_auroc_epistemic"] for seed, x in rows.items()}
        return {seed: rows[seed]["ood_auroc_entropy"] if x is None else x for seed, x in epistemic.items()}
    own = column if method == "default" else f"{column}_fitted"
    return {seed: x[own] for seed, x in rows.items()}


def falls(method: str, curve: Curve, rounds: int) -> bool:
    """Return whether this many rounds have a held-out NLL below that of half as many by `FALL` or more, over the seeds
    of both.
    """
    half, whole = (scores_of(method, curve.get(r, {}), row="held_out") for r in (rounds // 2, rounds))
    changes = [half[seed] - whole[seed] for seed in half.keys() & whole.keys()]
    return bool(changes) and float(np.mean(changes)) >= FALL


def is_due(method: str, curve: Curve, rounds: int) -> bool:
    """Return whether a method runs with as many rounds: all smaller doublings lowered its held-out NLL."""
    return all(falls(method, curve, r) for r in ROUNDS[1:] if r < rounds)


def is_finished(method: str, curve: Curve) -> bool:
    """Return whether a doubling did not lower the held-out NLL by `FALL`; both numbers of rounds must have run."""
    return any(curve.get(r) and curve.get(r // 2) and not falls(method, curve, r) for r in ROUNDS[1:])
