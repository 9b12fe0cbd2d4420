"""The numbers and the picture of these pages: `nox -s measured` runs what they are of, and writes them.

Each block between `<!-- measured: NAME -->` and `<!-- /measured -->` is made here, of what `measured.json` holds. A
test holds the pages against it.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

DOCS = pathlib.Path(__file__).resolve().parent
MEASURED = DOCS / "measured.json"
STUDY = DOCS.parent / "experiments" / "limits" / "results"
BENCHMARKS = DOCS.parent / "benchmarks" / "results"
Results = dict[str, Any]

DEMO = {"engine": "local", "dataset": "digits"}
TEMPERATURES = (1.0, 0.1, 0.05, 0.02, 0.01)
ROUNDS = (20, 60, 120)
LONG = {**DEMO, "algorithm": "variational", "rounds": max(ROUNDS), "evaluate_every": 20}
DIABETES = {"dataset": "diabetes", "model": "mlp", "clients": 4, "partition": "iid", "rounds": 20, "engine": "local"}
SEEDS = (0, 1, 2)
CONSTANT = "constant: mean and sd of the training labels"
AVERAGING: dict[str, dict[str, Any]] = {
    "`fed_opt` (federated averaging)": {"algorithm": "fed_opt"},
    "with adam, rate 0.01": {"algorithm": "fed_opt", "server_optimizer": "adam"},
    "with yogi, rate 0.03": {"algorithm": "fed_opt", "server_optimizer": "yogi"},
    "with adagrad, rate 0.1": {"algorithm": "fed_opt", "server_optimizer": "adagrad"},
    "`fed_prox`": {"algorithm": "fed_prox"},
    "`fed_ag`": {"algorithm": "fed_ag"},
    "`fed_be`": {"algorithm": "fed_be"},
    "`fed_pa`": {"algorithm": "fed_pa"},
    "`fed_sgld`": {"algorithm": "fed_sgld"},
    "`fed_kp`": {"algorithm": "fed_kp"},
    "`fed_kp`, from the mean": {"algorithm": "fed_kp", "kernel_start": "mean"},
}
PERSONAL = {"model": "mlp", "clients": 9, "rounds": 20, "batch_size": 16, "evaluate_clients": True, "engine": "local"}

# What is measured: name -> the options of a run. "shuffled" labels are made here.
RUNS: dict[str, dict[str, Any]] = {
    "demo": DEMO,
    "published": {
        **{**DEMO, "inference": "backprop", "kl": "client", "temperature": 1.0, "prior_stddev": 10.0},
        **{"optimizer": "adam", "schedule": "constant", "rule": "log_linear_pool"},
    },
    "shuffled": DEMO,
    "few": {**DEMO, "examples_per_client": 15},
    **{f"temperature {t:g}": {**LONG, "temperature": t} for t in TEMPERATURES},
    **{f"regression {seed}": {**DIABETES, "seed": seed} for seed in SEEDS},
    **{f"regression, cold {seed}": {**DIABETES, "temperature": 0.01, "seed": seed} for seed in SEEDS},
    **{f"regression, long {seed}": {**DIABETES, "rounds": 60, "seed": seed} for seed in SEEDS},
    **{f"regression, few {seed}": {**DIABETES, "examples_per_client": 8, "seed": seed} for seed in SEEDS},
    **{f"regression, shuffled {seed}": {**DIABETES, "task": "regression", "seed": seed} for seed in SEEDS},
    **{f"{name} {seed}": {**DEMO, **own, "seed": seed} for name, own in AVERAGING.items() for seed in SEEDS},
    "meta_vd": {"algorithm": "meta_vd", **PERSONAL},
    "meta_learning": {"algorithm": "meta_learning", **PERSONAL},
}


def measure(names: list[str]) -> None:
    """Run the measurements that are named, or all, and store their results."""
    sys.path.insert(0, str(DOCS.parent))
    import tfp_bfl as bfl
    from experiments.limits import promise

    found = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in RUNS.items():
            if names and not any(name.startswith(part) for part in names):
                continue
            own = {**options, "dataset": str(shuffled(folder, options["dataset"]))} if "shuffled" in name else options
            run = bfl.run(pathlib.Path(folder) / name, **own)
            rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
            # Of what is repeated over seeds the pages have the end alone.
            kept = [row for row in rows if row["round"] in (*ROUNDS, len(rows)) and "seed" not in options]
            found[name] = {"summary": numbers(run.summary), "rounds": {str(row["round"]): numbers(row) for row in kept}}
            if name == "demo":
                picture(run.folder / "figures")
            print(name, run.summary["test_nll"], flush=True)
    constant, linear = controls(*(bfl.data.load("diabetes", split) for split in ("train", "test")))
    found["regression, controls"] = {"constant": constant, "linear": linear}
    found["promises"] = promise.table()[1:]
    MEASURED.write_text(json.dumps(found, indent=1) + "\n")


def numbers(row: Results) -> Results:
    """Return the numbers of a row that do not differ between machines."""
    plain = {k: v for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    return {k: float(f"{v:.7g}") for k, v in plain.items() if not re.search("seconds|_mb$|ms_per_step", k)}


def shuffled(folder: str, dataset: str) -> pathlib.Path:
    """Write a dataset with permuted training labels to a file; digits stay at their clients."""
    import tfp_bfl as bfl

    train, test = (bfl.data.load(dataset, split) for split in ("train", "test"))
    scale, shift = (train.target.stddev, train.target.mean) if train.target else (1, 0)
    told = {"features": train.features, "labels": shift + scale * np.random.default_rng(0).permutation(train.labels)}
    if train.target is None:
        owners = np.zeros(train.num_examples, np.int32)
        for client, rows in enumerate(train.partition(bfl.data.parse_partition("dirichlet:0.5", 10), seed=0).indices):
            owners[rows] = client
        told |= {"clients": owners, "class_names": np.array(train.class_names)}
    path = pathlib.Path(folder) / f"{dataset}.npz"
    np.savez(path, **told, test_features=test.features, test_labels=shift + scale * test.labels)
    return path


def controls(train: Any, test: Any) -> tuple[Results, Results]:
    """Score the training labels' mean and standard deviation for every example, and least squares."""
    rows = [np.column_stack([np.ones(len(s.features)), s.features]) for s in (train, test)]
    weights = np.linalg.lstsq(rows[0], train.labels, rcond=None)[0]
    scores = []
    for error, stddev in (
        (test.labels, 1.0),
        (test.labels - rows[1] @ weights, np.std(train.labels - rows[0] @ weights)),
    ):
        nll = 0.5 * np.mean((error / stddev) ** 2) + np.log(stddev * test.target.stddev * np.sqrt(2 * np.pi))
        scores.append({"rmse": float(test.target.stddev * np.sqrt(np.mean(error**2))), "test_nll": float(nll)})
    return scores[0], scores[1]


