"""Broken checkpoints: the state and the record as written, or one sentence. Of half of them the sums fit.

The server step keeps what grows with the clients: tensors of which the index may have any number of rows.
"""

import json
import logging
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.fuzz.harness import attempt, fuzz
from tests.fuzz.mutations import mutated
from tfp_bfl import files
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, Population

pytest.importorskip("tensorflow_federated")

from tfp_bfl.federated.checkpoints import Checkpoints, Record
from tfp_bfl.federated.process import ServerState

WORDS = {"library": "tfp_bfl 1", "model": "lenet", "rule": "conflation", "clients": "10"}
RECORD = Record(rows=[{"round": 1, "nll": 0.5, "faulty_clients": {}}] * 2, first_stddev=0.1)
PARTS = (".data-00000-of-00001", ".index", ".json")
TOKENS = {
    ".json": [
        *[b"NaN", b"Infinity", b"1e999", b"null", b"[]", b"{}", b'"rows"', b"[" * 2000, b"9" * 5000, b"\xff"],
        *[b'{"py/object": "os.system"}', b'"conflation"', b'"collapsed"'],
    ],
    ".index": [b"state/0", b"\x08\x01\x12", b"\0\0\0\0"],
    ".sha256": [b"  ", b"\n", b"../", b"/etc/passwd", b"round_1.json", b"*", b"\0"],
}


def state_of_round(number):
    leaf = lambda *shape: (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1,)
    weights = ModelWeights(MeanField(leaf(3, 2), leaf(3, 2)), leaf(2), MeanField((), ()))
    clients = 2 if number else 0
    kept = (np.arange(clients, dtype=np.int32), np.arange(4 * clients, dtype=np.float32).reshape(clients, 4) + 1)
    return ServerState(
        np.int32(number),
        np.int32(0),
        weights,
        kept,
        (),
        Population(np.int32(2), np.int32(30), np.float32(9), np.int32(5)),
    )


FIRST = state_of_round(0)
SPECS = [tf.TensorSpec.from_tensor(tf.constant(x)) for x in tf.nest.flatten(FIRST)]
# The rows of `FIRST.step`, of which there may be any number.
SPECS = [tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if 0 in spec.shape else spec for spec in SPECS]


def latest(folder):
    return Checkpoints(folder, WORDS).latest(FIRST, SPECS)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("valid") / "states"
    Checkpoints(folder, WORDS).save(state_of_round(2), RECORD)
    assert_valid(latest(folder), ".index", False)
    return folder


def resum(folder):
    names = [f"round_2{part}" for part in PARTS]
    (folder / "round_2.sha256").write_text("".join(f"{files.digest(folder / name)}  {name}\n" for name in names))


def assert_valid(found, part, summed):
    assert all(isinstance(row, dict) for row in found.record.rows) and json.dumps(found.record.model_dump())
    leaves, wanted = (tf.nest.flatten(state) for state in (found.state, state_of_round(2)))
    for x, y in zip(leaves, wanted, strict=True):
        assert (x.dtype, np.shape(x)) == (y.dtype, np.shape(y))
        np.testing.assert_array_equal(x, y)
    if part != ".json" or not summed:
        assert found.record == RECORD


@pytest.mark.parametrize(
    ("part", "summed"), [*((part, summed) for part in PARTS for summed in (False, True)), (".sha256", False)]
)
def test_mutated(valid, tmp_path, part, summed, caplog):
    caplog.set_level(logging.ERROR, "tfp_bfl")
    folder = tmp_path / "states"
    shutil.copytree(valid, folder)
    content = (valid / f"round_2{part}").read_bytes()
    others = [path.read_bytes() for path in valid.iterdir()]

    def read(broken):
        (folder / f"round_2{part}").write_bytes(broken)
        shutil.copyfile(valid / "round_2.sha256", folder / "round_2.sha256") if part != ".sha256" else None
        if summed:
            resum(folder)
        return attempt(tmp_path, latest, folder)

    name = f"checkpoint{part}{' with forged sums' if summed else ''}"
    strategy = mutated(content, others, TOKENS.get(part, ()))
    fuzz(name, 0.15, strategy, read, lambda _, found: assert_valid(found, part, summed))


@pytest.mark.parametrize(
    "record",
    [b"", b"null", b"[]", b"{}", b'{"description": 1, "record": {}}', b'{"description": {}, "record": {"rows": 3}}',
     b'{"description": [[1, 2]], "record": {}}', b'{"description": {}, "record": {"colour": 1}}', b"[" * 100_000],
)  # fmt: skip
def test_records_that_are_none(valid, tmp_path, record):
    folder = tmp_path / "states"
    shutil.copytree(valid, folder)
    (folder / "round_2.json").write_bytes(record)
    resum(folder)
    attempt(tmp_path, latest, folder)


def test_another_number_of_rows_than_the_index_says(valid, tmp_path):
    """Values of three clients under an index of two: their number of bytes tells."""
    folder, more = tmp_path / "states", tmp_path / "more"
    shutil.copytree(valid, folder)
    state = state_of_round(2)
    kept = tuple(np.concatenate([x, x[:1]]) for x in state.step)
    Checkpoints(more, WORDS).save(state._replace(step=kept), RECORD)
    assert_valid(attempt(tmp_path, latest, folder), ".json", True)
    assert len(attempt(tmp_path, latest, more).state.step[0]) == 3
    for part, name in ((PARTS[0], "values"), (PARTS[1], "index")):
        mixed = tmp_path / name
        shutil.copytree(valid, mixed)
        shutil.copyfile(more / f"round_2{part}", mixed / f"round_2{part}")
        resum(mixed)
        assert "Every checkpoint in" in str(attempt(tmp_path, latest, mixed))


def test_values_of_another_round(valid, tmp_path):
    folder = tmp_path / "states"
    shutil.copytree(valid, folder)
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace("round_2", "round_3"))
    sums = folder / "round_3.sha256"
    sums.write_text(sums.read_text().replace("round_2", "round_3"))
    result = attempt(tmp_path, latest, folder)
    assert "Every checkpoint in" in str(result)
