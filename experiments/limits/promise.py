"""Frequency at which the guaranteed accuracy of a threshold holds on new examples, with the true probabilities.

python -m experiments.limits.promise
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np

import tfp_bfl as bfl
from experiments.tables import write

DRAWS, HELD_OUT, NEW, ACCURACY = 300, 400, 100_000, 0.9
# (how a limit is chosen, the confidence in it).
CHOICES = (("by the bound, confidence 0.9", 0.9), ("the largest that is accurate enough on the held-out ones", 0.0))


def drawn(number: int, seed: int = 0, sharpness: float = 4.0, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities [B, C], and labels drawn from them."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(number, classes))
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    labels = (rng.uniform(size=(number, 1)) > probabilities.cumsum(-1)).sum(-1).clip(0, classes - 1)
    return probabilities.astype(np.float32), labels


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Return the entropy [B] of probabilities [B, C] in nats."""
    return -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(-1)


def promises() -> Iterator[list[tuple[float, float]]]:
    """Return the coverage and accuracy on new examples, for each sample of held-out examples and each choice."""
    truth, labels = drawn(NEW, seed=1)
    uncertainty, right = entropy(truth), truth.argmax(-1) == labels
    for seed in range(DRAWS):
        held, known = drawn(HELD_OUT, seed=seed + 10)
        limits = (
            bfl.evaluation.abstention_limit(held, known, entropy(held), accuracy=ACCURACY, confidence=confidence).limit
            for _, confidence in CHOICES
        )
        yield [(float(below.mean()), float(right[below].mean())) for below in (uncertainty <= t for t in limits)]


def table() -> list[list[str]]:
    """Return the frequency at which each choice fulfils its guarantee, and its coverage."""
    found = np.array(list(promises()))
    rows = [["the limit", "promises kept", "of", "examples kept", "their accuracy"]]
    for (name, _), (kept, accuracy) in zip(CHOICES, np.moveaxis(found, 0, -1)):
        counts = [str(int((accuracy >= ACCURACY).sum())), str(len(found))]
        rows.append([name, *counts, f"{kept.mean():.2f}", f"{accuracy.mean():.3f}"])
    return rows


if __name__ == "__main__":
    write(table(), pathlib.Path(__file__).parent / "results" / "promise")
