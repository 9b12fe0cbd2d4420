"""Prediction sets by split conformal prediction, and the scores by which classes enter a set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tfp_bfl.errors import LARGEST, InvalidArgument, check_count, check_number
from tfp_bfl.evaluation.limits import check_share
from tfp_bfl.evaluation.metrics import check_probabilities, of_classes
from tfp_bfl.named import Table, WithArgument, parse

# Probabilities [B, C] -> scores of the classes [B, C] in [0, 1]; a larger one enters a set earlier.
Score = Callable[[np.ndarray], np.ndarray]
_ROUNDING = 1e-12


def probability() -> Score:
    """Return the score p_c (Sadinle, Lei & Wasserman 2019, arXiv:1609.00451)."""
    return lambda probabilities: probabilities


def aps() -> Score:
    """Return the score of adaptive prediction sets: 1 less the probability of all classes at least as likely as c.

        s_c = 1 - sum_(j: p_j >= p_c) p_j

    Without the random part of the paper: coverage is the same, and sets do not depend on a seed. Of equally likely
    classes the first comes first. Source: Romano, Sesia & Candes 2020 (arXiv:2006.02544).
    """
    return raps(0.0)


def raps(penalty: float, free: int = 1) -> Score:
    """Return the score of regularised adaptive prediction sets, which keeps improbable classes out of large sets.

        s_c = 1 - (sum_(j: p_j >= p_c) p_j + penalty max(0, rank_c - free)) / (1 + penalty max(0, C - free))

    rank_c is 1 for the likeliest class; penalty and free are lambda and k_reg of the paper. The divisor keeps scores in
    [0, 1] and changes no set. Source: Angelopoulos et al. 2021 (arXiv:2009.14193), without its random part.
    """
    check_number(penalty, "penalty", zero=True)
    check_count(free, "free")

    def score(probabilities: np.ndarray) -> np.ndarray:
        order = np.argsort(-probabilities, axis=-1, kind="stable")
        ranked = np.cumsum(np.take_along_axis(probabilities.astype(np.float64), order, -1), -1)
        classes = probabilities.shape[-1]
        ranked += penalty * np.maximum(0, np.arange(1, classes + 1) - free)
        found = np.empty_like(ranked)
        np.put_along_axis(found, order, ranked, -1)
        return np.clip(1 - found / (1 + penalty * max(0, classes - free)), 0.0, 1.0)

    return score


SCORES: Table = {"probability": probability, "aps": aps, "raps": WithArgument(raps, "penalty")}


def score_of(score: str | Score) -> Score:
    """Return the score that text names."""
    return parse(SCORES, score, "score")() if isinstance(score, str) else score


@of_classes
def scores_of_labels(probabilities: Any, labels: Any, score: str | Score) -> np.ndarray:
    """Return the score of each example's label [B]."""
    found: np.ndarray = score_of(score)(probabilities.numpy())
    return np.take_along_axis(found, labels.numpy()[:, np.newaxis], -1)[:, 0]


def conformal_limit(probabilities: Any, labels: Any, coverage: float, score: str | Score = "probability") -> float:
    """Compute the least score with which a class is in a prediction set (`prediction_sets`).

        t = the k-th largest of the scores of the labels s_b,y_b,    k = ceil((B + 1) coverage)

    The set of a new example that is exchangeable with these held-out ones holds its label with at least
    that probability, whatever the model: over draws of both, not for each class or client.

    Source: split conformal prediction, Vovk, Gammerman & Shafer 2005; this score, Sadinle, Lei & Wasserman 2019
    (arXiv:1609.00451).

    Args:
      coverage: above 0 and below 1.
      score: "probability", "aps", "raps:PENALTY", or a function of probabilities [B, C] such as `raps` returns. Sets by
        the probability are smallest on average; those of "aps" and "raps" differ less in coverage between easy and hard
        examples.

    Example:
      >>> sure = np.random.default_rng(0).uniform(0.5, 1, 200)
      >>> labels = (np.random.default_rng(1).uniform(size=200) > sure).astype(int)
      >>> print(round(bfl.evaluation.conformal_limit(np.stack([sure, 1 - sure], axis=1), labels, coverage=0.9), 3))
      0.294
    """
    check_share(coverage, "coverage")
    true = scores_of_labels(probabilities, labels, score)
    k = math.ceil((len(true) + 1) * coverage - _ROUNDING)
    if k > len(true):
        least = math.ceil(coverage / (1 - coverage) - _ROUNDING)
        raise InvalidArgument(
            f"Sets with a coverage of {coverage:g} take at least {least} held-out examples, and here are {len(true)}."
        )
    return float(np.sort(true)[::-1][k - 1])


def prediction_sets(probabilities: object, limit: float, score: str | Score = "probability") -> np.ndarray:
    """Return each example's prediction set, bool [B, C]: classes of at least that score, and the likeliest.

    Args:
      limit: of `conformal_limit`, or `ClientCalibration.limit`.
      score: by which the limit was chosen.

    Example:
      >>> bfl.evaluation.prediction_sets(np.array([[0.9, 0.1], [0.6, 0.4]]), 0.3)
      array([[ True, False],
             [ True,  True]])
    """
    check_number(limit, "limit", zero=True, within=(0.0, LARGEST))
    array = check_probabilities(probabilities).numpy()
    sets: np.ndarray = score_of(score)(array) >= limit
    sets[np.arange(len(array)), array.argmax(-1)] = True
    return sets
