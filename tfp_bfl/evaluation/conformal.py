"""Prediction sets by split conformal prediction, the scores by which classes enter a set, and sets of each client."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import special, stats

from tfp_bfl.errors import LARGEST, MOST_NAMES, InvalidArgument, check_count, check_number, check_share
from tfp_bfl.evaluation.metrics import check_probabilities, of_classes
from tfp_bfl.named import Table, WithArgument, parse

# Probabilities [B, C] -> scores of the classes [B, C] in [0, 1], arrays or tensors; larger ones enter a set earlier.
Score = Callable[[Any], Any]
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

    def score(probabilities: Any) -> Any:
        values, classes = tf.convert_to_tensor(probabilities), probabilities.shape[-1]
        order = tf.argsort(values, direction="DESCENDING", stable=True)
        ranked = tf.cumsum(tf.gather(values, order, batch_dims=1), -1)
        ranked += tf.constant(penalty * np.maximum(0, np.arange(1, classes + 1) - free), values.dtype)
        found = tf.gather(ranked, tf.argsort(order), batch_dims=1)
        scores = tf.clip_by_value(1 - found / (1 + penalty * max(0, classes - free)), 0.0, 1.0)
        return scores if tf.is_tensor(probabilities) else scores.numpy()

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

    `score` is "probability", "aps", "raps:PENALTY", or a function of probabilities [B, C] such as `raps` returns. Sets
    by the probability are smallest on average; those of "aps" and "raps" differ less in coverage between easy and hard
    examples.

    Source: split conformal prediction, Vovk, Gammerman & Shafer 2005; this score, Sadinle, Lei & Wasserman 2019
    (arXiv:1609.00451).

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
        least = f"take at least {math.ceil(coverage / (1 - coverage) - _ROUNDING)} held-out examples"
        raise InvalidArgument(f"Sets with coverage {coverage:g} {least}, and here are {len(true)}.")
    return float(np.sort(true)[::-1][k - 1])


def prediction_sets(probabilities: object, limit: Any, score: str | Score = "probability") -> np.ndarray:
    """Return each example's prediction set, bool [B, C]: classes of at least that score, and the likeliest.

    The limit is of `conformal_limit`, or `ClientCalibration.limit`, by the same score; or there is one for each example
    [B].

    Example:
      >>> bfl.evaluation.prediction_sets(np.array([[0.9, 0.1], [0.6, 0.4]]), 0.3)
      array([[ True, False],
             [ True,  True]])
    """
    for value in np.unique(limit) if np.ndim(limit) else [limit]:
        check_number(value, "limit", zero=True, within=(0.0, LARGEST))
    array = check_probabilities(probabilities).numpy()
    scores = score_of(score)(array)
    sets: np.ndarray = scores >= np.reshape(np.asarray(limit, scores.dtype), [-1, 1])
    sets[np.arange(len(array)), array.argmax(-1)] = True
    return sets


BINS = 1000
# Of the logarithm of the concentration: from clients that have nothing in common to clients that are all alike.
_CONCENTRATIONS, _GRID = (-3.0, 10.0), 53
_NEGLIGIBLE, _TIE = 1e-15, 1e-9


def label_histogram(
    probabilities: object, labels: object, bins: int = BINS, score: str | Score = "probability"
) -> np.ndarray:
    """Count the scores of the labels in equal bins of [0, 1]: int64 [bins].

    Histograms of clients add up to that of all their examples, so that secure sums serve. Arguments are those of
    `conformal_limit`.

    Example:
      >>> bfl.evaluation.label_histogram(np.array([[0.9, 0.1], [0.3, 0.7]]), [0, 0], bins=4)
      array([0, 1, 0, 1])
    """
    check_count(bins, "bins")
    true = scores_of_labels(probabilities, labels, score)
    return np.bincount(np.minimum((true * bins).astype(np.int64), bins - 1), minlength=bins)


class ClientCalibration(NamedTuple):
    """The distribution of the coverage of clients, as `calibrate_clients` found it.

    Fields:
      histogram: of all clients together [bins].
      concentrations: values of c of the Dirichlet process from which clients' distributions of scores are drawn: a
        client's own labelled examples count as much as all others' from c of them on [G].
      weights: the posterior probability of each, under equal ones before [G].
      coverage, confidence: as of `calibrate_clients`.
      unseen: the limit for a client that was never seen, or the reason why there is none.
    """

    histogram: np.ndarray
    concentrations: np.ndarray
    weights: np.ndarray
    coverage: float
    confidence: float
    unseen: float | str

    @property
    def concentration(self) -> float:
        """The most probable c."""
        return float(self.concentrations[np.argmax(self.weights)])

    def limit(self, own: np.ndarray | None = None) -> float:
        """Compute the least probability with which a class is in a client's prediction sets (`prediction_sets`).

        With F(t) the share of all examples with a label of probability at least t, and n, k(t) the number of the
        client's own examples and of those among them,

            coverage(t) ~ Beta(c F(t) + k(t), c (1 - F(t)) + n - k(t)),   t = the largest with
            P(coverage(t) >= `coverage`) >= `confidence`, averaged over c

        With many of its own examples a client calibrates alone. A client without any was never seen: its limit has the
        clients as its units (`calibrate_clients`).

        Args:
          own: histogram of the client's labelled examples [bins], which it did not train on; None for none. Those of a
            client of the calibration count in F too.

        Source: Ferguson 1973 for the posterior of a Dirichlet process; shrinkage to the federation's quantile.
        """
        counts = None if own is None else _checked(own)
        if counts is None or not counts.any():
            if isinstance(self.unseen, str):
                raise InvalidArgument(self.unseen)
            return self.unseen
        if counts.shape != self.histogram.shape:
            raise InvalidArgument(f"own has {counts.size} bins, but the federation has {self.histogram.size}.")
        # From the highest bin down: at least its lower end.
        share = np.cumsum(self.histogram[::-1]) / self.histogram.sum()
        inside, number = np.cumsum(counts[::-1]), counts.sum()
        counted = self.weights > _NEGLIGIBLE
        c = self.concentrations[counted, np.newaxis]
        a, b = c * share + inside, c * (1 - share) + number - inside
        # The upper tail of Beta(a, b).
        above = special.betainc(np.maximum(b, 1e-12), np.maximum(a, 1e-12), 1 - self.coverage)
        holds = self.weights[counted] @ np.where(a > 0, above, 0.0)
        first = int(np.argmax(np.append(holds >= self.confidence, True)))
        return max(len(share) - 1 - first, 0) / len(share)


def calibrate_clients(
    histograms: Any, coverage: float = 0.9, confidence: float = 0.9, together: bool = False
) -> ClientCalibration:
    """Fit the distribution of clients, by which prediction sets of each client, known or new, are calibrated.

    Sets by `conformal_limit` hold the promised coverage on average over clients; for a client with other classes than
    the average they can miss it by far. Here the distribution of the label's probability at each client is drawn from a
    Dirichlet process around that of all clients. The beta-binomial likelihood of how many of each client's examples the
    federation's limit covers gives its concentration c a posterior: the less clients differ, the larger c is.

    For clients with labelled examples the promise is approximate, as F is taken as exact. Simulated at a confidence of
    0.9, with 80 examples a client whose temperatures or labels differ: with 10 to 12 clients it is kept for .79 to .91
    of new clients with 50 labelled examples and .82 to .88 of the clients of the calibration, with 40 clients for .87
    to .91 and .87 to .90.

    For a client that was never seen the promise is exact for any distribution of clients, if the client is exchangeable
    with these K. With d = 1 - confidence and n_k examples of client k,

        j = max(1, floor((K + 1) d / 2)),    p = j / ((K + 1) d)
        t_k = the m_k-th largest score of client k,    m_k = the least m with P(Binomial(n_k, coverage) < m) >= p
        t = the j-th smallest of t_1 .. t_K

    With probability p or more t_k is at most the largest limit that covers client k. Of K + 1 exchangeable clients the
    new one has r others with a smaller largest limit, r = 0 .. K, with probability 1 / (K + 1) each, and t exceeds its
    own only if fewer than j of these r have t_k below: sum_r P(Binomial(r, p) < j) / (K + 1) <= j / (p (K + 1)) = d.
    The bound takes p < 1, K + 1 > 1 / d: at least 10 clients at a confidence of 0.9, 20 at 0.95. Fewer are refused.

    Args:
      histograms: `label_histogram` of each client's held-out examples [K, bins].
      coverage: with which sets of a client are to hold the label.
      confidence: the probability, over clients, that they do.
      together: the confidence is that of all K clients of the calibration at once. Each then has the confidence
        1 - (1 - confidence) / K (Bonferroni), with larger sets.

    Sources: Wilks 1941 for the limit of one client; clients as units, Dunn, Wasserman & Ramdas 2022 (arXiv:1809.07441)
    and Lee, Barber & Willett 2023 (arXiv:2306.06342).

    Example:
      >>> rng = np.random.default_rng(0)
      >>> sure = [rng.beta(4 + 4 * (k % 3), 2, 100) for k in range(20)]
      >>> histograms = [np.histogram(p, bins=1000, range=(0, 1))[0] for p in sure]
      >>> calibration = bfl.evaluation.calibrate_clients(histograms)
      >>> print([round(calibration.limit(own), 2) for own in (None, histograms[0], histograms[2])])
      [0.32, 0.37, 0.7]
    """
    check_share(coverage, "coverage")
    check_share(confidence, "confidence")
    checked = [_checked(histogram) for histogram in histograms]
    if len({len(histogram) for histogram in checked}) > 1:
        bins = ", ".join(str(len(histogram)) for histogram in checked[:MOST_NAMES])
        raise InvalidArgument(f"The histograms of the clients have {bins} bins, but all must have the same.")
    filled = [histogram for histogram in checked if histogram.any()]
    if len(filled) < 2:
        raise InvalidArgument(f"{len(filled)} clients have held-out examples, but how clients differ takes at least 2.")
    counts = np.stack(filled)
    pooled = counts.sum(0)
    above = np.cumsum(pooled[::-1]) / pooled.sum()
    first = int(np.argmax(above >= coverage))
    covered, numbers = counts[:, ::-1][:, : first + 1].sum(1), counts.sum(1)
    share = float(np.clip(above[first], 1e-6, 1 - 1e-6))
    unseen = _unseen(counts, coverage, confidence)
    if together:
        confidence = 1 - (1 - confidence) / len(counts)
    c = np.exp(np.linspace(*_CONCENTRATIONS, _GRID))
    inside, outside = c[:, np.newaxis] * share, c[:, np.newaxis] * (1 - share)
    likelihoods = special.betaln(inside + covered, outside + numbers - covered) - special.betaln(inside, outside)
    weights = special.softmax(likelihoods.sum(1))
    return ClientCalibration(pooled, c, weights, float(coverage), float(confidence), unseen)


def _unseen(counts: np.ndarray, coverage: float, confidence: float) -> float | str:
    """Compute the limit for a client that was never seen (`calibrate_clients`), or return why there is none."""
    number, bins = counts.shape
    miss = (number + 1) * (1 - confidence)
    rank = max(1, int(miss / 2 + _TIE))
    certainty = rank / miss
    if certainty > 1 - _TIE:
        least = int(1 / (1 - confidence) + _TIE)
        return (
            f"Sets for clients that were never seen take at least {least} clients with held-out examples at confidence "
            f"{confidence:g}, and here are {number}: lower the confidence, or label examples of the new client."
        )
    places = stats.binom.ppf(certainty, counts.sum(1), coverage) + 1
    few = places > counts.sum(1)
    if few.sum() >= rank:
        least = int(np.ceil(np.log1p(-certainty) / np.log(coverage)))
        return (
            f"Sets for clients that were never seen take at least {least} held-out examples of each client at coverage "
            f"{coverage:g} and confidence {confidence:g}, but {few.sum()} of {number} clients have fewer."
        )
    reached = np.cumsum(counts[:, ::-1], 1) >= places[:, np.newaxis]
    limits = np.where(few, 0.0, (bins - 1 - np.argmax(reached, 1)) / bins)
    return float(np.sort(limits)[rank - 1])


def _checked(histogram: object) -> np.ndarray:
    counts = np.asarray(histogram)
    if counts.ndim != 1 or not counts.size or not np.all(np.isfinite(counts)) or np.any(counts < 0):
        raise InvalidArgument("A histogram must be counts of at least 0 for each bin [bins].")
    return counts.astype(np.float64)
