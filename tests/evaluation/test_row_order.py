"""No public score depends on the order of its rows, equal values included."""

import numpy as np
import pytest

from tfp_bfl import evaluation

ROWS, CLASSES, SAMPLES = 120, 3, 4


def rows():
    """Rows with ties: few distinct predictions, and labels that depend on the place of the row."""
    rng = np.random.default_rng(5)
    samples = rng.dirichlet(np.ones(CLASSES), [SAMPLES, 6])
    kind = np.sort(rng.integers(6, size=ROWS))
    labels = np.where(np.arange(ROWS) % 2, rng.integers(CLASSES, size=ROWS), kind % CLASSES)
    order = np.lexsort([labels, kind])  # The worst order: sorted by label among equal predictions.
    kind, labels = kind[order], labels[order].astype(np.int64)
    means = rng.normal(size=[SAMPLES, 6])[:, kind]
    return {
        "p": samples.mean(0)[kind],
        "samples": samples[:, kind],
        "y": labels,
        "u": rng.integers(3, size=6)[kind].astype(float),
        "means": means,
        "variances": np.exp(rng.normal(size=[SAMPLES, 6]))[:, kind],
        "numbers": np.round(rng.normal(size=ROWS), 1),
        "x": np.round(rng.normal(size=[ROWS, 2]), 1),
        "other": np.round(rng.normal(size=50), 1),
    }


def permuted(data, order):
    moved = lambda x: x[:, order] if x.ndim > 1 and x.shape[1] == ROWS else x[order]
    return {name: x if name == "other" else moved(x) for name, x in data.items()}


def by_row(parts):
    return [np.sort(x, 0) for x in map(np.asarray, parts)]


E, OVER = evaluation, ("top_label", "classes")
# Name -> its value from `rows`; functions that give one value a row are sorted.
CALLS = {
    "abstention_limit": lambda d: E.abstention_limit(d["p"], d["y"], d["u"], coverage=0.6),
    "accuracy": lambda d: E.accuracy(d["p"], d["y"]),
    "adaptive_calibration_error": lambda d: E.adaptive_calibration_error(d["p"], d["y"], 7),
    "agreement": lambda d: E.agreement(d["p"], d["samples"][0]),
    "area_under_retention_curve": lambda d: E.area_under_retention_curve(E.retention_curve(d["p"], d["y"], d["u"])),
    "area_under_risk_coverage": lambda d: E.area_under_risk_coverage(E.risk_coverage(d["p"], d["y"], d["u"])),
    "at_temperature": lambda d: np.sort(E.at_temperature(d["p"], 0.7), 0),
    "auroc": lambda d: E.auroc(d["p"], d["y"]),
    "better_baseline": lambda d: E.better_baseline(10 + d["numbers"], [E.training_mean(0.1, 1.2, d["numbers"])]).name,
    "brier_score": lambda d: E.brier_score(d["p"], d["y"]),
    "client_scores": lambda d: [
        sorted(E.client_scores(predictions, labels, d["u"].astype(int), **more), key=lambda row: row["client"])
        for predictions, labels, more in (
            (d["p"], d["y"], {"covered": d["y"] == 0}),
            (d["means"][0], d["numbers"], {"losses": d["numbers"] ** 2}),
        )
    ],
    "class_frequencies": lambda d: E.class_frequencies(np.array([3, 2, 1]), d["y"]).metrics,
    "class_scores": lambda d: E.class_scores(d["p"], d["y"]),
    "classwise_calibration_error": lambda d: [E.classwise_calibration_error(d["p"], d["y"], 7, x) for x in (0, 1)],
    "confidence_curve": lambda d: E.confidence_curve(d["p"], d["y"]),
    "conformal_limit": lambda d: [E.conformal_limit(d["p"], d["y"], 0.8, x) for x in (E.aps(), E.raps(0.1))],
    "confusion_matrix": lambda d: E.confusion_matrix(d["p"], d["y"]),
    "count_between": lambda d: E.count_between(d["other"], d["numbers"]),
    "decompose": lambda d: by_row(E.decompose(d["samples"])),
    "decompose_entropy": lambda d: by_row(E.decompose_entropy(d["samples"])),
    "expected_calibration_error": lambda d: [E.expected_calibration_error(d["p"], d["y"], 7, x) for x in OVER],
    "feature_histograms": lambda d: E.feature_histograms(d["x"].astype(np.float32)),
    "feature_sums": lambda d: E.unusual.feature_sums(d["x"], d["x"], d["y"], CLASSES),
    "fit_temperature": lambda d: E.fit_temperature(d["p"], d["y"]),
    "homogeneity": lambda d: E.homogeneity(*E.count_between(d["other"], d["numbers"])),
    "label_histogram": lambda d: E.label_histogram(d["p"], d["y"]),
    "macro_precision": lambda d: E.macro_precision(d["p"], d["y"]),
    "macro_recall": lambda d: E.macro_recall(d["p"], d["y"]),
    "maximum_calibration_error": lambda d: [E.maximum_calibration_error(d["p"], d["y"], 7, x) for x in OVER],
    "mixture_crps": lambda d: np.sort(E.mixture_crps(d["means"], d["variances"], d["numbers"])),
    "mixture_nll": lambda d: np.sort(E.mixture_nll(d["means"], d["variances"], d["numbers"])),
    "negative_log_likelihood": lambda d: E.negative_log_likelihood(d["p"], d["y"]),
    "out_of_distribution": lambda d: E.out_of_distribution(d["u"], np.round(d["numbers"])),
    "over_seeds": lambda d: E.over_seeds(d["numbers"].tolist()),
    "paired_difference": lambda d: E.paired_difference(d["numbers"].tolist(), d["u"].tolist()),
    "prediction_sets": lambda d: np.sort(np.asarray(E.prediction_sets(d["p"], 0.6)).sum(1)),
    "reliability": lambda d: E.reliability(d["p"], d["y"], 7),
    "retention_curve": lambda d: E.retention_curve(d["p"], d["y"], d["u"]),
    "risk_coverage": lambda d: E.risk_coverage(d["p"], d["y"], d["u"]),
    "scalars": lambda d: by_row(E.scalars(E.decompose(d["samples"]))),
    "summarise": lambda d: by_row(E.summarise(d["samples"])),
    "central_interval": lambda d: by_row(E.central_interval(d["means"], d["variances"])),
    "summarise_gaussians": lambda d: by_row(E.summarise_gaussians(d["means"], d["variances"])),
    "total_variation": lambda d: E.total_variation(d["p"], d["samples"][0]),
    "training_mean": lambda d: E.training_mean(0.1, 1.2, d["numbers"]).metrics,
}
# Functions that take no rows: sums, curves, counts, models with their noise (which belongs to a place in a batch).
OTHERS = {
    *("add_histograms", "add_sums", "aps", "as_examples", "auroc_interval", "calibrate_clients", "check_num_samples"),
    *(
        "check_sums",
        "client_warnings",
        "draw_outputs",
        "drifts",
        "different_proportions",
        "evaluate",
        "raps",
        "predict",
    ),
    *(
        "evaluate_permuted",
        "evaluate_regression",
        "evaluator",
        "fit_unusual",
        "from_sums",
        "gaussians",
        "scores_of_sums",
    ),
    *("is_stochastic", "least_p_value", "number_sums", "permuted_stddevs", "proportion_interval", "reliability_of"),
    *("risk_coverage_of", "rounds_to", "running_mean", "sample_probabilities", "sample_seeds", "score_sums"),
}


