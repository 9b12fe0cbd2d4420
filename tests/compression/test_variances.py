"""Variances in 8 bits: without bias, with the noise that their docstring has, and bytes that are what was sent."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl.compression import variances

DRAWS = 4000
KNOWN = (np.float32([[0.5, 2.0, 1e-4]]), np.float32([3.0, 1e-6, 1.0, 1.0]))
# Of one tensor all within a few percent, of the other three orders of magnitude, and one that has not changed.
OWN = (np.float32([[0.51, 1.975, 1.013e-4]]), np.float32([3e-3, 2e-6, 1.0, 0.4]))
STEPS = [np.abs(np.log(v / k)).max() / 127 for v, k in zip(OWN, KNOWN)]


def code_of(unbiased_in, seed=(0, 0), own=OWN):
    return variances.round_variances([tf.constant(v) for v in own], KNOWN, unbiased_in, tf.cast(seed, tf.int32))


@pytest.fixture(scope="module", params=[("precision", False), ("variance", False), ("precision", True)])
def drawn(request):
    """Return what is averaged, logarithms of its ratio to the known [D], what was restored [DRAWS, D]; also by XLA."""
    unbiased_in, jit = request.param
    restore = tf.function(
        lambda seed: variances.restore_variances(code_of(unbiased_in, seed), KNOWN, unbiased_in), jit_compile=jit
    )
    flat = lambda x: (
        np.concatenate([np.ravel(np.float64(leaf)) for leaf in x]) ** (-1 if unbiased_in == "precision" else 1)
    )
    found = np.stack([flat(restore(tf.constant([1, i]))) for i in range(DRAWS)])
    return flat(OWN), np.log(flat(OWN) / flat(KNOWN)), found


def noise(y):
    """The variance of Q / E Q."""
    h = np.repeat(STEPS, [3, 4])
    f = y / h - np.floor(y / h)
    return -np.expm1(-f * h) * np.expm1((1 - f) * h), h


@pytest.mark.statistical
def test_the_mean_of_many_seeds_is_what_was_rounded(drawn):
    """Means within 4.5 standard errors: one of 7,000 runs of other seeds fails, for 7 weights in 3 cases."""
    own, y, found = drawn
    error = np.sqrt(noise(y)[0] / DRAWS) + 1e-6
    assert np.all(np.abs(found.mean(0) / own - 1) < 4.5 * error)


@pytest.mark.statistical
def test_its_noise_is_the_closed_form(drawn):
    """A weight that does not change and one at the end of the grid have none. The variance of a draw of two values
    has a standard error of at most 3 %: 15 % are five."""
    own, y, found = drawn
    wanted, h = noise(y)
    assert np.all(wanted <= 4 * np.sinh(h / 4) ** 2 * (1 + 1e-9))
    ends = np.minimum(y / h % 1, 1 - y / h % 1) < 1e-3
    assert ends.sum() == 3 and np.all(found[:, y == 0] == own[y == 0])
    np.testing.assert_allclose((found / own).var(0)[~ends], wanted[~ends], rtol=0.15)


def test_what_has_not_changed_is_sent_as_it_is():
    code = code_of("precision", own=KNOWN)
    assert not np.any(code.steps) and not np.any(code.levels)
    assert_same(variances.restore_variances(code, KNOWN, "precision"), KNOWN)


def test_bytes_are_what_was_sent():
    code, rest = code_of("precision"), b"rest"
    sent = variances.encode(code)
    assert 8 * len(sent) == variances.num_bits(KNOWN) == 8 * 7 + 32 * 2
    found, left = variances.decode(sent + rest, KNOWN)
    assert left == rest and found.steps.dtype == np.float32 and found.levels.dtype == np.int8
    np.testing.assert_array_equal(found.steps, code.steps)
    np.testing.assert_array_equal(found.levels, code.levels)
    refuses("has 14 bytes, but its variances take 15: it ends too early", variances.decode, sent[:-1], KNOWN)


@pytest.mark.parametrize("number", [np.nan, np.inf, 0.0])
def test_a_variance_that_is_none_stays_none(number):
    """So that it is a fault at the server."""
    own = (np.float32([[0.51, number, 1e-4]]), OWN[1])
    for unbiased_in in ("precision", "variance"):
        restored = variances.restore_variances(code_of(unbiased_in, own=own), KNOWN, unbiased_in)
        assert not np.all(np.isfinite(restored[0]) & (restored[0] > 0)) and np.all(np.isfinite(restored[1]))
