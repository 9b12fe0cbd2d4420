"""Compressors: unbiased within their omega, and messages that are what their bytes say."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import compression
from tfp_bfl.compression import golomb
from tfp_bfl.compression.golomb import num_bits
from tfp_bfl.errors import InvalidArgument

X = np.array([3.0, -4.0, 0.0, 12.0], np.float32)
SIZES = (40, 7, 1, 3)


def by_client(client):
    """The compressor of one of two clients."""
    own = compression.quantiser(4), compression.by_tensor(compression.sparsifier(0.25), SIZES)
    return compression.by_client(own, sum(SIZES))(client)


MAKE = {
    "quantiser:1": lambda: compression.quantiser(1),
    "quantiser:16": lambda: compression.quantiser(16),
    "sparsifier:0.25": lambda: compression.sparsifier(0.25),
    "none": compression.none,
    "quantiser:4 by tensor": lambda: compression.by_tensor(compression.quantiser(4), SIZES),
    **{f"by client, of client {k}": functools.partial(by_client, k) for k in range(2)},
}
BIASED = {
    "largest:0.1": lambda: compression.largest(0.1),
    "largest:0.3 by tensor": lambda: compression.by_tensor(compression.largest(0.3), SIZES),
}
several = pytest.mark.parametrize("compressor", [make() for make in MAKE.values()], ids=list(MAKE))
each = pytest.mark.parametrize("compressor", [make() for make in {**MAKE, **BIASED}.values()], ids=[*MAKE, *BIASED])


def gaussian(size, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def draws(compressor, x, number):
    """C(x) of as many seeds: [number, d]."""

    @tf.function(autograph=False)
    def of_all(x, seeds):
        one = lambda seed: compressor.decompress(compressor.compress(x, seed))
        return tf.map_fn(one, seeds, fn_output_signature=tf.float32)

    return of_all(tf.constant(x), tf.stack([tf.zeros(number, tf.int32), tf.range(number)], 1)).numpy()


def levels_of(size, spread, seed=0):
    return np.round(spread * np.random.default_rng(seed).normal(size=size)).astype(np.int64)


@pytest.mark.parametrize(
    ("s", "expected", "bound"), [(1, 78, 338), (2, 26, 169), (4, 4.875, 42.25), (16, 0.3046875, 2.640625)]
)
def test_the_quantisers_error_is_that_of_its_fractions(s, expected, bound):
    """x = (3, -4, 0, 12): E error^2 = (n / s)^2 sum f (1 - f). 4,000 draws: within five standard errors."""
    compressor = compression.quantiser(s)
    errors = np.sum((draws(compressor, X, 4000) - X) ** 2, 1)
    assert abs(errors.mean() - expected) < 5 * errors.std() / np.sqrt(len(errors))
    assert compressor.omega(4) * 169 == bound


def test_known_uniforms_give_known_levels(monkeypatch):
    monkeypatch.setattr(tf.random, "stateless_uniform", lambda shape, seed: tf.constant([0.5, 0.1, 0.9, 0.8]))
    compressor = compression.quantiser(4)
    message = compressor.compress(tf.constant(X), [0, 0])
    assert message.levels.numpy().tolist() == [1, -2, 0, 3]
    np.testing.assert_array_equal(compressor.decompress(message), [3.25, -6.5, 0, 9.75])


@several
def test_unbiased_within_omega(compressor):
    """3,000 draws; each coordinate within five standard errors of x, the error within five of omega ||x||^2."""
    x = gaussian(sum(SIZES))
    found = draws(compressor, x, 3000).astype(np.float64)
    assert np.all(np.abs(found.mean(0) - x) <= 5 * found.std(0) / np.sqrt(len(found)) + 1e-6)
    errors = np.sum((found - x) ** 2, 1)
    limit = compressor.omega(len(x)) * np.sum(x**2)
    assert errors.mean() <= limit + 5 * errors.std() / np.sqrt(len(errors)) + 1e-9
    if compressor.name.startswith("sparsifier"):
        assert errors.mean() == pytest.approx(limit, abs=5 * errors.std() / np.sqrt(len(errors)))


def test_the_largest_values_are_kept_as_they_are():
    x = gaussian(50)
    compressor = compression.largest(0.11)
    found = compressor.decompress(compressor.compress(tf.constant(x), [0, 0])).numpy()
    kept = np.argsort(-np.abs(x))[:6]  # the ceiling of 5.5
    np.testing.assert_array_equal(found[kept], x[kept])
    assert np.count_nonzero(found) == 6 and not compressor.unbiased


@each
def test_the_worst_vector_is_within_omega(compressor):
    """Equal sizes are the largest values' worst; 2,000 draws, five standard errors."""
    for x in (gaussian(sum(SIZES)), np.ones(sum(SIZES), np.float32)):
        errors = np.sum((draws(compressor, x, 2000).astype(np.float64) - x) ** 2, 1)
        limit = compressor.omega(len(x)) * np.sum(x**2)
        assert errors.mean() <= limit + 5 * errors.std() / np.sqrt(len(errors)) + 1e-9
    if compressor.name == "largest:0.1":
        assert errors.mean() == pytest.approx(limit)


