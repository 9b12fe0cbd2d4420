"""Run the study: `python -m experiments.heads.run --missing --features FEATURES.npz`.

FEATURES.npz holds xtr, ytr, xte, yte and xood: features and labels of training and test images, and features of images
of another dataset. The first half of the test rows tunes FedAvg and its temperature, the second half is scored.
"""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
from typing import Any

import click
import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.metrics import roc_auc_score

import tfp_bfl as bfl
from experiments.cells import Study, study_options, write_summary
from experiments.heads.config import CLASSES_PER_CLIENT, CLIENTS, DIFFERENCES, EVERY, FEDAVG, NUM_SAMPLES
from experiments.tables import less, mean_and_sd, write

HERE = pathlib.Path(__file__).parent
TEMPERATURES = np.exp(np.linspace(-3, 3, 121))
Data = dict[str, np.ndarray]


def scores_of(model: Any, data: Data) -> dict[str, float]:
    """Score a model on the test rows, and its entropy and mutual information against rows of another dataset."""
    evaluate = lambda x, y: bfl.evaluation.evaluate(model, x, y, num_samples=NUM_SAMPLES)
    own, other = evaluate(data["x"], data["y"]), evaluate(data["xood"], np.zeros(len(data["xood"]), np.int32))
    truth = np.r_[np.zeros(len(data["y"])), np.ones(len(data["xood"]))]
    auroc = lambda name: roc_auc_score(truth, np.r_[getattr(own, name), getattr(other, name)])
    scores = {name: float(own.metrics[name]) for name in ("accuracy", "test_nll", "ece")}
    return {**scores, **{f"ood_{name}": float(auroc(name)) for name in ("entropy", "mutual_information")}}


def federation(data: Data, options: dict[str, Any]) -> tuple[Any, Data]:
    """Return clients with two classes each, or one with all rows, and the data, projected where the cell has it."""
    if number := options.get("projected"):
        matrix = np.random.default_rng(0).normal(size=(data["xtr"].shape[1], number)) / np.sqrt(number)
        data = data | {name: np.float32(data[name] @ matrix) for name in ("xtr", "x", "xood")}
    source = bfl.data.Source("features", "train", data["xtr"], data["ytr"], tuple(map(str, range(10))))
    if options.get("pooled"):
        return bfl.data.Clients(source, [np.arange(len(data["ytr"]))]), data
    return source.partition(bfl.data.label_skew(CLIENTS, CLASSES_PER_CLIENT), seed=options["seed"]), data


def simulated(clients: Any, options: dict[str, Any], rounds: int, monitor: Any = None, **given: Any) -> Any:
    """Run the head of a cell; monitor: `evaluate` and `evaluate_every`, given: options of the head."""
    given |= {name: options[name] for name in ("sum_bits",) if name in options}
    if private := options.get("private"):
        given["example_privacy"] = bfl.training.ExamplePrivacy(*private)
    network = bfl.models.linear("deterministic", input_shape=clients.element_spec.features.shape[1:], num_classes=10)
    process = bfl.algorithms.head(network, head=options["head"], element_spec=clients.element_spec, **given)
    return bfl.simulate(process, clients, rounds, engine="local", **(monitor or {}))


