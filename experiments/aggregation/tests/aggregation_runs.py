"""Stand-ins for the runs of the aggregation study, and its command."""

import json

import numpy as np
import yaml
from click.testing import CliRunner

from experiments.aggregation import run
from experiments.aggregation.config import RATES_OF


def trials_of(table, size):
    """Made records of all trials of a table, of which the highest rate is the best."""
    trials, score = RATES_OF.get(table, (None, None))
    return {run.cell_name(o): {score: 1 - o["learning_rate"]} for o in (run.cells(trials, size) if trials else ())}


class Fake:
    """Stands for `execute`: writes what a run leaves, and counts."""

    def __init__(self):
        self.runs, self.fails_at = [], None

    def __call__(self, config, folder, **_):
        if len(self.runs) == self.fails_at:
            folder.mkdir(parents=True)
            (folder / "half").touch()
            raise KeyboardInterrupt
        self.runs.append(folder.name)
        folder.mkdir(parents=True)
        rng = np.random.default_rng(len(self.runs))
        (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(exclude={"output"})))
        spread = {"stddev_median": 0.003} if config.kind == "flipout" else {}
        rows = [
            {"round": i + 1, "accuracy": 0.1 + 0.8 * (i + 1) / config.rounds, "test_nll": 1.0, **spread}
            for i in range(config.rounds)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        scores = {"accuracy": 0.9 + 0.01 * config.seed, "nll": 0.3, "ece": 0.02, "brier": 0.1, "epistemic_share": 0.2}
        (folder / "summary.json").write_text(json.dumps({**scores, "seconds": 12.0}))
        probabilities = rng.dirichlet(np.ones(10), 40)
        uncertainty = {name: rng.uniform(size=40) for name in ("entropy", "aleatoric", "epistemic")}
        labels = rng.integers(0, 10, 40)
        np.savez(folder / "predictions.npz", probabilities=probabilities, labels=labels, **uncertainty)


def stand_in(monkeypatch):
    """Put a `Fake` in the place of runs."""
    fake = Fake()
    monkeypatch.setattr("tfp_bfl.app.one_run.run.execute", fake)
    return fake


def invoke(output, *arguments):
    folders = ["--output", str(output / "cells"), "--results", str(output / "results")]
    return CliRunner().invoke(run.main, [*arguments, *folders])