@each
@pytest.mark.parametrize("x", [gaussian(sum(SIZES)), np.zeros(sum(SIZES), np.float32), 1e-30 * gaussian(sum(SIZES))])
def test_bytes_say_what_the_message_says_and_are_as_long_as_counted(compressor, x):
    message = compressor.compress(tf.constant(x), [1, 2])
    code = compressor.encode(tf.nest.map_structure(np.asarray, message))
    back = compressor.decode(code, len(x))
    tf.nest.map_structure(np.testing.assert_array_equal, back, tf.nest.map_structure(np.asarray, message))
    np.testing.assert_array_equal(compressor.decompress(back), compressor.decompress(message))
    assert compressor.num_bits(message) == 8 * len(code)
    assert np.all(np.isfinite(compressor.decompress(message)))


@several
def test_equal_seeds_give_equal_noise_and_others_another(compressor):
    x = gaussian(sum(SIZES))
    one, same, other = (compressor.decompress(compressor.compress(tf.constant(x), [0, i])).numpy() for i in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert compressor.name == "none" or np.any(one != other)


def test_a_single_value_never_exceeds_its_levels():
    """Rounding may bring |x| / ||x|| above 1."""
    for s in (1, 3, 65536):
        for value in gaussian(200, s):
            message = compression.quantiser(s).compress(tf.constant([value]), [0, 0])
            assert abs(int(message.levels[0])) == s


def test_tensors_are_quantised_by_norms_of_their_own():
    x = np.concatenate([1000 * gaussian(50), gaussian(50, 1)])
    whole, parts = compression.quantiser(16), compression.by_tensor(compression.quantiser(16), [50, 50])
    error = lambda compressor: np.mean((draws(compressor, x, 50) - x)[:, 50:] ** 2)
    assert error(parts) < 0.01 * error(whole)
    assert parts.omega(100) == whole.omega(50)


@pytest.mark.parametrize(
    ("d", "bits"),
    [
        (50, (156.5, 269.5, 227.8, 416.0, 815.9)),
        (784, (636.4, 1115.6, 3794.5, 4508.4, 10767.0)),
        (1_000_000, (35992.5, 66055.3, 218104, 2280620, 8534584)),
    ],
)
def test_bound(d, bits):
    found = [compression.quantiser(s).bound(d) for s in (2, 4, 16, 256, 65536)]
    np.testing.assert_allclose(found, bits, rtol=5e-4)


counted = tf.function(num_bits, input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
integers = st.one_of(st.integers(-3, 3), st.integers(-(2**31) + 1, 2**31 - 1), st.just(0))


@hypothesis.given(st.lists(integers, max_size=300))
@hypothesis.settings(max_examples=150, deadline=None)
def test_integers_come_back_and_take_what_is_counted(values):
    levels = np.array(values, np.int64)
    code = golomb.encode(levels)
    np.testing.assert_array_equal(golomb.decode(code, len(levels)), levels)
    assert counted(levels) == 8 * len(code)


@pytest.mark.parametrize(
    "spread", [0.2, 0.35, 0.5, 0.7, 0.8, 1.0, 1.25, 1.5, 1.8, 2.2, 3.0, 4.0, 10.0, 65.0, 100.0, 3000.0]
)
def test_codes_are_within_five_percent_of_the_entropy(spread):
    levels = levels_of(100_000, spread)
    _, counts = np.unique(levels, return_counts=True)
    entropy = -np.sum(counts * np.log2(counts / counts.sum()))
    assert entropy * 0.999 < 8 * len(golomb.encode(levels)) < 1.05 * entropy + 64


@pytest.mark.parametrize("spread", [1.0, 2.0, 4.0, 65.0, 3000.0])
def test_few_planes_are_left(spread, monkeypatch):
    """Each costs a pass over what has come so far: they are what a code takes in time."""
    lengths, plane = [], golomb._plane
    monkeypatch.setattr(golomb, "_plane", lambda ones: lengths.append(len(ones)) or plane(ones))
    golomb.encode(levels_of(100_000, spread))
    assert len(lengths) <= 8 and sum(lengths) < 2.5 * 100_000


def test_a_large_vector_of_one_value_or_with_an_outlier_takes_a_few_bytes():
    assert len(golomb.encode(np.zeros(10**6, np.int32))) < 16
    outlier = np.zeros(10**6, np.int32)
    outlier[77_777] = -(2**24)
    assert len(golomb.encode(outlier)) < 32
    np.testing.assert_array_equal(golomb.decode(golomb.encode(outlier), 10**6), outlier)
    np.testing.assert_array_equal(golomb.decode(golomb.encode(np.full(10**5, -7)), 10**5), -7)


@pytest.mark.parametrize("levels", [np.zeros([2, 2], int), np.zeros(2), np.array([2**31])])
def test_what_can_not_be_coded_is_refused(levels):
    refuses("integer", golomb.encode, levels)


@several
@hypothesis.given(cut=st.integers(0, 400), flips=st.lists(st.integers(0, 4000), max_size=3), more=st.binary(max_size=2))
@hypothesis.settings(max_examples=60, deadline=None)
def test_damaged_bytes_give_a_message_or_one_sentence(compressor, cut, flips, more):
    x = gaussian(sum(SIZES))
    message = tf.nest.map_structure(np.asarray, compressor.compress(tf.constant(x), [1, 2]))
    code = bytearray(compressor.encode(message)[: -cut or None] + more)
    for flip in flips:
        if flip // 8 < len(code):
            code[flip // 8] ^= 1 << flip % 8
    try:
        back = compressor.decode(bytes(code), len(x))
    except InvalidArgument as error:
        assert str(error).endswith(".")
    else:
        tf.nest.assert_same_structure(back, message)
        tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a.shape, b.shape), back, message)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantiser", "lacks its levels"),
        ("quantiser:0", "levels"),
        ("quantiser:20000000", "2.24"),
        ("quantiser:2.5", "whole number"),
        ("sparsifier:0", "share"),
        ("sparsifier:1.5", "at most 1"),
        ("none:1", "takes none"),
        ("gzip", "quantiser"),
    ],
)
def test_bad_names_and_numbers(text, words):
    refuses(words, compression.parse_compressor, text)


def test_names_are_read_back():
    for text in ("quantiser:16", "sparsifier:0.25", "none"):
        assert compression.parse_compressor(text).name == text
    for sizes in ([], [3, 0]):
        refuses("size", compression.by_tensor, compression.none(), sizes)
