"""SavedModels read back, after every check that can be made before TensorFlow sees them."""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import Any, Union

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from tfp_bfl import files
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.export import manifest
from tfp_bfl.export.graph_checks import IMAGES, OUTPUTS, check_graph, check_objects, check_signatures
from tfp_bfl.files.tensor_bundle import OBJECTS, check_index, check_strings

MOST_GRAPH_BYTES = 2**28
MOST_INDEX_BYTES = 2**24


def load(path: Union[str, os.PathLike]) -> Any:
    """Loads a SavedModel that `save` wrote, and no other.

        loaded = bfl.export.load("saved/")
        loaded.predict(images, num_samples=20, seed=0)["epistemic"]                   # numpy or tensors
        loaded.signatures["predict_uint8"](images=..., num_samples=..., seed=...)     # tensors

    Before TensorFlow reads them, the files are held against their checksums, the graph against a list of operations
    that neither run Python nor touch files or networks, and what the files say of their sizes against each other.
    That finds every accident and every file of another origin. Checksums can be forged, and what a graph computes is
    not limited: predict with a stranger's model in a process of its own (docs/security.md).

    Args:
      path: the folder.

    Returns:
      What `tf.saved_model.load` returns: `predict(images, num_samples, seed)` and `signatures`, with "predict" and,
      for images, "predict_uint8", as `save` describes them.

    Raises:
      InvalidArgument: there is no such folder, or it is not what `save` wrote. That holds also for a model with layers
        of your own that use operations not on the list: `tf.saved_model.load` reads it without these checks.
    """
    try:
        folder = pathlib.Path(path)
        is_folder = folder.is_dir()
    except (TypeError, ValueError):
        raise InvalidArgument(f"The SavedModel {shown(path)} can't be read: that is not a path.") from None
    if not is_folder:
        raise InvalidArgument(f"The SavedModel {files.name(path)} can't be read: there is no such folder.")
    try:
        return _load(folder)
    except (InvalidArgument, OSError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise InvalidArgument(
            f"{files.name(path)} is not a SavedModel of this library: {problem}; export it again with bfl.export.save."
        ) from None


def _load(folder: pathlib.Path) -> Any:
    digests = manifest.read_manifest(folder)
    contents = {
        name: files.read_regular(folder / name, "file", most)
        for name, most in (
            (manifest.GRAPH, MOST_GRAPH_BYTES),
            ("fingerprint.pb", 4096),
            (manifest.INDEX, MOST_INDEX_BYTES),
        )
    }
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != digests[name]:
            raise InvalidArgument(f"{name} is not the file that was saved, by its checksum")
    variables = _check(contents[manifest.GRAPH])
    spans = check_index(contents[manifest.INDEX], variables, [OBJECTS])
    with files.open_regular(folder / manifest.VALUES, "file") as values:
        if os.fstat(values.fileno()).st_size != max(span.offset + span.size for span in spans.values()):
            raise InvalidArgument("the values of its variables are more or fewer than its index says")
        values.seek(spans[OBJECTS].offset)
        check_strings(values.read(spans[OBJECTS].size))
    manifest.check_digest(folder, manifest.VALUES, digests[manifest.VALUES])
    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception:
        raise InvalidArgument("TensorFlow can't read it") from None
    _check_loaded(loaded)
    return loaded


def _check(graph: bytes) -> dict[str, Any]:
    try:
        saved = saved_model_pb2.SavedModel.FromString(graph)
    except DecodeError:
        raise InvalidArgument(f"{manifest.GRAPH} can't be read") from None
    if len(saved.meta_graphs) != 1 or list(saved.meta_graphs[0].meta_info_def.tags) != ["serve"]:
        raise InvalidArgument("it must have one graph, with the tag serve")
    meta = saved.meta_graphs[0]
    check_signatures(meta)
    check_graph(meta)
    return check_objects(meta)


def _check_loaded(loaded: Any) -> None:
    """The functions behind the names, which need not be as the file's own list of signatures says."""
    scalar = tf.TensorSpec([], tf.int32)
    for name, signature in loaded.signatures.items():
        inputs = signature.structured_input_signature[1]
        outputs = signature.structured_outputs
        types = {key: (spec.dtype, spec.shape.rank) for key, spec in outputs.items()}
        if types != {key: (tf.float32, rank) for key, rank in OUTPUTS.items()}:
            raise InvalidArgument(f"its signature {name} does not give {', '.join(OUTPUTS)}")
        images = inputs.get("images")
        numbers = [inputs.get(key) for key in ("num_samples", "seed")]
        if len(inputs) != 3 or images is None or images.dtype != IMAGES[name] or None in numbers:
            raise InvalidArgument(f"its signature {name} does not take images, num_samples and seed")
        if any(not scalar.is_compatible_with(tf.TensorSpec(spec.shape, spec.dtype)) for spec in numbers):
            raise InvalidArgument(f"its signature {name} does not take num_samples and seed as int32 scalars")
    for weight in loaded.weights:
        if weight.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(weight))):
            raise InvalidArgument("its weights are not all finite")
