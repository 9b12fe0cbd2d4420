"""SavedModels read back: what `save` wrote as it was, and everything else as one sentence."""

import json
import os
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from tests.export.tampering import add_node, change_file, change_graph, copy, functions
from tests.fuzz.harness import attempt
from tfp_bfl import export, models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.export.loading import FILES, GRAPH, INDEX, INFO, MANIFEST, VALUES, write_manifest
from tfp_bfl.export.signatures import CLASS_OUTPUTS as OUTPUTS
from tfp_bfl.export.signatures import INPUTS, SERVED
from tfp_bfl.files import tensor_bundle

PIXELS = np.random.default_rng(0).integers(256, size=[3, 4, 4, 1]).astype(np.uint8)


def build(kind):
    return models.mlp(kind, input_shape=(4, 4, 1), num_classes=3, hidden=(4,), initial_stddev=0.1)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("valid") / "saved"
    export.save(build("flipout"), folder)
    return folder


@pytest.fixture
def saved(valid, tmp_path):
    return copy(valid, tmp_path / "saved")


def refused(folder, match):
    error = attempt(folder.parent, export.load, folder)
    assert isinstance(error, InvalidArgument) and match in str(error), error


@pytest.mark.deep(after="tests/export/test_saved_model.py")
@pytest.mark.parametrize("kind", models.KINDS)
def test_predicts_as_tensorflow_s_own_loader(tmp_path, kind):
    export.save(build(kind), tmp_path / "saved")
    ours, theirs = export.load(tmp_path / "saved"), tf.saved_model.load(str(tmp_path / "saved"))
    answer = ours.predict(PIXELS, num_samples=4, seed=1)
    for name, value in theirs.predict(PIXELS, num_samples=4, seed=1).items():
        np.testing.assert_array_equal(answer[name], value)
    alone = export.load(tmp_path / "saved").predict(PIXELS, num_samples=4, seed=1)  # nobody holds the model
    np.testing.assert_array_equal(alone["entropy"], answer["entropy"])
    numbers = {"num_samples": tf.constant(4), "seed": tf.constant(1)}
    signature = ours.signatures["predict_uint8"](images=tf.constant(PIXELS), **numbers)
    assert set(signature) == set(OUTPUTS["predict"]) == set(answer)
    for name, value in signature.items():
        np.testing.assert_allclose(value, answer[name], rtol=1e-5, atol=1e-6)


def test_a_table_has_no_signatures_for_bytes(tmp_path):
    export.save(models.mlp("flipout", input_shape=(5,), num_classes=3, hidden=()), tmp_path / "saved")
    assert set(export.load(str(tmp_path / "saved")).signatures) == {*INPUTS, *SERVED}


@pytest.mark.parametrize(
    "change",
    [
        lambda info: {**info, "model": None},
        lambda info: {**info, "model": {**info["model"], "num_classes": "3"}},
        lambda info: {**info, "more": 1},
        lambda info: {**info, "class_names": ["a", "b"]},
        lambda info: {**info, "class_names": ["a", "b", "\x1b[2J"]},
        lambda info: {**info, "metrics": {"accuracy": "high"}},
        lambda info: [info],
    ],
)
def test_info_of_another_form(saved, change):
    change_file(saved, INFO, lambda content: json.dumps(change(json.loads(content))).encode())
    refused(saved, "its info.json does not say what an export's says")
    error = attempt(saved.parent, export.read_info, saved)
    assert isinstance(error, InvalidArgument) and "info.json" in str(error)


def test_info_of_another_model_and_info_that_is_nested_without_end(saved):
    change_file(saved, INFO, lambda content: content.replace(b'"num_classes": 3', b'"num_classes": 4'))
    refused(saved, "does not give the 4 classes that its info says")
    change_file(saved, INFO, lambda content: b"[" * 10**5)
    refused(saved, "its info.json does not say what an export's says")


def test_sha256sum_and_saved_model_cli_take_it(valid):
    subprocess.run(["sha256sum", "--check", "--strict", MANIFEST], cwd=valid, check=True, capture_output=True)
    assert [line.split("  ")[1] for line in (valid / MANIFEST).read_text().splitlines()] == sorted(FILES)
    assert tf.saved_model.contains_saved_model(str(valid))


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found(saved, name):
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    refused(saved, f"{name} is not the file that was saved")


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_file_that_is_missing_a_link_or_a_pipe(saved, name):
    moved = (saved / name).rename(saved.parent / "moved")
    refused(saved, "checksums" if name == MANIFEST else GRAPH)
    (saved / name).symlink_to(moved)
    refused(saved, "it has no" if name in (MANIFEST, GRAPH) else "no others")
    (saved / name).unlink()
    os.mkfifo(saved / name)
    refused(saved, "must be a regular file")


