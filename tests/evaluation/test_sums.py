"""Scores from sums over sites are those of all examples in one place."""

import numpy as np
import pytest

from tests.kit import assert_same, refuses
from tfp_bfl import evaluation
from tfp_bfl.evaluation import Evaluation, add_sums, as_examples, check_sums, from_sums, number_sums, score_sums

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 300)
LOGITS = 2 * RNG.normal(size=(5, 300, 3)) + 2 * np.eye(3)[LABELS]
SAMPLES = (np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)).astype(np.float32)
PARTS = np.split(np.arange(300), [50, 51, 180])


def scored(rows):
    *summary, information = (*evaluation.summarise(SAMPLES[:, rows]), evaluation.decompose_entropy(SAMPLES[:, rows])[2])
    return Evaluation({}, *(x.numpy() for x in summary), information.numpy())


WHOLE = scored(np.arange(300))
TOTAL = add_sums([score_sums(scored(rows), LABELS[rows]) for rows in PARTS])


def test_the_scores_are_the_central_ones():
    p = WHOLE.probabilities
    wanted = {
        "accuracy": evaluation.accuracy(p, LABELS),
        "test_nll": evaluation.negative_log_likelihood(p, LABELS),
        "brier": evaluation.brier_score(p, LABELS),
        "ece": evaluation.expected_calibration_error(p, LABELS),
        **{name: getattr(WHOLE, name).mean() for name in ("entropy", "aleatoric", "epistemic")},
    }
    assert from_sums(TOTAL) == pytest.approx({name: float(x) for name, x in wanted.items()}, rel=1e-5)
    assert from_sums(add_sums([])) == {}


def test_sums_of_two_classes_give_the_scores_of_each_client():
    """Hand-worked: two of three right; of class 1 one of one, of class 0 one of two."""
    p, part = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]], np.float32), np.full(3, 0.1)
    sums = score_sums(Evaluation({}, p, *[part] * 4), [0, 1, 0])
    check_sums(sums, 3)
    (row,) = evaluation.scores_of_sums({"north": sums})
    assert (row["client"], row["n"], row["accuracy"]) == ("north", 3, pytest.approx(2 / 3))
    assert (row["sensitivity"], row["specificity"]) == (1.0, 0.5) and "p_value" not in row
    assert row["test_nll"] == pytest.approx(from_sums(sums)["test_nll"])
    for name, lie in (("correct_0", 2.0), ("label_0", 3.0), ("label_1", 0.5)):
        refuses("not sums over 1 to 3 examples", check_sums, {**sums, name: np.float64(lie)}, 3)
    assert TOTAL["label_0"] == TOTAL["correct_1"] == 0  # of three classes


def test_the_bins_of_confidence_are_the_central_ones():
    found, wanted = evaluation.reliability_of(TOTAL), evaluation.reliability(WHOLE.probabilities, LABELS)
    assert_same([*found], [*wanted], rtol=1e-5)
    assert np.isnan(found.accuracy).any()  # confidences below a third


def test_limits_are_the_central_ones_to_the_width_of_a_bin():
    scored = WHOLE.probabilities, LABELS, WHOLE.entropy
    ours, central = evaluation.risk_coverage_of(TOTAL), evaluation.risk_coverage(*scored)
    for limit, coverage, risk in zip(*ours):
        at = np.searchsorted(central.limit, limit + 1e-6, side="right") - 1
        assert (coverage, risk) == pytest.approx((central.coverage[at], central.risk[at]))
    areas = [evaluation.area_under_risk_coverage(curve) for curve in (ours, central)]
    assert areas[0] == pytest.approx(areas[1], abs=0.01)
    found = evaluation.abstention_limit(*as_examples(TOTAL), coverage=0.5)
    wanted = evaluation.abstention_limit(*scored, coverage=0.5)
    assert found.limit == pytest.approx(wanted.limit, abs=2 / 200) and found.coverage >= 0.5


TRUTH = np.random.default_rng(2).normal(size=90)


def numbers(rows):
    rng = np.random.default_rng(1)
    mean, low, high = rng.normal(size=(3, 90))
    errors, width, part = np.abs(TRUTH - mean), np.abs(high - low), np.abs(mean)
    values = {"mae": errors, "test_nll": TRUTH, "coverage": width > 1, "interval_width": width, "aleatoric": part}
    metrics = {name: np.mean(x[rows]) for name, x in {**values, "epistemic": part**2}.items()}
    metrics["rmse"] = np.sqrt(np.mean(errors[rows] ** 2))
    return evaluation.RegressionEvaluation(metrics, mean[rows], part, part, part, low, high, part)


def test_scores_of_numbers_from_sums_are_those_in_one_place():
    sums = [number_sums(numbers(rows), TRUTH[rows]) for rows in (np.arange(5), np.arange(5, 50), np.arange(50, 90))]
    total = add_sums(sums)
    assert from_sums(total) == pytest.approx(numbers(np.arange(90)).metrics, rel=1e-9)
    assert {name: x.shape for name, x in total.items()} == {
        k: tuple(x.shape) for k, x in evaluation.NUMBER_SUMS.items()
    }
    check_sums(total, 90)
    (row,) = evaluation.scores_of_sums({"north": total})
    (wanted,) = evaluation.client_scores(numbers(np.arange(90)).mean, TRUTH, ["north"] * 90)
    names = ("rmse", "rmse_low", "rmse_high")
    assert [row[name] for name in names] == pytest.approx([wanted[name] for name in names])
    lies = [("fourth", 0.0), ("fourth", total["square"] ** 2 * 2), ("errors", total["errors"] * 2), ("count", 0.0)]
    for name, lie in (*lies, ("count", 91.0), ("covered", 95.0), ("square", -1.0), ("epistemic", -1e-3)):
        refuses("not sums over 1 to 90 examples", check_sums, {**total, name: lie}, 90)


LIES = [("count", 0.0), ("count", 1e6), ("correct", 400.0), ("nll", -1.0), ("brier", 1e4), ("entropy", 301.0)]


@pytest.mark.parametrize(("name", "lie"), [*LIES, ("bin_count", np.zeros(15)), ("kept_correct", np.full(200, 9.0))])
def test_sums_that_no_site_can_have(name, lie):
    check_sums(TOTAL, 300)
    assert {k: x.shape for k, x in TOTAL.items()} == {k: tuple(spec.shape) for k, spec in evaluation.SUMS.items()}
    refuses("not sums over 1 to 300 examples", check_sums, {**TOTAL, name: np.asarray(lie)}, 300)
