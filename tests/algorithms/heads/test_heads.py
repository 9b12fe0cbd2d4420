"""Exact heads against other programs: scikit-learn, SciPy, AFL's recursion, and all examples in one place."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize, special, stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from tests.kit import assert_same
from tfp_bfl import algorithms, federated, models, training
from tfp_bfl.algorithms.heads import classes, posterior, ridge, softmax
from tfp_bfl.algorithms.heads.sums import TEMPERATURES, ClassSums
from tfp_bfl.data import Clients, Source, label_skew
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import marginals, sample
from tfp_bfl.posterior.kronecker import symmetric, upper

RNG = np.random.default_rng(7)
CLASSES, SIZE = 3, 4
LABELS = RNG.integers(CLASSES, size=120)
FEATURES = RNG.normal(size=(120, SIZE)) @ RNG.normal(size=(SIZE, SIZE)) + 1.5 * np.eye(CLASSES, SIZE)[LABELS] + 3
SOURCE = Source("made", "train", np.float32(FEATURES), np.int32(LABELS), ("a", "b", "c"))
double = functools.partial(tf.constant, dtype=tf.float64)
HEADS = ("gaussian", "ridge", "softmax")


def sums_of(x, y, classes=CLASSES):
    onehot = np.eye(classes)[y]
    return ClassSums(*map(tf.constant, (onehot.sum(0), onehot.T @ x, (x.T @ x)[np.triu_indices(x.shape[1])])))


def run(head, clients, rounds=2, **options):
    network = models.linear("deterministic", input_shape=(SIZE,), num_classes=CLASSES)
    process = algorithms.head(network, head=head, element_spec=clients.element_spec, **options)
    return process, federated.simulate(process, clients, rounds, engine="local")


def test_triangle():
    matrix = FEATURES.T @ FEATURES
    np.testing.assert_array_equal(symmetric(upper(tf.constant(matrix))), np.triu(matrix) + np.triu(matrix, 1).T)


@pytest.mark.parametrize("head", HEADS)
def test_clients_of_one_class_have_the_head_of_all_examples_in_one_place(head):
    alone = Clients(SOURCE, [np.arange(120)])
    apart = SOURCE.partition(label_skew(3, 1), seed=0)
    one, many = (run(head, clients, held_back=0.0, rounds=3)[1].state for clients in (alone, apart))
    assert_same(one.weights.point, many.weights.point, rtol=1e-5, atol=1e-6)
    assert_same(one.step.features, many.step.features, rtol=1e-13)


@pytest.mark.parametrize(
    "head", ["ridge", pytest.param("softmax", marks=pytest.mark.deep(after="tests/rules/test_sums.py"))]
)
def test_sums_of_whole_numbers_which_masks_hide_have_the_same_head(head):
    clients = SOURCE.partition(label_skew(3, 1), seed=0)
    plain, hidden = (run(head, clients, **more)[1].state for more in ({}, {"secure_sums": 100.0}))
    assert_same(plain.step.features, hidden.step.features, rtol=1e-6)
    np.testing.assert_allclose(plain.step.losses, hidden.step.losses, rtol=1e-6)


def test_the_sums_of_the_others_are_those_without_a_client_that_left():
    parts = [sums_of(FEATURES[rows], LABELS[rows]) for rows in (slice(0, 50), slice(50, 90), slice(90, 120))]
    total = functools.reduce(lambda a, b: ClassSums(*map(tf.add, a, b)), parts)
    left = ClassSums(*map(tf.subtract, total, parts[1]))
    kept = np.r_[0:50, 90:120]
    for head in ("gaussian", "ridge"):
        found, wanted = (
            posterior.fit(sums, posterior.HeadSettings(head)).mean
            for sums in (left, sums_of(FEATURES[kept], LABELS[kept]))
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_ridge_is_that_of_scikit_learn_and_of_the_recursion_of_AFL():
    fit, onehot = ridge.fit_ridge(sums_of(FEATURES, LABELS)), np.eye(CLASSES)[LABELS]
    penalty = float(fit.penalty)
    other = Ridge(alpha=penalty).fit(FEATURES, onehot)
    np.testing.assert_allclose(fit.mean[:-1], other.coef_.T, rtol=1e-8)
    np.testing.assert_allclose(fit.mean[-1], other.intercept_, rtol=1e-8)
    # He et al. 2025, eqs. 9 and 10: W_ab = (C_a + C_b)^-1 (C_a W_a + C_b W_b), with C_k = X_k^T X_k + r I.
    x, y = FEATURES - FEATURES.mean(0), onehot - onehot.mean(0)
    merged, rows = None, np.array_split(np.argsort(LABELS), 5)
    for part in rows:
        c = x[part].T @ x[part] + penalty / len(rows) * np.eye(SIZE)
        own = c, np.linalg.solve(c, x[part].T @ y[part])
        if merged is None:
            merged = own
            continue
        total = merged[0] + own[0]
        merged = total, np.linalg.solve(total, merged[0] @ merged[1] + own[0] @ own[1])
    np.testing.assert_allclose(fit.mean[:-1], merged[1], rtol=1e-8)


def test_ridge_has_the_marginal_likelihood_of_its_labels_and_its_covariance():
    fit, onehot = ridge.fit_ridge(sums_of(FEATURES, LABELS)), np.eye(CLASSES)[LABELS]
    noise, t = float(fit.noise), float(fit.noise / fit.penalty)
    # Orthogonal to the intercept.
    q = np.linalg.svd(np.ones([1, 120]))[2][1:]
    x, y = q @ FEATURES, q @ onehot
    density = stats.multivariate_normal(np.zeros(119), noise * np.eye(119) + t * x @ x.T)
    np.testing.assert_allclose(fit.log_marginal_likelihood, density.logpdf(y.T).sum(), rtol=1e-8)
    for factor in (0.8, 1.25):
        worse = stats.multivariate_normal(np.zeros(119), noise * np.eye(119) + factor * t * x @ x.T)
        assert worse.logpdf(y.T).sum() < fit.log_marginal_likelihood
    z = np.c_[FEATURES, np.ones(120)]
    covariance = noise * np.linalg.inv(z.T @ z + float(fit.penalty) * np.diag([1.0] * SIZE + [0.0]))
    rows, stddev = (np.asarray(x) for x in ridge.row_factors(fit))
    np.testing.assert_allclose(rows * stddev**2 @ rows.T, covariance, rtol=1e-8, atol=1e-12)


def test_gaussian_predicts_by_the_t_distribution_of_scipy():
    fit = classes.fit_gaussian(sums_of(FEATURES, LABELS))
    found, (degrees, factor) = classes.log_predictive(fit, FEATURES[:9]), (float(fit.degrees), np.asarray(fit.factor))
    for c in range(CLASSES):
        df, kappa = degrees - SIZE + 1, float(fit.kappas[c])
        shape = factor @ factor.T * (kappa + 1) / (kappa * df)
        t = stats.multivariate_t(np.asarray(fit.means[c]), shape, df)
        np.testing.assert_allclose(found[:, c], t.logpdf(FEATURES[:9]) + float(fit.log_priors[c]), rtol=1e-10)


def test_gaussian_has_the_marginal_likelihood_of_one_prediction_after_another():
    prior = classes.ClassPrior(FEATURES.mean(0), 0.7, 9.0, 2.5)
    x, y = FEATURES[:30], LABELS[:30]
    total = 0.0
    for i in range(30):
        fit = classes.fit_gaussian(sums_of(x[:i], y[:i]), prior)
        total += float((classes.log_predictive(fit, x[i : i + 1]) - fit.log_priors)[0, y[i]])
    np.testing.assert_allclose(classes.fit_gaussian(sums_of(x, y), prior).log_marginal_likelihood, total, rtol=1e-10)


def test_gaussian_is_linear_discriminant_analysis_of_many_examples():
    y = np.tile(np.arange(CLASSES), 3000)
    x = RNG.normal(size=(9000, SIZE)) @ RNG.normal(size=(SIZE, SIZE)) + np.eye(CLASSES, SIZE)[y]
    fit = classes.fit_gaussian(sums_of(x, y))
    wanted = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y).predict_proba(x[:50])
    for logits in (classes.log_predictive(fit, x[:50]), np.c_[x[:50], np.ones(50)] @ classes.plug_in(fit)):
        np.testing.assert_allclose(tf.nn.softmax(logits), wanted, atol=0.01)


def test_draws_of_gaussian_classes_have_their_means():
    """Error rate: 15 means, each beyond 5 standard errors with probability 6e-7."""
    fit = classes.fit_gaussian(sums_of(FEATURES, LABELS))
    kernel, bias = classes.draws(fit, tf.constant([3, 4]), 2000).values
    drawn = np.concatenate([kernel, bias[:, np.newaxis]], 1)
    error = drawn.std(0) / np.sqrt(2000)
    assert np.all(np.abs(drawn.mean(0) - classes.plug_in(fit)) < 5 * error)
    precision = float(fit.degrees) * np.linalg.inv(fit.factor @ tf.transpose(fit.factor))
    each = np.diag(precision) / np.asarray(fit.kappas)[:, np.newaxis]  # Of Sigma^-1 mu around Sigma^-1 mean.
    variance = each * (1 - 2 / CLASSES) + each.mean(0) / CLASSES  # Less the mean of the classes.
    assert np.all(0.8 * variance < kernel.numpy().var(0).T)


def objective(x, y, precision):
    """The negative log posterior of softmax regression on standardised features, and its gradient."""
    z = np.c_[(x - x.mean(0)) / x.std(0), np.ones(len(x))]
    onehot = np.eye(CLASSES)[y]

    def of(flat):
        v = flat.reshape(-1, CLASSES)
        logits = z @ v
        value = np.sum(special.logsumexp(logits, axis=1) - np.sum(logits * onehot, 1)) + precision * np.sum(v**2) / 2
        return value, np.ravel(z.T @ (special.softmax(logits, axis=1) - onehot) + precision * v)

    return of


def test_softmax_ends_at_the_mode():
    stddev, x = 0.7, np.float64(np.float32(FEATURES))
    _, found = run(
        "softmax", Clients(SOURCE, [np.arange(50), np.arange(50, 120)]), 20, held_back=0.0, prior_stddev=stddev
    )
    wanted = optimize.minimize(
        objective(x, LABELS, stddev**-2), np.zeros((SIZE + 1) * CLASSES), jac=True, tol=1e-12, method="L-BFGS-B"
    ).x.reshape(-1, CLASSES)
    kernel = wanted[:-1] / x.std(0)[:, np.newaxis]
    np.testing.assert_allclose(found.state.weights.point[0], kernel, atol=2e-5)
    np.testing.assert_allclose(found.state.weights.point[1], wanted[-1] - x.mean(0) @ kernel, atol=2e-5)
    assert float(found.state.step.search.distance) < 1e-4 and not found.warnings


def softmax_sums(at, basis, x=FEATURES, y=LABELS, classes=CLASSES):
    """The gradient and the Fisher information of all examples at weights V of a basis."""
    x = np.c_[x, np.ones(len(x))]
    p = special.softmax(x @ (basis.vectors @ at), axis=1)
    return x.T @ (p - np.eye(classes)[y]), np.diag(p.sum(0)) - p.T @ p


def test_the_first_step_of_softmax_is_that_of_Newton_from_zero():
    search = softmax.begin(softmax.empty(SIZE + 1, CLASSES), sums_of(FEATURES, LABELS), 0.7)
    gradient, fisher = softmax_sums(np.zeros((SIZE + 1, CLASSES)), search.basis)
    np.testing.assert_allclose(search.fisher, fisher, atol=1e-10)
    np.testing.assert_allclose(search.slope, tf.transpose(search.basis.vectors) @ gradient, atol=1e-9)
    hessian = np.kron(np.diag(search.basis.values), fisher / 120) + 0.7**-2 * np.eye((SIZE + 1) * CLASSES)
    np.testing.assert_allclose(np.ravel(search.mode), -np.linalg.solve(hessian, np.ravel(search.slope)), atol=1e-8)


def test_a_step_of_softmax_that_goes_wrong_is_taken_back():
    search = softmax.begin(softmax.empty(SIZE + 1, CLASSES), sums_of(FEATURES, LABELS), 0.7)
    far = search._replace(mode=search.mode + 100.0)
    back = softmax.advance(far, *softmax_sums(far.mode, far.basis), 0.7)
    bound = np.asarray(search.basis.values)[:, np.newaxis] / 2 + 0.7**-2
    np.testing.assert_allclose(back.best, search.best)
    np.testing.assert_allclose(back.mode, -search.slope / bound, atol=1e-10)


def test_softmax_ends_at_the_maximum_of_the_marginal_likelihood_of_its_prior():
    search = softmax.begin(softmax.empty(SIZE + 1, CLASSES), sums_of(FEATURES, LABELS), None)
    for _ in range(60):
        search = softmax.advance(search, *softmax_sums(search.mode, search.basis), None)
    _, curvatures = softmax.shared_curvature(search.basis, search.fisher)
    effective = np.sum(curvatures / (curvatures + search.precision))
    np.testing.assert_allclose(effective, search.precision * np.sum(np.square(search.mode)), rtol=1e-6)
    wanted = optimize.minimize(
        objective(FEATURES, LABELS, float(search.precision)), np.zeros((SIZE + 1) * CLASSES), jac=True, tol=1e-12
    ).x.reshape(-1, CLASSES)
    kernel = wanted[:-1] / FEATURES.std(0)[:, np.newaxis]
    np.testing.assert_allclose((search.basis.vectors @ search.mode)[:-1], kernel, atol=1e-5)


def test_the_prior_of_many_classes_stays_wide_where_most_rows_are_predicted_well():
    """The quadratic model of the first steps, of little curvature, has its largest evidence at the prior stddev 0."""
    rng, number = np.random.default_rng(0), 100
    y = rng.integers(number, size=3000)
    x = rng.normal(size=(3000, 64)) + rng.normal(size=(number, 64))[y]
    search = softmax.begin(softmax.empty(65, number), sums_of(x, y, number), None)
    for _ in range(4):
        search = softmax.advance(search, *softmax_sums(search.mode, search.basis, x, y, number), None)
        assert 0.1 < float(search.precision) ** -0.5 < 1


@pytest.mark.parametrize(("apart", "stddev"), [(0.5, None), (1.0, None), (1.0, 0.3)])
@pytest.mark.parametrize("seed", range(2))
def test_the_objective_of_many_classes_falls_in_each_message(apart, stddev, seed):
    """100 Gaussian classes, 64 features; for the weights before and after a step, by the prior of this step."""
    rng, number = np.random.default_rng(seed), 100
    y = rng.integers(number, size=3000)
    x = rng.normal(0, apart, (number, 64))[y] + rng.normal(size=(3000, 64))
    search, ones = softmax.begin(softmax.empty(65, number), sums_of(x, y, number), stddev), np.c_[x, np.ones(3000)]
    log_p = lambda v: special.log_softmax(ones @ (search.basis.vectors @ v), axis=1)[np.arange(3000), y]
    value = lambda v: float(search.precision) / 2 * np.sum(np.square(v)) - np.sum(log_p(v))
    for _ in range(5):
        before = search.mode
        search = softmax.advance(search, *softmax_sums(before, search.basis, x, y, number), stddev)
        assert value(search.mode) < value(before)


def test_equal_standard_deviations_of_isotropic_features_are_no_warning():
    x = np.float32(np.tile(np.concatenate([np.eye(SIZE), -np.eye(SIZE)]), (30, 1)))
    source = Source("isotropic", "train", x, np.int32(np.arange(len(x)) % CLASSES), ("a", "b", "c"))
    process, found = run("ridge", Clients(source, [np.arange(100), np.arange(100, len(x))]), held_back=0.0)
    assert process.server_step.needs.closed_form
    assert not [warning for warning in found.warnings if "the same number" in warning]


def test_softmax_states_that_it_is_far_from_the_mode():
    _, found = run("softmax", Clients(SOURCE, [np.arange(120)]), 2)
    assert "run more rounds, each with all clients" in found.warnings[0]


def test_shared_curvature_is_exact_where_all_examples_have_one_fisher_information():
    basis, fisher = softmax.basis_of(sums_of(FEATURES, LABELS)), np.array([[2.0, -1, -1], [-1, 2, -1], [-1, -1, 2]]) / 9
    found = posterior.fit_softmax(basis, np.zeros([SIZE + 1, CLASSES]), 120 * fisher, np.float64(1.7))
    scale = np.r_[FEATURES.std(0), 1.0]
    z = np.c_[(FEATURES - FEATURES.mean(0)) / scale[:-1], np.ones(120)]
    covariance = np.linalg.inv(np.kron(z.T @ z, fisher) + 1.7 * np.eye((SIZE + 1) * CLASSES))
    wanted = np.diag(covariance).reshape(-1, CLASSES)[:-1] / scale[:-1, np.newaxis] ** 2
    np.testing.assert_allclose(marginals(found.posterior).variance[0], wanted, rtol=1e-5)
    drawn = sample(found.posterior, (1, 2), 4000)[0]
    # Error rate: 12 variances, each beyond 6 standard deviations of its estimate with probability 1e-8.
    np.testing.assert_allclose(drawn.numpy().var(0), wanted, rtol=6 * np.sqrt(2 / 4000))


def test_temperature_is_that_of_the_rows_held_back():
    clients = Clients(SOURCE, [np.arange(50), np.arange(50, 120)])
    process, found = run("ridge", clients, held_back=0.25)
    held = np.r_[np.arange(50)[3::4], np.arange(50, 120)[3::4]]
    fitted = np.setdiff1d(np.arange(120), held)
    np.testing.assert_allclose(found.state.step.features.counts, np.bincount(LABELS[fitted]))
    drawn = found.state.step.message.samples
    logits = np.einsum("bf,sfc->sbc", np.c_[np.float32(FEATURES[held]), np.ones(len(held))], drawn)
    p = lambda heat: special.softmax(logits / heat, axis=2).mean(0)[np.arange(len(held)), LABELS[held]]
    wanted = [-np.log(p(heat)).sum() for heat in TEMPERATURES]
    np.testing.assert_allclose(found.state.step.losses, [*wanted, len(held)], rtol=1e-5)
    best = posterior.fitted_temperature(np.asarray(found.state.step.losses))
    penalised = np.array(wanted) + np.log(TEMPERATURES) ** 2 / 2
    assert abs(np.log(best / TEMPERATURES[np.argmin(penalised)])) <= 0.05
    given = process.predictive_weights(found.state).posterior
    np.testing.assert_allclose(given.mean[0] * best, found.state.weights.point[0], rtol=1e-5)
    np.testing.assert_allclose(posterior.fitted_temperature(np.zeros(62)), 1.0)


@pytest.mark.parametrize("head", HEADS)
def test_constant_columns_clients_of_one_row_and_a_class_that_nobody_has(head):
    features = np.float32(np.c_[FEATURES[:, :3], np.full(120, 2.0)])
    source = Source("made", "train", features, np.int32(LABELS // 2), ("a", "b", "c"))
    process, found = run(head, Clients(source, [np.arange(1), np.arange(1, 120)]), 2)
    logits = found.model(features[:20]).numpy()
    assert np.all(np.isfinite(logits)) and not np.any(logits.argmax(1) == 2)
    if head == "gaussian":
        fit = classes.fit_gaussian(found.state.step.features)
        number = float(tf.reduce_sum(found.state.step.features.counts))
        np.testing.assert_allclose(fit.log_priors[2], -np.log(number + 3))
    assert process.predictive_weights(found.state).posterior


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"head": "lda"}, "There is no head 'lda'"),
        ({"prior_stddev": 1.0}, "prior_stddev is of the heads ridge and softmax"),
        ({"held_back": 0.6}, "held_back"),
        ({"softmax_temperature": 0.0}, "softmax_temperature"),
        ({"sum_bits": 7}, "sum_bits is 7, but must be 8, 10, 12, 16 or 64"),
        ({"head": "softmax", "example_privacy": training.ExamplePrivacy(1.0, 1.0)}, "use head gaussian or ridge"),
        ({"example_privacy": training.ExamplePrivacy(0.0, 1.0)}, "clip_norm"),
        ({"sum_bits": 8, "secure_sums": 10.0}, "leave out sum_bits or secure_sums"),
        (
            {"network": models.linear("deterministic", input_shape=(4097,), num_classes=3)},
            "4,097 features and 3 classes, .* 0.4 GiB",
        ),
        (
            {"network": tf.keras.Sequential([tf.keras.layers.Dense(3, "tanh", input_shape=(4,))])},
            "An exact head requires",
        ),
        ({"network": models.linear("flipout", input_shape=(4,), num_classes=3)}, "has variational layers"),
    ],
)
def test_refused(options, text):
    options = {"network": models.linear("deterministic", input_shape=(4,), num_classes=3), **options}
    with pytest.raises(InvalidArgument, match=text):
        algorithms.head(options.pop("network"), **options)


@pytest.mark.deep(after="tests/algorithms/heads/test_heads.py")
@pytest.mark.statistical
@pytest.mark.parametrize("head", ["gaussian", "ridge"])
def test_posterior_is_calibrated_under_its_prior(head):
    """Ranks of the truth among 19 draws are uniform (Talts et al. 2018, arXiv:1804.06788).

    Error rate: chi-square tests of 2 numbers at the level 1e-4 each.
    """
    ranks = []
    for k in range(300):
        rng = np.random.default_rng(k)
        if head == "gaussian":
            prior = classes.ClassPrior(np.zeros(2), 0.5, 6.0, 2.0)
            sigma = stats.invwishart(6, 2 * np.eye(2)).rvs(random_state=rng)
            means = rng.multivariate_normal(np.zeros(2), sigma / 0.5, size=2)
            y = np.arange(12) % 2
            x = means[y] + rng.multivariate_normal(np.zeros(2), sigma, size=12)
            kernel = classes.draws(classes.fit_gaussian(sums_of(x, y, 2), prior), tf.constant([k, 1]), 19).values[0]
            truth = np.linalg.solve(sigma, (means - means.mean(0)).T)
        else:
            x, t = rng.normal(size=(12, 2)), 0.8
            truth, noise = t * rng.normal(size=(2, 2)), 0.25
            y = x @ truth + np.sqrt(noise) * rng.normal(size=(12, 2))
            values, vectors = np.linalg.eigh((x - x.mean(0)).T @ (x - x.mean(0)))
            cross = (x - x.mean(0)).T @ y
            fit = ridge.Ridge(
                *map(double, (np.zeros([3, 2]), x.mean(0), vectors, values, noise / t**2, noise, 12.0, 0.0))
            )
            rows, stddev = (np.asarray(part) for part in ridge.row_factors(fit))
            mean = vectors @ (vectors.T @ cross / (values + noise / t**2)[:, None])
            kernel = mean + (rows * stddev @ rng.normal(size=(19, 3, 2)))[:, :-1]
        ranks.append(
            [
                int(np.sum(np.asarray(kernel)[:, 0, 0] < truth[0, 0])),
                int(np.sum(np.asarray(kernel)[:, 1, 1] < truth[1, 1])),
            ]
        )
    for each in np.transpose(ranks):
        assert stats.chisquare(np.bincount(each, minlength=20)).pvalue > 1e-4


def test_the_engine_compiled_refuses_the_gaussian_head_before_work_and_has_the_same_softmax():
    clients = Clients(SOURCE, [np.arange(50), np.arange(50, 120)])
    process = lambda head: algorithms.head(
        models.linear("deterministic", input_shape=(SIZE,), num_classes=CLASSES),
        head=head,
        element_spec=clients.element_spec,
    )
    with pytest.raises(InvalidArgument, match="The engine compiled lacks draws from a gamma distribution"):
        federated.simulate(process("gaussian"), clients, 2, engine="compiled")
    found, wanted = (federated.simulate(process("softmax"), clients, 3, engine=x).state for x in ("compiled", "local"))
    np.testing.assert_allclose(found.weights.point[0], wanted.weights.point[0], rtol=1e-4)