@pytest.mark.parametrize(
    "name", ["keras_metadata.pb", "assets/words.txt", "README.md", "variables/more", "saved_model.pbtxt"]
)
def test_a_file_too_many(saved, name):
    (saved / name).parent.mkdir(exist_ok=True)
    (saved / name).write_text("")
    write_manifest(saved)
    refused(saved, "each once and no others")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("variables/variables.index", "../../variables.index"),
        lambda text: text.replace("fingerprint.pb", "/etc/passwd"),
        lambda text: text + text.splitlines()[0] + "\n",
        lambda text: "\n".join(text.splitlines()[1:]) + "\n",
        lambda text: text.upper(),
        lambda text: text.replace("  ", " *"),
        lambda text: "",
        lambda text: "x" * 5000,
    ],
)
def test_checksums_of_other_files(saved, change):
    (saved / MANIFEST).write_text(change((saved / MANIFEST).read_text()))
    refused(saved, "SavedModel of this library")


@pytest.mark.parametrize("path", ["nowhere", "a\0b", 3, b"\xff", ""])
def test_what_is_not_a_folder(tmp_path, path):
    assert isinstance(attempt(tmp_path, export.load, path), InvalidArgument)


@pytest.mark.parametrize("forged", [False, True])
def test_a_savedmodel_of_another_origin(tmp_path, forged):
    module = tf.Module()
    module.predict = tf.function(lambda x: x, input_signature=[tf.TensorSpec([])])
    tf.saved_model.save(module, str(tmp_path / "saved"))
    if forged:
        write_manifest(tmp_path / "saved")
    refused(tmp_path / "saved", "its files must be" if forged else "no checksums")


OPERATIONS = [
    *("PyFunc", "PyFuncStateless", "EagerPyFunc", "ReadFile", "WriteFile", "MatchingFiles", "SaveV2", "RestoreV2"),
    *("Save", "SaveSlices", "Restore", "MergeV2Checkpoints", "PrintV2", "TFRecordDataset", "TextLineReaderV2"),
    *("LookupTable", "DebugIdentityV2", "RpcCall", "TPUExecute", "XlaLaunch", "FileSystemSetConfiguration"),
    *("AssignVariableOp", "no\nsuch"),
]


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_that_no_export_has(saved, op):
    change_graph(saved, lambda s: add_node(s, op))
    refused(saved, "reads or writes files when it predicts" if op in SAVED else "which is not among those allowed")
    if op != "AssignVariableOp":  # sets the path of the asset
        change_graph(saved, lambda s: s.meta_graphs[0].graph_def.node.add(name="added", op=op))
        refused(saved, "which is not among those allowed")


SAVED = {"SaveV2", "RestoreV2", "MergeV2Checkpoints", "AssignVariableOp"}


def call_itself(saved):
    for function in functions(saved):
        node = function.node_def.add(name="added", op="StatefulPartitionedCall")
        node.attr["f"].func.name = function.signature.name


def call_the_saver(saved):
    library = saved.meta_graphs[0].graph_def.library.function
    (saver,) = [f.signature.name for f in library if "traced_save" in f.signature.name]
    for function in functions(saved):
        function.node_def.add(name="added", op="StatefulPartitionedCall").attr["f"].func.name = saver


def calls_without_end(saved):
    """Each of thirty functions calls the next one twice: 2^30 operations."""
    library = saved.meta_graphs[0].graph_def.library.function
    for i in range(30):
        function = library.add()
        function.signature.name = f"f{i}"
        for name in "ab"[: 2 * (i < 29)]:
            function.node_def.add(name=name, op="PartitionedCall").attr["f"].func.name = f"f{i + 1}"
        function.node_def.add(name="c", op="NoOp")


def another_attribute(saved):
    for function in functions(saved):
        function.node_def[0].attr["_gradient_op_type"].s = b"x"


def large_constant(saved):
    nodes = (node for function in functions(saved) for node in function.node_def if node.op == "Const")
    tensor = next(nodes).attr["value"].tensor
    del tensor.tensor_shape.dim[:]
    tensor.tensor_shape.dim.add(size=2**40)


def rename_child(old, new):
    def change(saved):
        for node in saved.meta_graphs[0].object_graph_def.nodes:
            for child in node.children:
                if child.local_name == old:
                    child.local_name = new

    return change


