"""The generators behind the layers' noise: Gaussian draws, signs, and perturbations that are drawn already."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfp_bfl.layers import DenseFlipout, noise, sampling
from tfp_bfl.tensors import traced_for_xla

from .helpers import convolution, dense

NUMBER = 2**20
SEED = tf.constant([3, 1])


def normals(size, seed=SEED):
    return noise.standard_normal(size, tf.constant(seed)).numpy()


@tf.function(autograph=False, jit_compile=True)
def by_xla(seed):
    with traced_for_xla():
        return noise.standard_normal(NUMBER, seed), noise.random_signs(NUMBER // 8, 8, seed, tf.float32)


@pytest.fixture(scope="module", params=["TensorFlow", "XLA"])
def draws(request):
    values = normals(NUMBER) if request.param == "TensorFlow" else by_xla(SEED)[0].numpy()
    return values.astype(np.float64)


def assert_zero_mean(values, variance, bound=5.0):
    """`values` have mean 0 if they are independent with this variance."""
    error = np.sqrt(variance / len(values))
    assert abs(values.mean()) < bound * error, f"{values.mean() / error:.1f} standard errors away"


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("excess", "variance"),
    [
        (lambda z: z, 1),
        (lambda z: z**2 - 1, 2),
        (lambda z: z**3 - 3 * z, 6),
        (lambda z: z**4 - 6 * z**2 + 3, 24),
    ],
    ids=["mean", "variance", "skewness", "kurtosis"],
)
def test_moments(draws, excess, variance):
    """The Hermite polynomials of 2^20 draws have mean 0 within 5 standard errors: an error rate of 6e-7 each."""
    assert_zero_mean(excess(draws), variance)


@pytest.mark.statistical
def test_distribution_is_normal(draws):
    """Kolmogorov & Smirnov over 2^20 draws, each half too: error rate 1e-4 each; a scale off by 2 % is found."""
    half = NUMBER // 2
    for part in (draws, draws[:half], draws[half:]):
        assert stats.kstest(part, "norm").pvalue > 1e-4
    assert stats.kstest(1.02 * draws, "norm").pvalue < 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("distance", [1, 2, NUMBER // 4, NUMBER // 2], ids=["1", "2", "quarter", "half"])
def test_draws_are_uncorrelated(draws, distance):
    """Of draws and of their squares, 2^19 pairs or more, those of one radius too: 5 standard errors, 6e-7 each."""
    first, second = draws[:-distance], draws[distance:]
    assert_zero_mean(first * second, 1)
    assert_zero_mean((first**2 - 1) * (second**2 - 1), 4)
    assert_zero_mean((first**3 - 3 * first) * second, 6)


@pytest.mark.statistical
def test_two_draws_of_one_radius_are_independent(draws):
    """Joint counts on a grid of 16 x 16 equally likely cells: chi-square with 255 degrees, error rate 1e-4."""
    cell = np.int64(16 * stats.norm.cdf(draws)).reshape(2, -1)
    counts = np.bincount(16 * cell[0] + cell[1], minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_same_seed_same_draws():
    np.testing.assert_array_equal(normals(1000), normals(1000))
    np.testing.assert_array_equal(tf.function(noise.standard_normal)(1000, SEED), normals(1000))


@pytest.mark.statistical
@pytest.mark.parametrize("other", [(3, 2), (4, 1), (1, 3)])
def test_another_seed_other_draws(draws, other):
    """Uncorrelated with those of the first seed: 5 standard errors, 6e-7."""
    others = normals(NUMBER, other)
    assert np.mean(others == draws) < 1e-3
    assert_zero_mean(others * draws, 1)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_has_the_known_answers(key, counter, words):
    """Compare with the known answers of its authors' library, Random123."""
    key, *counter = (np.array(x, np.uint32).view(np.int32) for x in (key, counter[:1], counter[1:]))
    assert [int(x[0]) & 0xFFFFFFFF for x in noise.threefry(key, *counter)] == list(words)


def test_the_directions_of_xla_are_those_of_the_c_library():
    """Compare all 4,096; the bound of the error is that of the polynomials and the rounding of the angle."""
    place = np.arange(-2048, 2048) + 0.5
    with traced_for_xla():
        found = noise._direction(tf.constant(place, tf.float32))
    for values, wanted in zip(found, (np.cos(np.pi * place / 2048), np.sin(np.pi * place / 2048))):
        np.testing.assert_allclose(values, wanted, rtol=0, atol=2e-7)


@pytest.mark.statistical
def test_the_signs_of_xla_are_balanced():
    """Bound the means of 2^20 signs and of products of neighbours by 5 standard errors, 6e-7 each."""
    signs = by_xla(SEED)[1].numpy().reshape(-1)
    assert set(np.unique(signs)) == {-1, 1}
    assert_zero_mean(signs, 1)
    assert_zero_mean(signs[1:] * signs[:-1], 1)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 1001])
