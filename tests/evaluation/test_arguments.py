"""Arguments of scores, limits and sets that fit no definition are refused in one sentence."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import evaluation
from tfp_bfl.evaluation.limits import RetentionCurve

NAN, INF = float("nan"), float("inf")
P = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3]])
Y, U = np.array([0, 1, 1]), np.array([0.1, 0.9, 0.3])
PAIR, TWENTY = np.array([[0.5, 0.5]]), (np.tile([[0.9, 0.1]], (20, 1)), np.zeros(20, int), np.arange(20.0))
MEANS, VARIANCES, LABELS = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), np.zeros(3, np.float32)
ONES = np.ones(5)
# Scores of probabilities and labels -> what else they take.
OF_CLASSES = {
    **dict.fromkeys(("accuracy", "macro_recall", "macro_precision", "negative_log_likelihood", "brier_score"), ()),
    **dict.fromkeys(("reliability", "expected_calibration_error", "maximum_calibration_error"), ()),
    **dict.fromkeys(("adaptive_calibration_error", "classwise_calibration_error", "confidence_curve"), ()),
    **dict.fromkeys(("confusion_matrix", "auroc", "class_scores", "fit_temperature", "label_histogram"), ()),
    **{"retention_curve": (U,), "risk_coverage": (U,), "conformal_limit": (0.5,)},
}


def changed(array, value):
    array = array.copy()
    array[(0,) * array.ndim] = value
    return array


@pytest.mark.parametrize("score", OF_CLASSES)
@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (P, [0, 1], "as many as"),
        (P, [[0], [1], [1]], r"shape \[B\]"),
        (P, [0.0, 1.0, 1.0], "integers"),
        (P, [0, 1, 3], r"\[0, 3\)"),
        (P, [-1, 1, 2], r"\[0, 3\)"),
        (P[0], [0], r"shape \[B, C\]"),
        (np.zeros((0, 3)), np.zeros(0, np.int64), "on the axis B"),
        (P * 4, Y, "softmax"),
        (P * 0.9, Y, "sum to 1"),
    ],
)
def test_probabilities_and_labels(score, probabilities, labels, message):
    refuses(message, getattr(evaluation, score), probabilities, labels, *OF_CLASSES[score])


@pytest.mark.parametrize("parts", ["decompose", "summarise", "decompose_entropy"])
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.ones((2, 3)) / 3, r"shape \[S, B, C\]"),
        (np.ones((2, 3, 1)), "two classes"),
        (np.ones((0, 3, 2)), "on the axis S"),
        (np.full((1, 1, 2), np.nan), "finite"),
        (np.array([[[1.5, -0.5]]]), r"\[0, 1\]"),
        (np.array([[[0.5, 0.4]]]), "sum to 1"),
        (np.array([[[1, 0]]]), "float32 or float64"),
        ("text", "float32 or float64"),
        ([[0.5], [0.5, 0.5]], "array of numbers"),
    ],
)
def test_samples_of_probabilities(parts, samples, message):
    refuses(message, getattr(evaluation, parts), samples)


# Function, arguments, words of the error; a mapping last is of keyword arguments.
REFUSED = [
    # -1 reversed the order of the classes, and 0 gave NaN.
    *[("at_temperature", (PAIR, x), "temperature is") for x in (-1.0, 0.0, NAN, INF, "1", None, True)],
    *[("central_interval", (MEANS, VARIANCES, x), "coverage is") for x in (0.0, 1.0, 1.5, -0.1, NAN, "0.9", None)],
    *[("prediction_sets", (PAIR, x), "limit is") for x in (NAN, INF, -0.1, None, "0.3")],
    ("prediction_sets", (PAIR, 0.5, "raps"), "lacks its penalty"),
    ("prediction_sets", (PAIR, 0.5, "raps:-1"), "penalty is -1"),
    ("prediction_sets", (PAIR, 0.5, "rap"), "no score 'rap'"),
    ("calibrate_clients", ([[0, 0, 1], [0, 1]],), "have 3, 2 bins, but all must have the same"),
    ("calibrate_clients", ([],), "0 clients have held-out examples"),
    ("calibrate_clients", ([ONES, 0 * ONES],), "1 clients have held-out examples"),
    ("calibrate_clients", ([ONES, -ONES],), "counts of at least 0"),
    ("calibrate_clients", ([ONES] * 2, 1.0), "coverage is 1.0"),
    ("calibrate_clients", ([ONES] * 2, 0.9, 0.0), "confidence is 0.0"),
    ("label_histogram", (PAIR, [0], 0), "bins"),
    ("abstention_limit", TWENTY, "Give either the accuracy"),
    ("abstention_limit", (*TWENTY, {"accuracy": 0.9, "coverage": 0.5}), "and not both"),
    ("abstention_limit", (*TWENTY, {"accuracy": 1.0}), "accuracy is 1.0, but must be above 0"),
    ("abstention_limit", (*TWENTY, {"coverage": 0}), "coverage is 0, but must be above 0"),
    ("abstention_limit", (*TWENTY, {"coverage": 1, "confidence": 1}), "confidence is 1, but must be"),
    ("abstention_limit", (*TWENTY[:2], [NAN] * 20, {"coverage": 1}), "uncertainty must be finite"),
    ("risk_coverage", (*TWENTY[:2], TWENTY[2][1:]), "19 uncertainties, but 20 labels"),
    ("conformal_limit", (*TWENTY[:2], 0.99), "take at least 99 held-out examples, and here are 20"),
    ("conformal_limit", (*TWENTY[:2], 1.0), "coverage is 1.0"),
    ("agreement", (P, PAIR), r"shapes \(3, 3\) and \(1, 2\), but must be of the same"),
    *[("reliability", (P, Y, x), "num_bins is .*, but must be an integer of at least 1") for x in (0, 2.5, True, "15")],
    *[
        (f"{name}_calibration_error", (P, Y, 15, "class"), "There is no calibration over 'class': did you mean")
        for name in ("expected", "maximum")
    ],
    ("confidence_curve", (P, Y, 0), "num_points"),
    ("retention_curve", (P, Y, [0.1]), "as many as"),
    ("retention_curve", (P, Y, U[:, None]), r"shape \[B\]"),
    ("retention_curve", (P, Y, [0.1, NAN, 0.2]), "finite"),
    ("retention_curve", (P, Y, ["a", "b", "c"]), "numbers"),
    ("retention_curve", (P, Y, U, 0), "num_points is 0, but must be an integer of at least 1"),
    ("area_under_retention_curve", (RetentionCurve(tf.ones([3]), tf.ones([2])),), "one shape"),
    ("proportion_interval", (5, 4), "count is 5, but must be from 0 to number, 4"),
    ("proportion_interval", (1, 4, 1.0), "confidence is 1.0"),
    ("proportion_interval", (1, 4, 0.9, "wald"), "wald"),
    *[
        (name, mixture, message)
        for name in ("mixture_nll", "mixture_crps")
        for mixture, message in [
            ((MEANS, changed(VARIANCES, -1), LABELS), "variances must be"),
            ((changed(MEANS, NAN), VARIANCES, LABELS), "must be finite"),
            ((MEANS, changed(VARIANCES, INF), LABELS), "must be finite"),
            ((MEANS, VARIANCES, changed(LABELS, NAN)), "must be finite"),
            ((MEANS, VARIANCES[:1], LABELS), r"but they are \[2, 3\], \[1, 3\]"),
            ((MEANS, VARIANCES, LABELS[:2]), r"must be of shape \[S, B\]"),
            ((MEANS[0], VARIANCES[0], LABELS), r"must be of shape \[S, B\]"),
        ]
    ],
    ("mixture_nll", (MEANS, 0 * VARIANCES, LABELS), "variances must be above 0"),
    ("out_of_distribution", ([], [0.1]), "scores_in must have at least one"),
    ("out_of_distribution", ([0.1], []), "scores_out must have at least one"),
    ("out_of_distribution", ([0.1, NAN], [0.1]), "scores_in must be finite"),
    ("out_of_distribution", ([0.1], [INF]), "scores_out must be finite"),
    ("out_of_distribution", ([[0.1]], [0.1]), "scores_in must be numbers of shape"),
    ("out_of_distribution", ([0.1], 0.1), "scores_out must be numbers of shape"),
    *[("out_of_distribution", ([x], [0.1]), "scores_in must be numbers") for x in ("a", True)],
    ("out_of_distribution", ([0.1], [1j]), "scores_out must be numbers"),
    ("out_of_distribution", ([0.1], [[1.0], [1.0, 2.0]]), "scores_out must be a tensor"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_refused(name, arguments, message):
    named = arguments[-1] if isinstance(arguments[-1], dict) else {}
    refuses(message, getattr(evaluation, name), *arguments[: len(arguments) - bool(named)], **named)


def test_ends_of_ranges_are_inside_and_histograms_have_the_bins_of_the_calibration():
    refuses("own has 4 bins", evaluation.calibrate_clients([ONES] * 2).limit, np.ones(4))
    np.testing.assert_array_equal(evaluation.prediction_sets(PAIR, 0), True)
    np.testing.assert_array_equal(evaluation.prediction_sets(PAIR, np.float32(1)).sum(1), 1)
    # Variances of 0 are a sample.
    np.testing.assert_array_equal(evaluation.mixture_crps(MEANS, 0 * VARIANCES, LABELS + 1), 1)


# Scores that NumPy does not compute: they run in graphs, of any number of rows.
IN_GRAPHS = [name for name in OF_CLASSES if name not in (
    *("adaptive_calibration_error", "classwise_calibration_error", "confusion_matrix", "auroc", "class_scores"),
    *("fit_temperature", "label_histogram", "risk_coverage", "conformal_limit"),
)]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", IN_GRAPHS)
def test_graphs_with_unknown_batch_and_any_labels(name, dtype):
    score, more = getattr(evaluation, name), OF_CLASSES[name]
    wanted = tf.nest.flatten(score(P.astype(dtype), Y, *more))
    types = [(P.astype(dtype), [None, 3]), (Y.astype(np.int32), [None]), *((x.astype(dtype), [None]) for x in more)]
    graph = tf.function(score, input_signature=[tf.TensorSpec(shape, x.dtype) for x, shape in types])
    for a, b in zip(tf.nest.flatten(graph(*(x for x, _ in types))), wanted, strict=True):
        assert a.dtype == b.dtype and (dtype == np.float64 or b.dtype != tf.float64)
        np.testing.assert_allclose(a, b, rtol=1e-6)
    for kind in (np.uint8, np.int32):
        assert_same(tf.nest.flatten(score(P.astype(dtype), Y.astype(kind), *more)), wanted)
