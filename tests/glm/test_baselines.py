"""Linear models as baselines of a run."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import sklearn.linear_model

import tfp_bfl as bfl
from tfp_bfl.app.one_run import pipeline, records
from tfp_bfl.glm.baselines import PRIOR_STDDEV

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(300, 3)).astype(np.float32)
NOISY = FEATURES @ [1.0, -2.0, 0.0] + RNG.normal(size=300)
CLASSES = (NOISY > 0.5).astype(np.int64)


def split(labels, **facts):
    parts = slice(200), slice(200, None)
    return (
        bfl.data.Source("t", name, FEATURES[part], labels[part], **facts)
        for name, part in zip(("train", "test"), parts)
    )


def test_the_linear_model_of_classes_is_penalised_logistic_regression():
    train, test = split(CLASSES, class_names=("no", "yes"))
    frequencies, linear = pipeline.baselines(train.partition(bfl.data.iid(5), seed=0), test)
    oracle = sklearn.linear_model.LogisticRegression(C=1e6, tol=1e-8).fit(FEATURES[:200], CLASSES[:200])
    nll = -np.log(oracle.predict_proba(FEATURES[200:])[np.arange(100), CLASSES[200:]]).mean()
    assert linear.metrics["test_nll"] == pytest.approx(nll, abs=0.02)
    assert linear.metrics["accuracy"] == pytest.approx(oracle.score(FEATURES[200:], CLASSES[200:]), abs=0.02)
    assert frequencies.metrics["accuracy"] == np.mean(CLASSES[200:] == np.bincount(CLASSES[:200]).argmax())


def test_the_linear_model_of_numbers_is_in_their_units():
    target = bfl.data.Column("y", 10.0, 3.0)
    train, test = split(((NOISY - 10) / 3).astype(np.float32), target=target)
    mean, linear = pipeline.baselines(train.partition(bfl.data.iid(5), seed=0), test)
    oracle = sklearn.linear_model.LinearRegression().fit(FEATURES[:200], NOISY[:200])
    rmse = np.sqrt(np.mean((oracle.predict(FEATURES[200:]) - NOISY[200:]) ** 2))
    assert linear.metrics["rmse"] == pytest.approx(rmse, rel=0.01)
    assert mean.metrics["rmse"] == pytest.approx(np.sqrt(np.mean((NOISY[200:] - NOISY[:200].mean()) ** 2)), rel=1e-4)
    model = SimpleNamespace(mean=np.full(100, NOISY[:200].mean()), stddev=np.full(100, NOISY[:200].std()))
    (warning,) = pipeline.worse_than(model, [mean, linear], test)
    assert "worse than a baseline" in warning and f"linear model is {linear.metrics['test_nll']:.3f}" in warning


def test_numbers_far_from_zero_keep_their_scores():
    """Labels in float32 are all 1e9: the RMSE of a constant was 0 there."""
    labels = ((NOISY - NOISY[:200].mean()) / NOISY[:200].std()).astype(np.float32)
    found = []
    for shift in (0.0, 1e9):
        train, test = split(labels, target=bfl.data.Column("y", shift, 3.0))
        found.append(pipeline.baselines(train.partition(bfl.data.iid(5), seed=0), test))
        np.testing.assert_allclose(records.truth(test), shift + 3 * labels[200:].astype(np.float64), rtol=1e-15)
    for near, far in zip(*found):
        assert far.metrics == pytest.approx(near.metrics, rel=1e-5)


def test_the_linear_model_of_several_classes_is_the_mode_under_the_prior():
    """Against a general minimiser of the penalised likelihood, with a column for each class."""
    labels = np.digitize(NOISY, [-1.0, 1.0])
    train, test = split(labels, class_names=("low", "middle", "high"))
    _, linear = pipeline.baselines(train.partition(bfl.data.iid(5), seed=0), test)

    def loss(flat):
        weights, bias = flat[:9].reshape(3, 3), flat[9:]
        outputs = FEATURES[:200] @ weights + bias
        fit = scipy.special.logsumexp(outputs, -1) - outputs[np.arange(200), labels[:200]]
        return fit.sum() + np.square(weights).sum() / (2 * PRIOR_STDDEV**2)

    mode = scipy.optimize.minimize(loss, np.zeros(12), tol=1e-8).x
    outputs = FEATURES[200:] @ mode[:9].reshape(3, 3) + mode[9:]
    nll = scipy.special.logsumexp(outputs, -1) - outputs[np.arange(100), labels[200:]]
    assert linear.name == "linear model" and linear.metrics["test_nll"] == pytest.approx(nll.mean(), abs=1e-3)


def of_sites(labels, **facts):
    """Training rows of sites a to e, and test rows of these and of a site f."""
    sites = np.array(list("abcdef"))
    owners = sites[np.arange(200) % 5], sites[np.arange(100) % 6]
    return (
        bfl.data.Source("t", each.split, each.features, each.labels, owners=owners[number], **facts)
        for number, each in enumerate(split(labels, **facts))
    )


SITES = np.array([-4.0, -1.0, 0.0, 2.0, 3.0, 0.0])
OF_SITES = NOISY + np.concatenate([SITES[np.arange(200) % 5], SITES[np.arange(100) % 6]])


def test_the_hierarchical_model_has_an_intercept_for_each_client_and_the_mean_one_for_others():
    target = bfl.data.Column("y", 10.0, 3.0)
    train, test = of_sites(((OF_SITES - 10) / 3).astype(np.float32), target=target)
    _, linear, found, features = pipeline.baselines(train.clients, test)
    rows = [(FEATURES[:200][k::5].astype(float), train.labels[k::5].astype(float)) for k in range(5)]
    fitted = bfl.glm.fit_hierarchical(rows, prior_stddev=PRIOR_STDDEV)
    known = lambda i: i % 6 if i % 6 < 5 else None
    of_rows = [fitted.linear_predictor(FEATURES[[200 + i]].astype(float), known(i)) for i in range(100)]
    centre, stddev = (np.concatenate(x) for x in zip(*of_rows))
    expected = scipy.stats.norm(10 + 3 * centre, 3 * np.sqrt(stddev**2 + fitted.posterior.dispersion))
    np.testing.assert_allclose(found.losses, -expected.logpdf(OF_SITES[200:]), rtol=1e-4)
    assert found.name == "linear model with client intercepts"
    assert found.metrics["rmse"] < 0.7 * linear.metrics["rmse"]
    assert features.name == "random features with client intercepts"
    assert features.metrics["test_nll"] == pytest.approx(found.metrics["test_nll"], abs=0.05)


def test_random_features_are_better_where_the_mean_bends():
    target = bfl.data.Column("y", 10.0, 3.0)
    bent = 2 * np.sin(2 * FEATURES[:, 0]) + np.concatenate([SITES[np.arange(200) % 5], SITES[np.arange(100) % 6]])
    train, test = of_sites((bent / 3).astype(np.float32), target=target)
    _, _, linear, features = pipeline.baselines(train.clients, test)
    assert features.metrics["test_nll"] < linear.metrics["test_nll"] - 0.1


def test_the_hierarchical_model_of_two_classes():
    train, test = of_sites((OF_SITES > 0.5).astype(np.int64), class_names=("no", "yes"))
    _, linear, found, _ = pipeline.baselines(train.clients, test)
    assert found.metrics["test_nll"] < linear.metrics["test_nll"] - 0.1


@pytest.mark.parametrize("case", ["no names of the test rows", "clients of another partition", "one client"])
def test_where_there_is_no_hierarchical_model(case):
    facts = {"class_names": ("low", "middle")}
    train, test = of_sites(CLASSES, **facts)
    test = list(split(CLASSES, **facts))[1] if case == "no names of the test rows" else test
    clients = train.partition(bfl.data.iid(5), seed=0) if case == "clients of another partition" else train.clients
    clients = bfl.data.Clients(train, clients.indices[:1]) if case == "one client" else clients
    assert [each.name for each in pipeline.baselines(clients, test)] == ["class frequencies", "linear model"]


def test_a_class_that_no_client_has():
    labels = np.where(np.arange(300) < 200, CLASSES, 2)
    train, test = split(labels, class_names=("no", "yes", "never seen"))
    found = pipeline.baselines(train.partition(bfl.data.iid(5), seed=0), test)
    assert all(np.isfinite(each.metrics["test_nll"]) and each.metrics["accuracy"] == 0 for each in found)


def test_images_have_no_linear_model():
    digits = bfl.data.load("digits", split="test")
    assert [each.name for each in pipeline.baselines(digits.partition(bfl.data.iid(2), seed=0), digits)] == [
        "class frequencies"
    ]


def test_one_class_alone_at_the_clients_is_no_failure():
    train, test = split(np.where(np.arange(300) < 200, 0, CLASSES), class_names=("no", "yes"))
    assert pipeline.baselines(train.partition(bfl.data.iid(5), seed=0), test)[0].metrics["test_nll"] > 0


def test_client_intercepts_of_three_classes_are_among_the_baselines():
    own = np.random.default_rng(1).gumbel(size=(300, 3)) + np.outer(OF_SITES, [1, 0, -1])
    train, test = of_sites(np.argmax(own, 1), class_names=("x", "y", "z"))
    found = {one.name: one.metrics["test_nll"] for one in pipeline.baselines(train.clients, test)}
    assert found["linear model with client intercepts"] < found["linear model"]
