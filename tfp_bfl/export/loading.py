"""SavedModels read back, after every check that can be made before TensorFlow sees them, and their checksums.

The file of checksums is one that `sha256sum --check sha256sums.txt` reads as well.
"""

import hashlib
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from tfp_bfl import files
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.export import info as information
from tfp_bfl.export import model_card
from tfp_bfl.export.calibrated import serving
from tfp_bfl.export.graph_checks import check_graph, check_objects, check_signatures, takes_rows
from tfp_bfl.export.info import Info
from tfp_bfl.export.paths import GRAPH
from tfp_bfl.export.rows import NAME as ROWS
from tfp_bfl.export.rows import inputs_of as inputs_of_rows
from tfp_bfl.export.signatures import INPUTS, SERVE, SIGNATURES, head, numbers_of, output_type
from tfp_bfl.files import Path, digest, read_regular
from tfp_bfl.files.tensor_bundle import OBJECTS, check_index, check_strings

MOST_GRAPH_BYTES = 2**28
MOST_INDEX_BYTES = 2**24

_Made = TypeVar("_Made")


def load(path: Path) -> Any:
    """Load a SavedModel that `save` wrote, and no other.

        loaded = bfl.export.load("saved/")
        loaded.predict(images, num_samples=20, seed=0)["epistemic"]                   # numpy or tensors
        loaded.signatures["predict_uint8"](images=..., num_samples=..., seed=...)     # tensors

    Before TensorFlow reads them, the files are held against their checksums, the graph against a list of operations
    that neither run Python nor touch files or networks, and what the files say of their sizes against each other.
    That finds every accident and every file of another origin. Checksums can be forged, and what a graph computes is
    not limited: run models from untrusted sources in a separate process (docs/security.md).

    The result is that of `tf.saved_model.load`, with the functions and signatures that `save` describes; and
    `draw(images, seed)`, one weight sample's p(y | x, w): float32 [B, ...] and int32 [2] -> [B, C].
    """
    return _reading(path, _load)


def read_info(path: Path) -> Info:
    """Read the facts in the files of a SavedModel: class names, configuration, metrics, data, and the model."""
    return _reading(path, lambda folder: _read_info(folder, read_manifest(folder)))


