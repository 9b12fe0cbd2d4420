"""Run the study: `python -m experiments.heads.run FEATURES.npz`.

FEATURES.npz holds xtr, ytr, xte, yte and xood: features and labels of training and test images, and features of images
of another dataset. The first half of the test rows tunes FedAvg and its temperature, the second half is scored.
"""

from __future__ import annotations

import pathlib
import time
from typing import Any

import click
import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.metrics import roc_auc_score

import tfp_bfl as bfl
from experiments.heads.config import CLASSES_PER_CLIENT, CLIENTS, EVERY, FEDAVG, NUM_SAMPLES
from experiments.records import keep_records, read_records

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


def head(data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a head of the library, of clients with two classes each, of all rows, or of each client."""
    data = dict(data)
    if number := options.get("projected"):
        matrix = np.random.default_rng(0).normal(size=(data["xtr"].shape[1], number)) / np.sqrt(number)
        data |= {name: np.float32(data[name] @ matrix) for name in ("xtr", "x", "xood")}
    width = data["xtr"].shape[1]
    source = bfl.data.Source("features", "train", data["xtr"], data["ytr"], tuple(map(str, range(10))))
    clients = source.partition(bfl.data.label_skew(CLIENTS, CLASSES_PER_CLIENT), seed=options["seed"])
    if options.get("pooled"):
        clients = bfl.data.Clients(source, [np.arange(len(data["ytr"]))])

    def fitted(of: Any) -> Any:
        network = bfl.models.linear("deterministic", input_shape=(width,), num_classes=10)
        process = bfl.algorithms.head(network, head=options["head"], element_spec=of.element_spec)
        return bfl.simulate(process, of, options["rounds"], engine="local")

    if options.get("alone"):
        each = [bfl.data.Clients(source, [rows]) for rows in clients.indices]
        found = [scores_of(fitted(client).model, data) for client in each[:3]]
        return {name: float(np.mean([x[name] for x in found])) for name in found[0]}
    result = fitted(clients)
    bytes_up = 8 * (width * (width + 1) / 2 + 10 * width + 10)
    if options["head"] == "softmax":
        bytes_up += 8 * (options["rounds"] - 1) * ((width + 1) * 10 + 100)
    return {**scores_of(result.model, data), "mb_up": bytes_up / 2**20}


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
                    mb = 4 * k * (z.shape[1] + 1) * 10 / 2**20
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


@click.command()
@click.argument("features", type=click.Path(exists=True, path_type=pathlib.Path))
@click.option("--only", default="", help="Part of the names of the cells to run.")
def main(features: pathlib.Path, only: str) -> None:
    """Run the cells that have no record, and print all."""
    arrays = np.load(features)
    half = len(arrays["yte"]) // 2
    data = {"xtr": np.float32(arrays["xtr"]), "ytr": np.int32(arrays["ytr"]), "xood": np.float32(arrays["xood"])}
    data |= {"xval": np.float32(arrays["xte"][:half]), "yval": arrays["yte"][:half]}
    data |= {"x": np.float32(arrays["xte"][half:]), "y": np.int32(arrays["yte"][half:])}
    for name, options in EVERY.items():
        if only in name and name not in read_records(HERE / "results"):
            started = time.perf_counter()
            scores = fed_avg(data, options) if options["head"] == "fed_avg" else head(data, options)
            record = {"scores": scores, "seconds": time.perf_counter() - started}
            keep_records(HERE / "results", {name: record}, EVERY)
            click.echo(f"{name}: {scores}")


if __name__ == "__main__":
    main()
