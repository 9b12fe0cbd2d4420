"""Broken SavedModels: one that predicts, or one sentence. Most have checksums that match what was broken."""

import hypothesis.strategies as st
import pytest
import tensorflow as tf

from tests.export.tampering import copy, parse
from tests.fuzz.harness import attempt, fuzz
from tests.fuzz.mutations import mutated, mutated_message
from tfp_bfl import export, models
from tfp_bfl.export.loading import FILES, GRAPH, INDEX, INFO, MANIFEST, VALUES, write_manifest
from tfp_bfl.export.model_card import NAME as CARD
from tfp_bfl.export.signatures import CLASS_OUTPUTS as OUTPUTS
from tfp_bfl.export.signatures import SIGNATURES

WORDS = [
    *["PyFunc", "EagerPyFunc", "ReadFile", "WriteFile", "MatchingFiles", "SaveV2", "RestoreV2", "Const", "Fill"],
    *["predict", "predict_uint8", "weights", "signatures", "trace_0", "images", "num_samples", "seed", "mean", "info"],
    "While",
    *["_generic_user_object", "trackable_list_wrapper", "signature_map", "_tf_keras_model", "__call__", "dtype"],
    *["weights/0/.ATTRIBUTES/VARIABLE_VALUE", "_CHECKPOINTABLE_OBJECT_GRAPH", "added:output:0", "^added", "tfp_bfl"],
]
BYTES = {
    GRAPH: [word.encode() for word in WORDS],
    "fingerprint.pb": [],
    INDEX: [b"weights/", b"0/.ATTRIBUTES/VARIABLE_VALUE", b"\x08\x01\x12", b"\0\0\0\0"],
    VALUES: [],
    INFO: [b"null", b"[", b"{", b'"model"', b"1e999", b"NaN", b"\\u0000"],
    CARD: [],
    MANIFEST: [b"  ", b"\n", b"../", b"/etc/passwd", b"saved_model.pb", b"sha256sums.txt", b"assets/x", b"*", b"\0"],
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("valid") / "saved"
    export.save(models.mlp("flipout", input_shape=(2, 2, 1), num_classes=2, hidden=()), folder)
    return folder


def assert_valid(loaded):
    assert set(SIGNATURES) >= set(loaded.signatures) >= set(OUTPUTS)
    for name, signature in loaded.signatures.items():
        function, dtype = SIGNATURES[name]
        assert signature.structured_input_signature[1]["images"].dtype == dtype
        assert set(signature.structured_outputs) == set(OUTPUTS[function])
    assert all(tf.reduce_all(tf.math.is_finite(weight)) for weight in loaded.weights)


def fuzz_files(valid, folder, name, share, strategy):
    def read(drawn):
        file, content, forged = drawn
        broken = copy(valid, folder / "saved")
        (broken / file).write_bytes(content)
        if forged:
            write_manifest(broken)
        return attempt(folder, export.load, broken)

    fuzz(name, share, strategy, read, lambda _, loaded: assert_valid(loaded))


def test_mutated_files(valid, tmp_path):
    contents = {name: (valid / name).read_bytes() for name in (*FILES, MANIFEST)}

    def broken(name):
        # Checksums that match, but for one in five: all that follows would never run otherwise.
        forged = st.just(False) if name == MANIFEST else st.integers(0, 4).map(bool)
        return st.tuples(st.just(name), mutated(contents[name], list(contents.values()), BYTES[name]), forged)

    strategy = st.sampled_from([*contents, GRAPH, INDEX, VALUES, INFO]).flatmap(broken)
    fuzz_files(valid, tmp_path, "SavedModel", 0.1, strategy)


def test_mutated_graphs(valid, tmp_path):
    serialized = mutated_message(parse(valid), WORDS).map(lambda m: m.SerializeToString())
    fuzz_files(valid, tmp_path, "SavedModel's graph", 0.06, st.tuples(st.just(GRAPH), serialized, st.just(True)))