def _reading(path: Any, read: Callable[[pathlib.Path], _Made]) -> _Made:
    """Call `read` on a folder and translate its errors into a sentence that names the folder."""
    try:
        folder = pathlib.Path(path)
        is_folder = folder.is_dir()
    except (TypeError, ValueError):
        raise InvalidArgument(f"The SavedModel {shown(path)} can't be read: that is not a path.") from None
    if not is_folder:
        raise InvalidArgument(f"The SavedModel {files.name(path)} can't be read: there is no such folder.")
    try:
        return read(folder)
    except (InvalidArgument, OSError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        what = f"{files.name(path)} is not a SavedModel of this library: {problem}"
        raise InvalidArgument(f"{what}; export it again with bfl.export.save.") from None


def _load(folder: pathlib.Path) -> Any:
    digests = read_manifest(folder)
    graph = _read(folder, GRAPH, digests, MOST_GRAPH_BYTES)
    _read(folder, "fingerprint.pb", digests, 4096)
    index = _read(folder, INDEX, digests, MOST_INDEX_BYTES)
    _check_digest(model_card.NAME, digest(folder / model_card.NAME), digests)
    info = _read_info(folder, digests)
    outputs = head(information.target_of(info), information.has_unusual(info)).outputs
    rows = inputs_of_rows(information.features_of(info), (info.model or {})["input_shape"])
    try:
        saved = saved_model_pb2.SavedModel.FromString(graph)
    except DecodeError:
        raise InvalidArgument(f"{GRAPH} can't be read") from None
    if len(saved.meta_graphs) != 1 or list(saved.meta_graphs[0].meta_info_def.tags) != ["serve"]:
        raise InvalidArgument("it must have one graph, with the tag serve")
    meta = saved.meta_graphs[0]
    check_signatures(meta, outputs, rows)
    check_graph(meta)
    variables: dict[str, Any] = check_objects(meta, (ROWS,) if rows else ())
    spans = check_index(index, variables, [OBJECTS])
    with files.open_regular(folder / VALUES, "file") as values:
        if os.fstat(values.fileno()).st_size != max(span.offset + span.size for span in spans.values()):
            raise InvalidArgument("the values of its variables are more or fewer than its index says")
        values.seek(spans[OBJECTS].offset)
        check_strings(values.read(spans[OBJECTS].size))
    _check_digest(VALUES, digest(folder / VALUES), digests)
    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception:
        raise InvalidArgument("TensorFlow can't read it") from None
    _check_loaded(loaded, info, outputs, rows)
    if not hasattr(loaded, SERVE):  # An earlier export.
        serving(loaded, info)
    # A function alone does not keep the variables that it reads: load(path).predict(images) would have lost them.
    named = (*INPUTS, SERVE, *([ROWS] if rows else []))
    for function in (loaded.draw, *loaded.signatures.values(), *(getattr(loaded, name) for name in named)):
        function.model = loaded
    return loaded


def _read(folder: pathlib.Path, name: str, digests: dict[str, str], most: int) -> bytes:
    """Return a file's content, held against its checksum."""
    content = files.read_regular(folder / name, "file", most)
    _check_digest(name, hashlib.sha256(content).hexdigest(), digests)
    return content


def _check_digest(name: str, found: str, digests: dict[str, str]) -> None:
    if found != digests[name]:
        raise InvalidArgument(f"{name} is not the file that was saved, by its checksum")


def _read_info(folder: pathlib.Path, digests: dict[str, str]) -> Info:
    return information.from_json(_read(folder, INFO, digests, information.MOST_BYTES))


def _check_loaded(loaded: Any, info: Info, wanted: Any, rows: Any) -> None:
    """Check the signatures as loaded, which may differ from the file's own list, and that all weights are finite."""
    facts: Any = info.model
    num_classes = facts["num_classes"]
    for name, signature in loaded.signatures.items():
        function, dtype = SIGNATURES.get(name, ("predict", None))
        outputs = {key: (spec.dtype, spec.shape.rank) for key, spec in signature.structured_outputs.items()}
        if outputs != {key: (output_type(key), rank) for key, rank in wanted[function].items()}:
            raise InvalidArgument(f"its signature {name} does not give {', '.join(wanted[function])}")
        if num_classes and signature.structured_outputs["probabilities"].shape[-1] != num_classes:
            raise InvalidArgument(f"its signature {name} does not give the {num_classes} classes that its info says")
        inputs = dict(signature.structured_input_signature[1])
        numbers = numbers_of(function, wanted)
        if takes_rows(name, rows):
            if inputs != {**{spec.name: spec for spec in rows.values()}, **numbers}:
                raise InvalidArgument(f"its signature {name} does not take the columns that its info says")
            continue
        images = inputs.pop("images", None)
        if images is None or images.dtype != dtype or inputs != numbers:
            raise InvalidArgument(f"its signature {name} does not take {', '.join(('images', *numbers))}")
        if images.shape.rank is None or images.shape[1:].as_list() != facts["input_shape"]:
            raise InvalidArgument(f"its signature {name} does not take the examples that its info says")
    for weight in loaded.weights:
        if weight.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(weight))):
            raise InvalidArgument("its weights are not all finite")


MANIFEST = "sha256sums.txt"
INDEX = "variables/variables.index"
VALUES = "variables/variables.data-00000-of-00001"
INFO = f"assets/{information.NAME}"
# Just these: TensorFlow would also read other assets, debug information and other forms of the graph.
FILES = (GRAPH, "fingerprint.pb", INDEX, VALUES, INFO, model_card.NAME)
_FOLDERS = ("assets", "variables")
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
_MOST_BYTES = 4096


def write_manifest(folder: pathlib.Path) -> None:
    """Write the checksums of all files in `folder`."""
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    lines = [f"{digest(folder / name)}  {name}\n" for name in sorted(names - {MANIFEST})]
    (folder / MANIFEST).write_text("".join(lines), encoding="ascii")


def read_manifest(folder: pathlib.Path) -> dict[str, str]:
    """Return the checksums that the manifest gives, by file."""
    with os.scandir(folder) as found:  # Links are not followed.
        inside = [(x.name, x.is_dir(follow_symlinks=False) and x.name in _FOLDERS) for x in found]
    names = [f"{name}/{x}" for name, is_folder in inside if is_folder for x in os.listdir(folder / name)]
    names += [name for name, is_folder in inside if not is_folder]
    files = sorted(f"{name} (a link)" if (folder / name).is_symlink() else name for name in names)
    if GRAPH not in files:
        raise InvalidArgument(f"it has no {GRAPH}")
    if MANIFEST not in files:
        raise InvalidArgument(f"it has no checksums, {MANIFEST}")
    if files != sorted((*FILES, MANIFEST)):
        raise InvalidArgument(f"its files must be {', '.join((*FILES, MANIFEST))}, each once and no others")
    text = read_regular(folder / MANIFEST, "file of checksums", _MOST_BYTES).decode("latin-1")
    lines = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    entries = [(line[2], line[1]) for line in lines if line]
    if not text.endswith("\n") or len(entries) < len(lines) or sorted(n for n, _ in entries) != sorted(FILES):
        raise InvalidArgument(f"its {MANIFEST} must have one line of checksum and name for each file")
    return dict(entries)
