"""Predictive sampling, uncertainty and its parts, calibration, retention, out-of-distribution scores, normality."""

from tfp_bfl.evaluation.calibration import (
    Reliability,
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)
from tfp_bfl.evaluation.confidence import ConfidenceCurve, confidence_curve
from tfp_bfl.evaluation.decomposition import Summary, Traces, Uncertainty, decompose, scalars, summarise
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
from tfp_bfl.evaluation.normality import Normality, normality, normality_summary
from tfp_bfl.evaluation.out_of_distribution import OutOfDistribution, out_of_distribution
from tfp_bfl.evaluation.permutation import evaluate_permuted, permuted_stddevs
from tfp_bfl.evaluation.predictive import (
    PRECISIONS,
    Evaluation,
    draw_probabilities,
    evaluate,
    evaluator,
    is_stochastic,
    predict,
    sample_probabilities,
    sample_seeds,
)
from tfp_bfl.evaluation.repeats import Difference, Repeats, over_seeds, paired_difference
from tfp_bfl.evaluation.retention import RetentionCurve, area_under_retention_curve, retention_curve
from tfp_bfl.evaluation.rounds import rounds_to, running_mean

__all__ = [
    "PRECISIONS",
    "ConfidenceCurve",
    "Difference",
    "Evaluation",
    "Limit",
    "Normality",
    "OutOfDistribution",
    "Reliability",
    "Repeats",
    "RetentionCurve",
    "RiskCoverage",
    "Summary",
    "Traces",
    "Uncertainty",
    "abstention_limit",
    "accuracy",
    "agreement",
    "area_under_retention_curve",
    "area_under_risk_coverage",
    "at_temperature",
    "brier_score",
    "check_num_samples",
    "confidence_curve",
    "conformal_limit",
    "decompose",
    "draw_probabilities",
    "evaluate",
    "evaluate_permuted",
    "evaluator",
    "expected_calibration_error",
    "fit_temperature",
    "is_stochastic",
    "macro_precision",
    "macro_recall",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "normality",
    "normality_summary",
    "out_of_distribution",
    "over_seeds",
    "paired_difference",
    "permuted_stddevs",
    "predict",
    "prediction_sets",
    "reliability",
    "retention_curve",
    "risk_coverage",
    "rounds_to",
    "running_mean",
    "sample_probabilities",
    "sample_seeds",
    "scalars",
    "summarise",
    "total_variation",
]