def test_each_public_function_has_a_call_or_takes_no_rows():
    functions = {name for name in evaluation.__all__ if name[0].islower()}
    assert functions | {"feature_sums"} == CALLS.keys() | OTHERS and not CALLS.keys() & OTHERS


def flat(value):
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in flat(value[key])]
    if isinstance(value, (tuple, list)):
        return [x for item in value for x in flat(item)]
    return [value if isinstance(value, str) or value is None else np.asarray(value, np.float64)]


@pytest.mark.parametrize("name", CALLS)
def test_the_value_does_not_depend_on_the_order_of_rows(name):
    data, rng = rows(), np.random.default_rng(3)
    expected = flat(CALLS[name](data))
    for order in (np.arange(ROWS)[::-1], *(rng.permutation(ROWS) for _ in range(4))):
        found = flat(CALLS[name](permuted(data, order)))
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            if isinstance(b, np.ndarray):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            else:
                assert a == b


def adaptive(confidence, hits, num_bins):
    """The equal-mass error by its definition, of distinct confidences."""
    parts = np.array_split(np.argsort(confidence), num_bins)
    return sum(len(p) * abs(hits[p].mean() - confidence[p].mean()) for p in parts if len(p)) / len(confidence)


@pytest.mark.parametrize("num_bins", [1, 4, 7, 15, 40, 300])
def test_distinct_confidences_are_binned_as_before(num_bins):
    rng = np.random.default_rng(num_bins)
    p = rng.dirichlet(np.ones(4), 53)
    y = rng.integers(4, size=53)
    right = adaptive(p.max(1), p.argmax(1) == y, num_bins)
    np.testing.assert_allclose(E.adaptive_calibration_error(p, y, num_bins), right, rtol=1e-6)
    each = [adaptive(p[:, c], y == c, num_bins) for c in range(4)]
    found = E.classwise_calibration_error(p, y, num_bins, equal_mass=True)
    np.testing.assert_allclose(found, np.mean(each), rtol=1e-6)


def test_one_prediction_for_all_rows_is_one_bin():
    p, y = np.full((200, 2), [0.3, 0.7]), np.repeat([0, 1], [60, 140])
    assert E.adaptive_calibration_error(p, y) < 1e-6
    assert E.classwise_calibration_error(p, y, equal_mass=True) < 1e-6