def signature(change):
    return lambda saved: change(saved.meta_graphs[0].signature_def)


def objects(change):
    return lambda saved: change(saved.meta_graphs[0].object_graph_def.nodes)


GRAPHS = {
    "a function that calls itself": (call_itself, "more than 32 deep"),
    "a function that saves": (call_the_saver, "reads or writes files when it predicts"),
    "calls without end": (calls_without_end, "more than 5000000 operations"),
    "another attribute": (another_attribute, "'_gradient_op_type'"),
    "a large constant": (large_constant, "a constant that is not a tensor of at most"),
    "two graphs": (lambda s: s.meta_graphs.add(), "one graph"),
    "another tag": (lambda s: s.meta_graphs[0].meta_info_def.tags.append("gpu"), "one graph"),
    "one more asset": (lambda s: s.meta_graphs[0].asset_file_def.add(filename="../x"), "assets"),
    "another asset": (lambda s: setattr(s.meta_graphs[0].asset_file_def[0], "filename", "/etc/passwd"), "assets"),
    "no asset": (lambda s: s.meta_graphs[0].asset_file_def.pop(), "assets"),
    "another signature": (signature(lambda d: d["predict"].inputs["x"].SetInParent()), "does not take images"),
    "one more signature": (signature(lambda d: d["run"].CopyFrom(d["predict"])), "a signature 'run'"),
    "another type": (signature(lambda d: setattr(d["predict"].inputs["seed"], "dtype", 9)), "does not take images"),
    "another output": (signature(lambda d: d["predict"].outputs["loss"].SetInParent()), "does not give"),
    "a method of Python": (rename_child("weights", "__class__"), "it must have mean, sample, predict"),
    "a child too many": (objects(lambda n: n[0].children.add(node_id=0, local_name="me")), "and nothing else"),
    "a Keras model": (objects(lambda n: setattr(n[0].user_object, "identifier", "_tf_keras_model")), "is not a _gener"),
    "a registered type": (objects(lambda n: setattr(n[0], "registered_name", "a.b")), "types that an export has not"),
    "no sampling": (rename_child("sample", "simple"), "and nothing else"),
    "a signature too few": (rename_child("abstain_uint8", "mean_int8"), "its signatures must be"),
    "a resource": (objects(lambda n: n.add().resource.SetInParent()), "objects that an export has not"),
    "a variable of any size": (
        objects(lambda n: setattr(variable(n).shape.dim[0], "size", 2**40)),
        "other types or shapes",
    ),
    "a variable of text": (objects(lambda n: setattr(variable(n), "dtype", 7)), "is of type string"),
}


def variable(nodes):
    return next(node.variable for node in nodes if node.WhichOneof("kind") == "variable")


@pytest.mark.parametrize("name", GRAPHS)
def test_hostile_graphs(saved, name):
    change, match = GRAPHS[name]
    change_graph(saved, change)
    refused(saved, match)


def test_weights_that_are_not_finite(tmp_path):
    model = build("deterministic")
    model.variables[0].assign(tf.fill(model.variables[0].shape, float("nan")))
    export.save(model, tmp_path / "saved")
    refused(tmp_path / "saved", "not all finite")


def test_an_entry_that_ends_tensorflow_s_process(saved):
    """Its reader takes each entry of a block whose checksum fits for a protocol buffer, and aborts where one is not."""
    change_file(saved, INDEX, lambda content: content.replace(b"\x08\x01\x12\x08\x12\x02", b"\xff" * 6, 1))
    refused(saved, "the index of its variables can't be read")


def test_values_that_are_shorter_or_longer(saved):
    change_file(saved, VALUES, lambda content: content + b"\0")
    refused(saved, "more or fewer than its index says")
    change_file(saved, VALUES, lambda content: content[:-2])
    refused(saved, "more or fewer than its index says")


def test_a_text_that_claims_any_length(saved):
    """With a checksum of that length that fits, TensorFlow's reader takes memory for it, and the process ends."""

    entries = dict(tensor_bundle._entries((saved / INDEX).read_bytes()))
    start = tensor_bundle_pb2.BundleEntryProto.FromString(entries[tensor_bundle.OBJECTS.encode()]).offset
    length = b"\xff\xff\xff\xff\xff\x1f"
    lengthen = lambda content: content[:start] + length + content[start + len(length) :]
    change_file(saved, VALUES, lengthen)
    refused(saved, "the table of its objects is not as long as it says")
