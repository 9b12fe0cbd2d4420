"""The study's tables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from experiments.privacy.config import COLUMNS, METHODS, NOISES, SENT, Options
from experiments.tables import interval, less, mean_and_sd, paired

Summary = dict[str, Any]
PLAIN = "uncompressed"
# Row of the tables -> the options of its cells.
COSTS: dict[str, Options] = {
    PLAIN: {"noise": None},
    **{name.replace("secure sums", "secure aggregation"): {"noise": None, "sent": name} for name in SENT},
    "noise 0.5": {"noise": 0.5},
    "noise 1": {"noise": 1.0},
}
COMPARED = {name: COLUMNS[name] for name in ("accuracy", "NLL", "ECE")}


def same(summaries: list[Summary], **wanted: Any) -> list[Summary]:
    """Return the results of a federation, a method, a noise and a form of message that did not fail."""
    has = lambda options: all(options.get(name) == value for name, value in {"sent": None, **wanted}.items())
    return [one for one in summaries if has(one["options"]) and "failed" not in one]


def costs(summaries: list[Summary], federation: str) -> list[list[str]]:
    """Compare each form of privacy or compression with plain messages: scores, bytes, and paired differences."""
    rows = [["method", "what", "epsilon", *COMPARED, "bytes", *(f"{name}, difference" for name in COMPARED), "seeds"]]
    for method, (what, wanted) in itertools.product(METHODS, COSTS.items()):
        given = {"federation": federation, "method": method}
        group, plain = same(summaries, **given, **wanted), same(summaries, **given, **COSTS[PLAIN])
        if group:
            scores = [mean_and_sd([s[key] for s in group], 3) for key in COMPARED.values()]
            sent = f"{np.mean([s['upload_bytes'] for s in group]):.0f}"
            beside = ["" if what == PLAIN else _difference(group, plain, key) for key in COMPARED.values()]
            rows.append([method, what, _epsilon(group[0]), *scores, sent, *beside, str(len(group))])
    return rows


def costs_in_short(summaries: list[Summary], federation: str) -> list[list[str]]:
    """Return the means of accuracy, NLL and ECE, and the bytes of a posterior's and of point weights' message."""
    rows = [["accuracy (NLL, ECE)", *METHODS, "bytes, posterior", "bytes, FedAvg"]]
    for what, wanted in COSTS.items():
        scores, sent, epsilon = [], {}, ""
        for method, own in METHODS.items():
            group = same(summaries, federation=federation, method=method, **wanted)
            mean = {name: np.mean([s[key] for s in group]) for name, key in COMPARED.items()} if group else {}
            scores.append("{accuracy:.3f} ({NLL:.3f}, {ECE:.3f})".format(**mean) if mean else "")
            if group:
                epsilon = _epsilon(group[0])
                sent[own["kind"]] = f"{np.mean([s['upload_bytes'] for s in group]):,.0f}"
        label = f"{what}, epsilon {epsilon}" if epsilon else what
        if sent:
            rows.append([label, *scores, sent.get("flipout", ""), sent.get("deterministic", "")])
    return rows


def extra_losses(summaries: list[Summary], federation: str) -> list[list[str]]:
    """Return how much more accuracy each noise costs a posterior than FedAvg, paired by seed, with 95 % intervals."""
    rows = [["method", "noise", "loss of accuracy less that of FedAvg"]]

    def lost(method: str, noise: float) -> dict[int, float]:
        of = lambda wanted: _by_seed(same(summaries, federation=federation, method=method, noise=wanted), "accuracy")
        plain = of(None)
        return {seed: accuracy - plain[seed] for seed, accuracy in of(noise).items() if seed in plain}

    for noise, method in itertools.product(NOISES[federation], METHODS):
        if noise and method != "FedAvg" and lost(method, noise):
            rows.append([method, str(noise), less(lost(method, noise), lost("FedAvg", noise))])
    return rows


def _epsilon(summary: Summary) -> str:
    return "" if summary["epsilon"] is None else f"{summary['epsilon']:.2f}"


def _difference(group: list[Summary], plain: list[Summary], key: str) -> str:
    found = paired(_by_seed(group, key), _by_seed(plain, key))
    return "" if found is None else interval(found)


def _by_seed(group: list[Summary], key: str) -> dict[int, float]:
    return {one["options"]["seed"]: one[key] for one in group}