def test_any_size(size):
    values = noise.standard_normal(size, SEED)
    assert values.shape == (size,) and values.dtype == tf.float32
    assert len(set(values.numpy())) == size
    np.testing.assert_array_equal(values, normals(size + size % 2)[:size])


def test_draws_are_finite_and_reach_their_bound():
    """2^23 draws: of the 2^22 radii about four are the largest, sqrt(2 * 21 log 2) = 5.395."""
    values = normals(2**23)
    assert np.isfinite(values).all()
    assert 5.0 < np.abs(values).max() < 5.4
    assert values.min() < -4.8 and values.max() > 4.8
    radii = np.hypot(*values.astype(np.float64).reshape(2, -1))
    np.testing.assert_allclose(radii.max(), np.sqrt(42 * np.log(2)), rtol=1e-6)
    np.testing.assert_allclose(radii.min(), np.sqrt(-2 * np.log1p(-(2.0**-21))), rtol=0.1)


def signs(rows, width, seed=SEED, dtype=tf.float32):
    return noise.random_signs(rows, width, seed, dtype)


@pytest.mark.parametrize("width", [1, 3, 4, 5, 10])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16])
def test_signs_are_plus_and_minus_one(width, dtype):
    values = signs(500, width, dtype=dtype)
    assert values.shape == (500, 4 * ((width + 3) // 4)) and values.dtype == dtype
    assert set(np.unique(values)) == {-1, 1}


def test_signs_of_rows_that_only_the_run_tells():
    draw = tf.function(
        lambda x, seed: signs(tf.shape(x)[0], 6, seed),
        input_signature=[tf.TensorSpec([None]), tf.TensorSpec([2], tf.int32)],
    )
    for rows in (0, 1, 17):
        np.testing.assert_array_equal(draw(tf.zeros([rows]), SEED), signs(rows, 6))


def test_seed_decides_the_signs():
    np.testing.assert_array_equal(signs(100, 8), signs(100, 8))
    for seed in ([3, 2], [4, 1]):
        assert 0.4 < np.mean(signs(100, 8) == signs(100, 8, tf.constant(seed))) < 0.6


@pytest.mark.statistical
def test_signs_are_balanced_and_uncorrelated():
    """12 columns, all their pairs and each column with the next row's, 2^17 rows: 5 standard errors, 1e-4 in all."""
    values = signs(2**17, 12).numpy()
    for column in values.T:
        assert_zero_mean(column, 1)
    for a, b in itertools.combinations(values.T, 2):
        assert_zero_mean(a * b, 1)
    for a, b in itertools.product(values[:-1].T, values[1:].T):
        assert_zero_mean(a * b, 1)


@pytest.mark.statistical
def test_the_four_signs_of_an_integer_are_independent():
    """All 16 combinations are equally frequent: chi-square with 15 degrees, error rate 1e-4."""
    values = signs(2**18, 4).numpy()
    counts = np.bincount(np.int64(values > 0) @ [1, 2, 4, 8], minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-4


def given(layer, seed=0):
    """A perturbation for the layer's kernel."""
    return tf.constant(np.random.default_rng(seed).normal(size=layer.kernel_mean.shape), tf.float32)


def run(layer, inputs, mode, perturbations=None, seed=(1, 2)):
    with sampling(mode, seed, perturbations):
        return layer(inputs).numpy()


BUILDERS = {
    "dense": (dense, (5, 4)),
    "convolution": (convolution, (3, 4, 5, 2)),
    "dense, one input": (lambda **o: dense(width=1, **o), (5, 1)),
    "convolution, one channel": (lambda **o: convolution(channels=1, **o), (3, 4, 5, 1)),
}


@pytest.fixture(params=BUILDERS)
def layer_and_inputs(request):
    build, shape = BUILDERS[request.param]
    return build(), tf.constant(np.random.default_rng(1).normal(size=shape), tf.float32)


def linear(layer, inputs, kernel):
    return tf.nn.conv2d(inputs, kernel, 1, "VALID") if len(kernel.shape) == 4 else tf.matmul(inputs, kernel)


def test_shared_mode_uses_what_is_drawn_already(layer_and_inputs):
    layer, inputs = layer_and_inputs
    drawn = given(layer)
    wanted = tf.nn.bias_add(linear(layer, inputs, layer.kernel_mean + drawn), layer.bias)
    np.testing.assert_array_equal(run(layer, inputs, "shared", {layer.kernel_mean.ref(): drawn}), wanted)
    assert np.abs(run(layer, inputs, "shared") - wanted).max() > 0.1


def test_flipout_uses_what_is_drawn_already(layer_and_inputs):
    """Only the first input of the first unit has noise: it is that of "shared", up to a sign for each example."""
    layer, inputs = layer_and_inputs
    drawn = np.zeros(layer.kernel_mean.shape, np.float32)
    drawn[(..., 0, 0)] = 0.7
    perturbations = {layer.kernel_mean.ref(): tf.constant(drawn)}
    mean = run(layer, inputs, "mean")
    values = run(layer, inputs, "flipout", perturbations) - mean
    shared = run(layer, inputs, "shared", perturbations) - mean
    np.testing.assert_allclose(values[..., 1:], 0 * values[..., 1:], atol=1e-6)
    np.testing.assert_allclose(np.abs(values[..., 0]), np.abs(shared[..., 0]), rtol=1e-4, atol=2e-6)
    assert np.abs(shared[..., 0]).min(initial=1, where=shared[..., 0] != 0) > 1e-4


def test_mean_mode_has_no_noise_even_if_it_is_drawn(layer_and_inputs):
    layer, inputs = layer_and_inputs
    perturbations = {layer.kernel_mean.ref(): given(layer)}
    np.testing.assert_array_equal(run(layer, inputs, "mean", perturbations), run(layer, inputs, "mean"))


@pytest.mark.parametrize("mode", ["flipout", "shared"])
def test_other_weights_draw_for_themselves(mode):
    layer, inputs = dense(variational_bias=True), tf.zeros([6, 4])
    perturbations = {layer.kernel_mean.ref(): given(layer)}
    first, again, other = (run(layer, inputs, mode, perturbations, seed) for seed in ((1, 2), (1, 2), (2, 2)))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - run(layer, inputs, "mean")).min() > 1e-3  # inputs of 0 leave the bias's noise alone
    assert np.abs(first - other).max() > 0.1
    both = {**perturbations, layer.bias.ref(): tf.constant([1.0, 2.0, 3.0])}
    moved = run(layer, inputs, mode, both) - layer.bias.numpy()
    np.testing.assert_allclose(np.abs(moved), np.tile([1.0, 2.0, 3.0], [6, 1]), rtol=1e-5)
    next_layer = dense()
    assert np.abs(run(next_layer, inputs + 1, mode, both) - run(next_layer, inputs + 1, "mean")).max() > 0.1


def test_inner_blocks_hide_what_outer_blocks_hold():
    layer, inputs = dense(), tf.ones([2, 4])
    outer, inner = ({layer.kernel_mean.ref(): given(layer, seed)} for seed in (0, 1))
    with_outer, with_inner, own = (run(layer, inputs, "shared", p) for p in (outer, inner, None))
    assert np.abs(with_outer - with_inner).max() > 0.1 and np.abs(with_outer - own).max() > 0.1
    with sampling("shared", (1, 2), outer):
        np.testing.assert_array_equal(run(layer, inputs, "shared", inner), with_inner)
        np.testing.assert_array_equal(run(layer, inputs, "shared"), own)
        np.testing.assert_array_equal(layer(inputs), with_outer)
    with sampling("shared", (1, 2)):
        np.testing.assert_array_equal(layer(inputs), own)
    with pytest.raises(KeyError), sampling("shared", (1, 2), outer):
        raise KeyError
    assert noise.drawn(layer.kernel_mean) is None


@pytest.mark.parametrize("mode", ["flipout", "shared"])
def test_gradient_reaches_what_is_drawn_already(layer_and_inputs, mode):
    """Outputs are linear in the perturbation: its gradient times itself is what it adds to their sum."""
    layer, inputs = layer_and_inputs
    drawn = given(layer)
    slopes = tf.constant(np.random.default_rng(2).normal(size=run(layer, inputs, "mean").shape), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(drawn)
        with sampling(mode, (1, 2), {layer.kernel_mean.ref(): drawn}):
            total = tf.reduce_sum(slopes * layer(inputs))
    added = total - tf.reduce_sum(slopes * run(layer, inputs, "mean"))
    assert abs(added) > 0.1
    np.testing.assert_allclose(tf.reduce_sum(drawn * tape.gradient(total, drawn)), added, rtol=1e-4)


def test_perturbations_fit_a_layer_of_another_type():
    layer = DenseFlipout(3, dtype="float64")
    layer.build((None, 4))
    drawn = given(layer)
    outputs = run(layer, tf.ones([2, 4], tf.float64), "shared", {layer.kernel_mean.ref(): drawn})
    assert outputs.dtype == np.float64
    np.testing.assert_allclose(outputs[0], (layer.kernel_mean + tf.cast(drawn, tf.float64)).numpy().sum(0), rtol=1e-12)
