"""Predictive sampling, uncertainty and its parts, calibration, retention, out-of-distribution scores, normality."""

from typing import TYPE_CHECKING

from tfp_bfl.evaluation.calibration import (
    Reliability,
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)
from tfp_bfl.evaluation.client_sets import ClientCalibration, calibrate_clients, label_histogram
from tfp_bfl.evaluation.confidence import ConfidenceCurve, confidence_curve
from tfp_bfl.evaluation.decomposition import (
    EntropyParts,
    Summary,
    Traces,
    Uncertainty,
    decompose,
    decompose_entropy,
    scalars,
    summarise,
)
from tfp_bfl.evaluation.limits import (
    Limit,
    RiskCoverage,
    abstention_limit,
    area_under_risk_coverage,
    at_temperature,
    conformal_limit,
    fit_temperature,
    prediction_sets,
    risk_coverage,
)
from tfp_bfl.evaluation.memory import check_num_samples
from tfp_bfl.evaluation.metrics import (
    accuracy,
    agreement,
    brier_score,
    macro_precision,
    macro_recall,
    negative_log_likelihood,
    total_variation,
)
from tfp_bfl.evaluation.out_of_distribution import OutOfDistribution, out_of_distribution
from tfp_bfl.evaluation.permutation import evaluate_permuted, permuted_stddevs
from tfp_bfl.evaluation.predictive import (
    PRECISIONS,
    Evaluation,
    draw_outputs,
    draw_probabilities,
    evaluate,
    evaluator,
    is_stochastic,
    predict,
    sample_probabilities,
    sample_seeds,
)
from tfp_bfl.evaluation.regression import (
    COVERAGE,
    GaussianSummary,
    RegressionEvaluation,
    central_interval,
    evaluate_regression,
    gaussians,
    mixture_nll,
    summarise_gaussians,
)
from tfp_bfl.evaluation.repeats import Difference, Repeats, over_seeds, paired_difference
from tfp_bfl.evaluation.retention import RetentionCurve, area_under_retention_curve, retention_curve
from tfp_bfl.evaluation.rounds import rounds_to, running_mean
from tfp_bfl.evaluation.sums import (
    NUMBER_SUMS,
    SUMS,
    add_sums,
    as_examples,
    check_sums,
    from_sums,
    is_of_numbers,
    number_sums,
    reliability_of,
    risk_coverage_of,
    score_sums,
)
from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.contrib.normality import Normality, normality, normality_summary

export_later(__name__, dict.fromkeys(("Normality", "normality", "normality_summary"), "tfp_bfl.contrib.normality"))

__all__ = [
    "COVERAGE",
    "NUMBER_SUMS",
    "PRECISIONS",
    "SUMS",
    "ClientCalibration",
    "ConfidenceCurve",
    "Difference",
    "EntropyParts",
    "Evaluation",
    "GaussianSummary",
    "Limit",
    "Normality",
    "OutOfDistribution",
    "RegressionEvaluation",
    "Reliability",
    "Repeats",
    "RetentionCurve",
    "RiskCoverage",
    "Summary",
    "Traces",
    "Uncertainty",
    "abstention_limit",
    "accuracy",
    "add_sums",
    "agreement",
    "area_under_retention_curve",
    "area_under_risk_coverage",
    "as_examples",
    "at_temperature",
    "brier_score",
    "calibrate_clients",
    "central_interval",
    "check_num_samples",
    "check_sums",
    "confidence_curve",
    "conformal_limit",
    "decompose",
    "decompose_entropy",
    "draw_outputs",
    "draw_probabilities",
    "evaluate",
    "evaluate_permuted",
    "evaluate_regression",
    "evaluator",
    "expected_calibration_error",
    "fit_temperature",
    "from_sums",
    "gaussians",
    "is_of_numbers",
    "is_stochastic",
    "label_histogram",
    "macro_precision",
    "macro_recall",
    "maximum_calibration_error",
    "mixture_nll",
    "negative_log_likelihood",
    "normality",
    "normality_summary",
    "number_sums",
    "out_of_distribution",
    "over_seeds",
    "paired_difference",
    "permuted_stddevs",
    "predict",
    "prediction_sets",
    "reliability",
    "reliability_of",
    "retention_curve",
    "risk_coverage",
    "risk_coverage_of",
    "rounds_to",
    "running_mean",
    "sample_probabilities",
    "sample_seeds",
    "scalars",
    "score_sums",
    "summarise",
    "summarise_gaussians",
    "total_variation",
]