def picture(figures: pathlib.Path) -> None:
    """Draw the learning curve beside retention curves over the clients' labels."""
    from PIL import Image

    left, *right = (Image.open(figures / f"{name}.png").convert("RGB") for name in PICTURES)
    width = right[0].width
    tall = Image.new("RGB", (width, sum(image.height for image in right)), "white")
    for i, image in enumerate(right):
        tall.paste(image, (0, sum(other.height for other in right[:i])))
    height = max(left.height, tall.height)
    whole = Image.new("RGB", (left.width + width, height), "white")
    whole.paste(left, (0, (height - left.height) // 2))
    whole.paste(tall, (left.width, 0))
    small = whole.resize((1200, round(whole.height * 1200 / whole.width)), Image.Resampling.LANCZOS)
    small.quantize(96, dither=Image.Dither.NONE).save(DOCS / "images" / "demo.png", optimize=True)


PICTURES = ("learning_curve", "retention_curves", "client_labels")


def table(*rows: list[str]) -> str:
    from tfp_bfl.files.tables import to_markdown

    return to_markdown(rows)


def spread(run: Results) -> str:
    last = run["rounds"][max(run["rounds"], key=int)]
    return " / ".join(f"{last[name]:.2g}" for name in ("stddev_q05", "stddev_median", "stddev_q95"))


def scores(run: Results, *names: str) -> list[str]:
    return [f"{run['summary'][name]:.3f}" if name in run["summary"] else "" for name in names]


def inferences(found: Results) -> str:
    head = ["inference", "accuracy", "NLL", "ECE", "epistemic fraction", "sd 5 / 50 / 95 %", "NLL, permuted"]
    words = {
        "published": "`variational`, `backprop`, Adam, N(0, 100), T = 1, log-linear pool",
        "demo": "no option given: `curvature`, fan-in prior, T by the loss",
    }
    names = ("accuracy", "test_nll", "ece", "epistemic_share")
    rows = [
        [w, *scores(found[k], *names), spread(found[k]), *scores(found[k], "permuted_test_nll")]
        for k, w in words.items()
    ]
    return table(head, *rows)


def data_controls(found: Results) -> str:
    head = ["data", "accuracy", "NLL", "NLL, permuted", "ECE", "aleatoric", "epistemic", "sd 5 / 50 / 95 %"]
    words = {"demo": "true labels", "shuffled": "shuffled labels", "few": "15 examples per client"}
    names = ("accuracy", "test_nll", "permuted_test_nll", "ece", "aleatoric", "epistemic")
    return table(head, *([w, *scores(found[k], *names), spread(found[k])] for k, w in words.items()))


def temperatures(found: Results) -> str:
    rows = []
    for number in ROUNDS:
        at = [found[f"temperature {t:g}"]["rounds"][str(number)] for t in TEMPERATURES]
        rows.append([str(number), *(f"{row['accuracy']:.3f}, {row['test_nll']:.3f}" for row in at)])
    return table(["round", *(f"{t:g}" for t in TEMPERATURES)], *rows)


def over_seeds(found: Results, name: str, key: str) -> np.ndarray:
    return np.array([found[f"{name} {seed}"]["summary"][key] for seed in SEEDS])


def averaging(found: Results) -> str:
    def told(name: str, key: str) -> str:
        values = over_seeds(found, name, key)
        return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"

    rows = ([name, *(told(name, key) for key in ("accuracy", "test_nll", "ece"))] for name in AVERAGING)
    return table(["", "accuracy", "NLL", "ECE"], *rows)


def promises(found: Results) -> str:
    head = ["threshold", "target met", "samples", "coverage", "accuracy"]
    words = ["Clopper-Pearson bound, `--confidence 0.9`", "without bound, `--confidence 0`"]
    return table(head, *([w, *row[1:]] for w, row in zip(words, found["promises"])))


def unseen(_: Results) -> str:
    rows = [json.loads(line) for line in (STUDY / "records.jsonl").read_text().splitlines()]
    keys = {
        "mean coverage": "unseen_coverage",
        "worst client": "least_coverage",
        "worst client, adapted threshold": "adapted_least_coverage",
        "accuracy": "accuracy",
    }

    def shown(partition: str, key: str) -> str:
        values = np.array([row[key] for row in rows if row["options"]["partition"] == partition])
        return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"

    partitions = ("iid", "dirichlet:0.5", "dirichlet:0.1")
    return table(["partition", *keys], *([p, *(shown(p, key) for key in keys.values())] for p in partitions))


def regression(found: Results) -> str:
    def mean(name: str, key: str) -> float:
        return float(over_seeds(found, name, key).mean())

    controls = found["regression, controls"]
    rows = [
        [words, f"{controls[key]['rmse']:.1f}", f"{controls[key]['test_nll']:.2f}", "", ""]
        for key, words in {"constant": CONSTANT, "linear": "least squares"}.items()
    ]
    words = {
        "regression": "T = 1 (no option given), 20 rounds",
        "regression, long": "T = 1, 60 rounds",
        "regression, few": "T = 1, 20 rounds, 8 examples per client",
        "regression, shuffled": "T = 1, 20 rounds, shuffled labels",
        "regression, cold": "T = 0.01, 20 rounds",
    }
    for name, text in words.items():
        parts = [f"{mean(name, 'rmse'):.1f}", f"{mean(name, 'test_nll'):.2f}", f"{mean(name, 'coverage'):.1%}"]
        rows.append([text, *parts, f"{mean(name, 'interval_width'):.0f}"])
    return table(["", "RMSE", "NLL", "coverage of 90 % intervals", "mean width"], *rows)


def personal(found: Results) -> str:
    names = ("client_accuracy", "client_accuracy_least", "adapted_client_accuracy", "adapted_client_accuracy_least")
    words = {"meta_vd": "`personal`", "meta_learning": "`maml`"}
    rows = ([text, *scores(found[name], "accuracy", *names)] for name, text in words.items())
    return table(["run", "`accuracy`", *(f"`{name}`" for name in names)], *rows)


def engines(_: Results) -> str:
    """Return the table of engines; it says so where an engine was not measured."""
    measured = json.loads((BENCHMARKS / "engines.json").read_text())
    uncounted = {"local": "0", "tff": "not counted: sockets in a separate network"}
    rows = []
    for name, words in ENGINES.items():
        one = measured.get(name)
        if one is None:
            rows.append([words, *["not measured"] * 2, ""])
            continue
        sent = uncounted.get(name, f"{one['bytes'] / 1000:.0f}")
        rows.append([words, f"{one['seconds']:.3g}", sent, where(one)])
    return table(["", "seconds per round", "kB per round over sockets", "measured"], *rows)


ENGINES = {
    "local": '`engine="local"`, in this process',
    "tff": '`engine="tff"`, two workers on this machine',
    "ray": '`engine="ray"`, on this machine, weights in shared memory',
    "flare": "FLARE: server and three sites, TLS, scores every round",
}


def where(one: Results) -> str:
    """Return when a benchmark was measured, and the load before it."""
    if "machine" not in one:
        return "machine and day not kept"
    return f"{one['measured'][:10]}, {one['machine']['cores']} cores, load {one['machine']['load']:g} before"


def masks(_: Results) -> str:
    measured = json.loads((BENCHMARKS / "masks.json").read_text())
    words = {"masks": "masks", "ckks": "CKKS (TenSEAL 0.3.15)"}
    rows = []
    for name, text in words.items():
        one = measured[name]
        seconds = [f"{1000 * one[key]:.3g}" for key in ("hide_seconds", "add_seconds", "read_seconds")]
        rows.append([text, f"{one['bytes'] / 1000:,.0f}", *seconds, f"{one['error']:.1e}", where(one)])
    names = ("ms to mask or encrypt", "ms to add three", "ms to read the sum", "largest error, in units", "measured")
    return table(["", "kB per message", *names], *rows)


def factor(found: Results) -> str:
    last = found["demo"]["rounds"][max(found["demo"]["rounds"], key=int)]
    return f"{last['stddev_q95'] / last['stddev_q05']:.1f}"


# Name -> what makes the block.
BLOCKS: dict[str, Callable[[Results], str]] = {
    "inferences": inferences,
    "controls": data_controls,
    "temperatures": temperatures,
    "regression": regression,
    "personal": personal,
    "averaging": averaging,
    "promises": promises,
    "unseen clients": unseen,
    "factor": factor,
    "engines": engines,
    "masks": masks,
}
MARK = re.compile(r"<!-- measured: ([a-z ]+) -->(\n?)(.*?)<!-- /measured -->", re.DOTALL)


def pages() -> Iterator[pathlib.Path]:
    yield DOCS.parent / "README.md"
    yield from sorted(DOCS.glob("*.md"))


def written(text: str, found: Results) -> str:
    """Return a page with new contents of its blocks."""
    return MARK.sub(lambda m: f"<!-- measured: {m[1]} -->{m[2]}{BLOCKS[m[1]](found)}<!-- /measured -->", text)


def main(*names: str) -> None:
    if names != ("write",):
        measure(list(names))
    found = json.loads(MEASURED.read_text())
    for page in pages():
        page.write_text(written(page.read_text(), found))


if __name__ == "__main__":
    main(*sys.argv[1:])
