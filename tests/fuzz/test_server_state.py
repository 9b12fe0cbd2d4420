"""Broken files of a server's clients: a state whose product can be taken, or one sentence."""

import io

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import HEAD, prior_of, state_of
from tests.fuzz.harness import attempt, fuzz
from tests.fuzz.mutations import NUMBERS, mutated
from tfp_bfl.algorithms.held import Held

STATES = [state_of(0, 1, 2), state_of(4, 11, over=HEAD), state_of(1, 2, prior=prior_of())]
ARRAYS = [state._arrays() for state in STATES]
KEYS = sorted({key for arrays in ARRAYS for key in arrays})
TOKENS = [
    *[b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"\x93NUMPY", b"<f4", b">f8", b"|O", b"<U2", b"<c8", b"True"],
    *[key.encode() for key in KEYS],
    *[b"../made", b".npy", b"\0\0\0\0", b"\x08\0"],
]
TYPES = ["f4", ">f4", "f8", "f2", "i8", "i4", "u1", "?", "c8", "U3", "S2", "M8[s]"]
VALUES = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-45, 1e-30, 3e38, 1e308, *NUMBERS]
WORDS = ["", "0", "a" * 5000, "a\nb", "\x1b[2J", "\u202e", "Ω"]


def encoded(arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


VALID = [encoded(arrays) for arrays in ARRAYS]


@st.composite
def changed(draw):
    """The arrays of a valid file with one to three changes, in a file whose checksums fit."""
    arrays = dict(draw(st.sampled_from(ARRAYS)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        key = draw(st.sampled_from(sorted(arrays)))
        kind = draw(st.sampled_from(["value", "value", "value", "type", "shape", "drop", "rename", "other", "words"]))
        old = arrays[key]
        if kind == "value" and old.size and old.dtype.kind in "fi":
            new = old.copy()
            with np.errstate(over="ignore", invalid="ignore"):
                value = np.float64(draw(st.sampled_from(VALUES))).astype(old.dtype)
            new.reshape(-1)[draw(st.integers(0, old.size - 1))] = value
            arrays[key] = new
        elif kind == "type" and old.dtype.kind in "fi":
            with np.errstate(all="ignore"):
                arrays[key] = old.astype(draw(st.sampled_from(TYPES)))
        elif kind == "shape":
            shape = draw(st.lists(st.integers(0, 4), max_size=4))
            arrays[key] = np.ones(shape, draw(st.sampled_from([old.dtype.str, *TYPES, "V4"])))
        elif kind == "drop" and len(arrays) > 1:
            del arrays[key]
        elif kind == "rename":
            arrays[draw(st.sampled_from([*KEYS, "rows/3/posterior/mean/0", "rows/9/moments/mean/0", "more"]))] = (
                arrays.pop(key)
            )
        elif kind == "words":
            arrays["names"] = np.array(draw(st.lists(st.sampled_from(WORDS), max_size=4)), np.str_)
        else:
            other = draw(st.sampled_from(ARRAYS))
            arrays[key] = other[draw(st.sampled_from(sorted(other)))]
    return encoded(arrays)


def assert_valid(state, folder):
    """What was read can be taken the product of, and is what would be written again."""
    assert all(name.isprintable() and row.num_examples > 0 for name, row in state.rows.items())
    pooled, arrays = state.pool(), state._arrays()
    if all(np.all(np.abs(x) < 1e15) for x in arrays.values() if x.dtype.kind != "U"):  # squares are in float32
        assert all(np.all(np.isfinite(x)) for x in tf.nest.flatten(pooled))
    state.save(folder / "again.npz")
    back = Held.load(folder / "again.npz")
    (folder / "again.npz").unlink()
    for key, x in back._arrays().items():
        np.testing.assert_array_equal(x, arrays[key])


@pytest.mark.parametrize("how", ["bytes", "arrays"])
def test_mutated_files(tmp_path, how):
    broken = st.sampled_from(VALID).flatmap(lambda content: mutated(content, VALID, TOKENS))
    path = tmp_path / "clients.npz"

    def read(content):
        path.write_bytes(content)
        return attempt(tmp_path, Held.load, path)

    strategy = changed() if how == "arrays" else broken
    check = lambda _, state: assert_valid(state, tmp_path)
    assert fuzz(f"server state, {how}", 0.12, strategy, read, check, VALID[:1])


@pytest.mark.parametrize("number", range(len(VALID)))
def test_valid_files_are_read(tmp_path, number):
    path = tmp_path / "clients.npz"
    path.write_bytes(VALID[number])
    assert_valid(attempt(tmp_path, Held.load, path), tmp_path)