def head(data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a head of the library by its number of rounds."""
    clients, data = federation(data, options)
    rounds, found, number = options["rounds"], dict[str, Any](), itertools.count(1)
    step = math.gcd(*rounds)

    def score(model: Any) -> dict[str, float]:
        if (k := step * next(number)) in rounds:
            found[f"rounds={k}"] = scores_of(model, data)
        return {}

    result = simulated(clients, options, max(rounds), {"evaluate": score, "evaluate_every": step})
    for k in rounds:
        bits = sum(row["upload_bits"] for row in result.rounds[:k])
        found[f"rounds={k}"]["mb_up"] = float(bits) / clients.num_clients / 8e6
    return found


def alone(data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Return the mean scores of heads of one client each."""
    clients, data = federation(data, options)
    each = [bfl.data.Clients(clients.source, [rows]) for rows in clients.indices]
    found = [scores_of(simulated(x, options, max(options["rounds"])).model, data) for x in each]
    return {"rounds=2": {name: float(np.mean([x[name] for x in found])) for name in found[0]} | {"mb_up": 0.0}}


def pooled(data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of the head of all rows in one place, and the largest difference of its weights to those of the
    head of the clients, relative to the largest, without rows held back.
    """
    both = [federation(data, options | {"pooled": one})[0] for one in (False, True)]
    rounds = 6 if options["head"] == "softmax" else 1
    points = [simulated(x, options, rounds, held_back=0.0).state.weights.point for x in both]
    largest = [float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in zip(*points)]
    return {**head(data, options), "relative_difference": max(largest)}


def frequencies(data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of the class frequencies of the training rows."""
    p = np.bincount(data["ytr"], minlength=10) / len(data["ytr"])
    nll = -np.log(p)[data["y"]].mean()
    scores = {"accuracy": np.mean(data["y"] == p.argmax()), "test_nll": nll, "mb_up": 0.0}
    return {"rounds=1": {name: float(x) for name, x in scores.items()}}


def fed_avg(data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of FedAvg of a softmax head on standardised features, by rounds, at the best of its rates."""
    z, source = (data["xtr"] - data["xtr"].mean(0)) / (data["xtr"].std(0) + 1e-6), data["ytr"]
    shift = lambda x: (x - data["xtr"].mean(0)) / (data["xtr"].std(0) + 1e-6)
    rows = bfl.data.Source("features", "train", data["xtr"], data["ytr"], tuple(map(str, range(10))))
    parts = rows.partition(bfl.data.label_skew(CLIENTS, CLASSES_PER_CLIENT), seed=options["seed"]).indices
    onehot, found = np.eye(10, dtype=np.float32)[source], dict[str, Any]()
    for rate in FEDAVG["rates"]:
        rng, w, b = np.random.default_rng(options["seed"]), np.zeros((z.shape[1], 10), np.float32), np.zeros(10, "f")
        for k in range(1, max(FEDAVG["rounds"]) + 1):
            total_w, total_b = np.zeros_like(w), np.zeros_like(b)
            for part in parts:
                v, c = w.copy(), b.copy()
                for j in np.array_split(rng.permutation(part), max(1, len(part) // FEDAVG["batch_size"])):
                    slope = softmax(z[j] @ v + c, axis=1) - onehot[j]
                    v -= rate * z[j].T @ slope / len(j)
                    c -= rate * slope.mean(0)
                total_w, total_b = total_w + v * len(part) / len(z), total_b + c * len(part) / len(z)
            w, b = total_w, total_b
            if k in FEDAVG["rounds"]:
                tuned = fitted_scores(*(shift(data[x]) @ w + b for x in ("xval", "x", "xood")), data)
                best = found.get(f"rounds={k}")
                if best is None or tuned["validation_nll"] < best["validation_nll"]:
                    mb = 4 * k * (z.shape[1] + 1) * 10 / 1e6
                    found[f"rounds={k}"] = {**tuned, "rate": rate, "mb_up": mb}
    return found


def fitted_scores(val: np.ndarray, test: np.ndarray, other: np.ndarray, data: Data) -> dict[str, float]:
    """Return the scores of logits at the temperature with the smallest NLL of the validation rows."""
    nll = lambda logits, y, t: -log_softmax(logits / t, axis=1)[np.arange(len(y)), y].mean()
    heat = min(TEMPERATURES, key=lambda t: nll(val, data["yval"], t))
    p, y = softmax(test / heat, axis=1), data["y"]
    entropy = lambda logits: -(softmax(logits / heat, axis=1) * log_softmax(logits / heat, axis=1)).sum(1)
    bins = np.minimum((p.max(1) * 15).astype(int), 14)
    gaps = [abs(np.sum((p.argmax(1) == y)[bins == k]) - np.sum(p.max(1)[bins == k])) for k in range(15)]
    truth = np.r_[np.zeros(len(test)), np.ones(len(other))]
    return {
        "validation_nll": float(nll(val, data["yval"], heat)),
        "accuracy": float(np.mean(p.argmax(1) == y)),
        "test_nll": float(nll(test, y, heat)),
        "ece": float(sum(gaps) / len(y)),
        "ood_entropy": float(roc_auc_score(truth, np.r_[entropy(test), entropy(other)])),
    }


def rows_of(records: dict[str, Any], score: str) -> dict[tuple[str, int], dict[int, float]]:
    """Return (row, rounds) -> seed -> a score; seed 0 for cells without one."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    for name, record in records.items():
        for rounds, scores in record.get("scores", {}).items():
            if score in (scores if isinstance(scores, dict) else ()):
                key = name.split(", seed=")[0], int(rounds.split("=")[1])
                found.setdefault(key, {})[record["options"].get("seed", 0)] = scores[score]
    return found


def tables(records: dict[str, Any]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the table of scores, as mean and standard deviation over seeds, and that of paired differences."""
    names = {"accuracy": "accuracy", "test_nll": "NLL", "ece": "ECE", "ood_entropy": "AUROC, entropy"}
    names |= {"ood_mutual_information": "AUROC, mutual information"}
    scores = {name: rows_of(records, name) for name in [*names, "mb_up"]}
    first = [["row", "messages", "seeds", *names.values(), "MB up per client"]]
    for key in sorted(scores["test_nll"]):
        cells = [
            mean_and_sd([*scores[x][key].values()], 3 if x != "test_nll" else 4) if key in scores[x] else ""
            for x in names
        ]
        mb = next(iter(scores["mb_up"][key].values()))
        first.append([key[0], str(key[1]), str(len(scores["test_nll"][key])), *cells, f"{mb:.1f}"])
    # By the mutual information; FedAvg has none.
    scores["ood"] = {**scores["ood_entropy"], **scores["ood_mutual_information"]}
    second = [["first", "second", "NLL", "accuracy", "AUROC"]]
    for one, other in (pair for pair in DIFFERENCES if scores["test_nll"].keys() >= set(pair)):
        cells = [less(scores[x].get(one, {}), scores[x].get(other, {})) for x in ("test_nll", "accuracy", "ood")]
        second.append([f"{one[0]}, {one[1]} messages", f"{other[0]}, {other[1]} messages", *cells])
    return first, second


def read(features: pathlib.Path) -> Data:
    """Read the file of features; the first half of the test rows are those of validation."""
    arrays = np.load(features)
    half = len(arrays["yte"]) // 2
    data = {"xtr": np.float32(arrays["xtr"]), "ytr": np.int32(arrays["ytr"]), "xood": np.float32(arrays["xood"])}
    data |= {"xval": np.float32(arrays["xte"][:half]), "yval": arrays["yte"][:half]}
    return data | {"x": np.float32(arrays["xte"][half:]), "y": np.int32(arrays["yte"][half:])}


def run_cell(features: pathlib.Path, folder: pathlib.Path, options: dict[str, Any]) -> None:
    """Run a cell and write its summary; of one that fails, why."""
    run = pooled if options.get("pooled") else alone if options.get("alone") else head
    of_kind = {"fed_avg": fed_avg, "frequencies": frequencies}.get(options["head"], run)
    write_summary(folder, options, lambda: {"scores": of_kind(read(features), options)})


@click.command()
@study_options("heads", HERE / "results")
@click.option("--features", type=click.Path(exists=True, path_type=pathlib.Path), help="The file of features.")
def main(study: Study, features: pathlib.Path | None) -> None:
    """Run the cells that are not done, and write the tables."""
    if features is None and not (study.listed or study.tables_only):
        raise click.UsageError("Give the file of features by --features FEATURES.npz, or --tables or --list.")
    study.run(EVERY, functools.partial(run_cell, features), lambda summary: str(summary.get("scores", summary)))
    if not study.listed:
        for rows, name in zip(tables(study.records(EVERY)), ("scores", "differences")):
            write(rows, study.results / name)


if __name__ == "__main__":
    main()
