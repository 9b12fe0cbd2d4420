"""Estimators with the interface of scikit-learn: its own checks, its own estimators, and the library's fits."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import tfp_bfl as bfl
from tests.kit import refuses
from tfp_bfl.errors import MissingDependency
from tfp_bfl.sklearn import BayesianLastLayer, FederatedGLM

RNG = np.random.default_rng(5)
HEADS = ("gaussian", "ridge", "softmax")
FAMILIES = ("gaussian", "bernoulli", "multinomial")
CANCER, SICK = scale(load_breast_cancer().data[:, :8]), load_breast_cancer().target
IRIS, KINDS = load_iris(return_X_y=True)
# These checks have outcomes that are no counts, which the family refuses.
NO_COUNTS = ("check_n_features_in_after_fitting", "check_regressors_train", "check_regressor_data_not_an_array")
NO_COUNTS += ("check_regressors_no_decision_function", "check_fit_idempotent", "check_fit_check_is_fitted")
NO_COUNTS += ("check_n_features_in",)


@parametrize_with_checks([*map(FederatedGLM, FAMILIES), BayesianLastLayer("ridge")])
def test_all_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.deep(after="tests/test_sklearn.py")
@parametrize_with_checks([BayesianLastLayer("gaussian"), BayesianLastLayer("softmax")])
def test_all_checks_of_scikit_learn_for_the_other_heads(estimator, check):
    check(estimator)


@parametrize_with_checks(
    [FederatedGLM("poisson")], expected_failed_checks=lambda _: dict.fromkeys(NO_COUNTS, "outcomes that are no counts")
)
def test_checks_of_scikit_learn_for_counts(estimator, check):
    check(estimator)


@pytest.mark.parametrize("groups", [None, np.arange(len(SICK)) % 7, np.where(SICK, "b", "a")])
def test_classes_have_the_coefficients_of_logistic_regression_for_any_groups(groups):
    model = FederatedGLM("bernoulli", prior_stddev=0.5).fit(CANCER, SICK, groups)
    other = LogisticRegression(C=0.5**2, tol=1e-10, max_iter=10_000).fit(CANCER, SICK)
    np.testing.assert_allclose(model.posterior_.mean, [*other.intercept_, *other.coef_[0]], atol=1e-6)
    np.testing.assert_array_equal(model.predict(CANCER), other.predict(CANCER))


def test_numbers_and_counts_have_the_coefficients_of_scikit_learn():
    x, y = load_diabetes(return_X_y=True)
    x = scale(x)
    model = FederatedGLM(prior_stddev=20.0).fit(x, y, np.arange(len(y)) % 3)
    other = Ridge(model.posterior_.dispersion / 20.0**2).fit(x, y)
    np.testing.assert_allclose(model.predict(x), other.predict(x), rtol=1e-8)
    assert model.score(x, y) == pytest.approx(other.score(x, y), rel=1e-8)
    counts = RNG.poisson(np.exp(0.3 * x[:, 2]))
    model = FederatedGLM("poisson", prior_stddev=None).fit(x, counts, np.arange(len(y)) % 3)
    other = PoissonRegressor(alpha=0, tol=1e-10, solver="newton-cholesky").fit(x, counts)
    np.testing.assert_allclose(model.posterior_.mean, [other.intercept_, *other.coef_], atol=1e-6)


@pytest.mark.statistical
def test_the_standard_deviation_of_numbers_and_of_counts_is_that_of_draws():
    """Compare with 100,000 draws each; a standard deviation is 2 % off with a probability below 1e-4."""
    x = RNG.normal(size=(40, 2))
    for family, y in {"gaussian": x[:, 0] + RNG.normal(size=40), "poisson": RNG.poisson(np.exp(x[:, 0]))}.items():
        model = FederatedGLM(family).fit(x, y)
        mean, stddev = model.predict(x[:3], return_std=True)
        eta = RNG.normal(*model.posterior_.linear_predictor(x[:3]), size=(100_000, 3))
        noise = RNG.normal(eta, model.posterior_.dispersion**0.5) if family == "gaussian" else RNG.poisson(np.exp(eta))
        np.testing.assert_allclose(mean, noise.mean(0), atol=0.02 * np.max(stddev))
        np.testing.assert_allclose(stddev, noise.std(0), rtol=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_clients_of_the_fit_have_their_coefficients_and_others_are_new(family):
    owners = np.repeat(["north", "south", "west", "east"], 20)
    x = RNG.normal(size=(80, 2))
    score = x[:, 0] + np.repeat([2.0, -2.0, 0.0, 1.0], 20) + RNG.normal(size=80)
    y = score if family == "gaussian" else np.digitize(score, [0] if family == "bernoulli" else [-1, 1])
    model = FederatedGLM(family, prior_stddev=3.0, random=("(intercept)",)).fit(x, y, owners)
    predict = model.predict if family == "gaussian" else model.predict_proba
    asked = np.array(["south", "nowhere", "north", "south", "east"])
    found = predict(x[:5], groups=asked)
    assert list(model.groups_) == ["east", "north", "south", "west"]
    for row, client in enumerate([2, None, 1, 2, 0]):
        wanted = model.posterior_.predict(x[row : row + 1], client)[0]
        np.testing.assert_allclose(found[row][-1] if found.ndim == 2 else found[row], np.ravel(wanted)[-1], rtol=1e-9)
    np.testing.assert_allclose(predict(x[1:2]), found[1:2], rtol=1e-12)


@pytest.mark.parametrize("head", HEADS)
def test_a_head_is_that_of_all_rows_in_one_place(head):
    """Blocks of ten rows: the rows that are held back are the same."""
    order = RNG.permutation(150)
    groups = (None, np.arange(150) // 10)
    alone, apart = (BayesianLastLayer(head).fit(IRIS[order], KINDS[order], x) for x in groups)
    np.testing.assert_allclose(apart.predict_proba(IRIS), alone.predict_proba(IRIS), atol=1e-4)
    assert alone.temperature_ == pytest.approx(apart.temperature_, rel=1e-3)
    assert alone.score(IRIS, KINDS) > 0.8


@pytest.mark.deep(after="tests/test_sklearn.py")
@pytest.mark.statistical
@pytest.mark.parametrize("head", HEADS)
def test_a_head_is_that_of_the_algorithm(head):
    """On average over rows and classes: of the wrong head the difference is 0.035 to 0.11.

    Averages over 100 samples of the same posterior, and of Gaussian classes the exact predictive, differ by 0.001 to
    0.008.
    """
    source = bfl.data.Source("iris", "train", np.float32(scale(IRIS)), np.int32(KINDS), ("a", "b", "c"))
    clients = source.partition(bfl.data.label_skew(3, 1), seed=0)
    network = bfl.models.linear("deterministic", input_shape=(4,), num_classes=3)
    process = bfl.algorithms.head(network, head=head, softmax_temperature=1.0, element_spec=clients.element_spec)
    result = bfl.simulate(process, clients, rounds=60 if head == "softmax" else 2, engine="local")
    rows, owners = np.concatenate(clients.indices), np.repeat(np.arange(3), clients.sizes)
    model = BayesianLastLayer(head, softmax_temperature=1.0).fit(source.features[rows], KINDS[rows], owners)
    wanted = bfl.evaluation.predict(result.model, source.features, num_samples=100).mean(0)
    assert np.mean(np.abs(model.predict_proba(source.features) - wanted)) < 0.012


def test_pipelines_and_cross_validation_take_groups():
    groups = np.arange(len(SICK)) % 9
    for model in (FederatedGLM("bernoulli"), BayesianLastLayer("ridge")):
        assert is_classifier(model) and clone(model).get_params() == model.get_params()
        pipeline = make_pipeline(StandardScaler(), model)
        given = {"params": {f"{type(model).__name__.lower()}__groups": groups}}
        scores = [
            cross_val_score(pipeline, CANCER, SICK, groups=groups, cv=GroupKFold(3), **more) for more in ({}, given)
        ]
        assert np.min(scores) > 0.88
    assert is_regressor(FederatedGLM()) and not hasattr(FederatedGLM(), "predict_proba")


@pytest.mark.parametrize(
    ("options", "change", "sentence"),
    [
        ({}, {"groups": [1, 2]}, r"groups have the shape \(2,\), but must have \(6,\)"),
        ({}, {"groups": [1, 2, 3, 4, 5, np.nan]}, "Input groups contains NaN"),
        ({}, {"y": ["a"] * 6}, "y holds one class, .*'a'.*, but must hold two or more"),
        ({}, {"X": [[1.0], [2], [3], [4], [5], [np.nan]]}, "Input X contains NaN"),
        ({}, {"X": [[1.0]], "y": ["a"]}, "1 sample"),
        ({}, {"y": [*"aabbcc"]}, "Only binary classification is supported by 'bernoulli': use 'multinomial'"),
        ({"family": "probit"}, {}, "There is no family 'probit'"),
        ({"prior_stddev": -1.0}, {}, "prior_stddev is -1.0, but must be a finite number above 0"),
        ({"random": ["x1"]}, {"groups": [1, 1, 1, 2, 2, 2]}, "There is no coefficient 'x1'"),
        ({"random": ["(intercept)"]}, {}, "There is one client"),
        ({"head": "deep"}, {}, "There is no head 'deep'"),
        ({"head": "ridge", "softmax_temperature": 0.0}, {}, "softmax_temperature is 0.0"),
    ],
)
def test_bad_input_is_one_sentence(options, change, sentence):
    make = BayesianLastLayer if "head" in options else FederatedGLM
    options = options if "head" in options else {"family": "bernoulli", **options}
    given = {"X": [[1.0], [2], [3], [4], [5], [6]], "y": [*"ababab"], **change}
    with pytest.raises(ValueError, match=sentence) as error:
        make(**options).fit(**given)
    assert "\n" not in str(error.value)


def test_a_class_that_no_row_had_is_a_warning():
    model = FederatedGLM("bernoulli").fit(IRIS[:100], KINDS[:100])
    with pytest.warns(UserWarning, match="No row of the fit is of the class .*2.*: its rows count as wrong"):
        assert model.score(IRIS, KINDS) == pytest.approx(2 / 3, abs=0.01)
    refuses("return_std is for numbers, and 'bernoulli' has predict_proba", model.predict, IRIS, return_std=True)


def test_the_library_is_imported_without_scikit_learn_and_linear_models_without_tensorflow():
    program = (
        "import sys, tfp_bfl as bfl\nassert 'sklearn' not in sys.modules\n"
        "bfl.sklearn.FederatedGLM().fit([[0], [1], [2]], [0, 1, 3])\n"
        "import sklearn\nassert sklearn.__version__ and bfl.sklearn is not sklearn and 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_scikit_learn_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    spec = importlib.util.find_spec("tfp_bfl.sklearn")
    with pytest.raises(MissingDependency, match=r"^The package 'scikit-learn' is not installed; install with: pip "):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
