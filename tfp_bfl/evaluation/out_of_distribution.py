"""Out-of-distribution detection by an uncertainty."""

from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.evaluation.metrics import to_tensor

CAUGHT = 0.95


class OutOfDistribution(NamedTuple):
    """The separation of out-of-distribution examples from the model's test examples by a score.

    Fields:
      auroc: in [0, 1]; a score that knows nothing has 1/2.
      aupr: in (0, 1]; a score that knows nothing has M / (N + M).
      fpr95: in [0, 1], the fraction of *in* at or above the score that 95 % of *out* reach; by chance 0.95.
    """

    auroc: float
    aupr: float
    fpr95: float


def out_of_distribution(scores_in: object, scores_out: object) -> OutOfDistribution:
    """Compute areas under the ROC and the precision-recall curve of a score that is to be large out of distribution.

        auroc = P(out > in) + P(out = in) / 2                over all N M pairs
        aupr  = sum_t (recall_t - recall_t-1) precision_t    over the distinct scores t, from the largest down
        precision_t = |{out >= t}| / |{in or out >= t}|,   recall_t = |{out >= t}| / M

    The positive class is *out*, scores [M] of examples from elsewhere; `scores_in` are [N], of examples like the
    training data. Any uncertainty serves as the score, such as the entropy, or the epistemic part alone. Examples of
    equal score count together. AUPR depends on the share of examples from elsewhere: compare it only where M / N is the
    same.

    Sources: Hendrycks & Gimpel 2017 (arXiv:1610.02136), section 2; computed by scikit-learn (its average precision,
    which does not interpolate).

    Example:
      >>> areas = bfl.evaluation.out_of_distribution(np.array([0.1, 0.2, 0.6]), np.array([0.5, 0.8]))
      >>> print(round(float(areas.auroc), 3))
      0.833
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    scores = [check_scores(scores_in, "scores_in"), check_scores(scores_out, "scores_out")]
    is_out = np.repeat([0, 1], [len(part) for part in scores])
    together = np.concatenate(scores)
    # The largest score that leaves 5 % of those from elsewhere below at most.
    limit = np.sort(scores[1])[int(np.floor((1 - CAUGHT) * len(scores[1]) + 1e-9))]
    return OutOfDistribution(
        float(roc_auc_score(is_out, together)),
        float(average_precision_score(is_out, together, pos_label=1)),
        float(np.mean(scores[0] >= limit)),
    )


def auroc_interval(auroc: float, num_in: int, num_out: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the ends of a confidence interval of an area under the ROC curve of N and M examples: the areas A with

        (auroc - A)^2 = z^2 A (1 - A) (1 + (n - 1) (1 - A) / (2 - A) + (n - 1) A / (1 + A)) / (N M),   n = (N + M) / 2

    so that an area of 1 of few examples has an interval too. Source: Newcombe 2006, method 5, from the variance of
    Hanley & McNeil 1982.

    Example:
      >>> print(np.round(bfl.evaluation.auroc_interval(0.9, 50, 50), 3))
      [0.816 0.946]
    """
    from scipy import optimize, stats

    check_count(num_in, "num_in")
    check_count(num_out, "num_out")
    if not 0 <= auroc <= 1:
        raise InvalidArgument(f"auroc is {auroc}, but must be between 0 and 1.")
    if not 0 < confidence < 1:
        raise InvalidArgument(f"confidence is {confidence}, but must be between 0 and 1.")
    more, z = (num_in + num_out) / 2 - 1, stats.norm.ppf((1 + confidence) / 2)

    def excess(area: float) -> float:
        inner = 1 + more * (1 - area) / (2 - area) + more * area / (1 + area)
        return float(np.square(auroc - area) - z**2 * area * (1 - area) * inner / (num_in * num_out))

    # The ends 0 and 1 solve the equation, too.
    low = optimize.brentq(excess, 0, min(auroc, 1 - 1e-9)) if auroc > 0 else 0.0
    high = optimize.brentq(excess, max(auroc, 1e-9), 1) if auroc < 1 else 1.0
    return float(low), float(high)


def check_scores(scores: object, name: str) -> np.ndarray:
    """Return scores [N], finite and at least one, as a float64 array."""
    tensor = to_tensor(scores, name)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer) or tensor.shape.rank != 1:
        raise InvalidArgument(f"{name} must be numbers of shape [N], not {tensor.dtype.name} {tensor.shape}.")
    values = tensor.numpy().astype(np.float64)
    if not values.size:
        raise InvalidArgument(f"{name} must have at least one score, but is empty.")
    if not np.all(np.isfinite(values)):
        raise InvalidArgument(f"{name} must be finite, but holds NaN or infinity.")
    return values
