"""Image classification from TFDS into arrays, with every failure as one sentence."""

import contextlib
import difflib
import json
import pathlib
import shutil
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfp_bfl.data.sizes import Size, resizing
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.faces import Later
from tfp_bfl.files import Path
from tfp_bfl.logs import quiet

tfds = Later("tensorflow_datasets")

BATCH = 512
CONNECT_SECONDS = 3.0
# Of one dataset's configurations and versions; of a file that describes one's features.
MOST_VERSIONS, MOST_FEATURES_BYTES = 100, 2**20
PREPARED_ELSEWHERE = "storage.googleapis.com"  # where TFDS itself looks for a prepared copy


def find(name: str, known: Sequence[str], data_dir: Path | None = None, resizes: bool = False) -> Any:
    """Return the prepared TFDS builder of an image classification dataset; download and prepare it if need be.

    `resizes` is whether images of several sizes are accepted.
    """
    if data_dir is not None:
        data_dir = pathlib.Path(data_dir).expanduser()
    with quiet("absl"):
        try:
            # TFDS downloads the code of these datasets and runs it; a config names what dataset it likes.
            parsed = tfds.core.naming.parse_builder_name_kwargs(name)[0]
            if parsed.namespace:
                raise InvalidArgument(f"The data source {name!r} has a namespace, but must be one of TFDS's own.")
            for root in tfds.core.utils.file_utils.list_data_dirs(data_dir):
                _check_classes(pathlib.Path(root) / parsed.name)
            builder = tfds.builder(name, data_dir=data_dir)
        except InvalidArgument:
            raise
        except tfds.core.DatasetNotFoundError:
            raise InvalidArgument(_unknown(name, known, tfds.list_builders())) from None
        except Exception as e:
            raise InvalidArgument(f"TFDS can't read the data source {name!r}: {_first_line(e)}.") from e
        _check_features(builder, name, resizes)
        if not builder.is_prepared():
            _prepare(builder, name)
            builder = tfds.builder(name, data_dir=data_dir)
            if not builder.is_prepared():
                raise InvalidArgument(f"{builder.data_path} is no prepared dataset of TFDS: delete it and load again.")
    return builder


def read(
    builder: Any, name: str, split: str, size: Size | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return images uint8 [N, height, width, channels], labels int32 [N] and the class names of one split.

    Images are resized to `size`, where it is given.
    """
    info = builder.info
    try:
        num_examples = info.splits[split].num_examples
    except (KeyError, ValueError):
        splits = ", ".join(repr(s) for s in sorted(info.splits))
        raise InvalidArgument(f"{name} has no split {split!r}: its splits are {splits}.") from None
    if not num_examples:
        raise InvalidArgument(f"The split {split!r} of {name} has no examples, but must have at least one.")
    image_key, label_key = info.supervised_keys
    shape = info.features[image_key].shape
    images = np.empty((num_examples, *(size or shape[:2]), shape[2]), np.uint8)
    labels = np.empty(num_examples, np.int32)
    done = 0
    try:
        # Batches into one array keep the peak of memory at half of what reading all at once takes.
        pairs = builder.as_dataset(split=split, as_supervised=True, shuffle_files=False)
        for batch in (pairs if size is None else pairs.map(resizing(size))).batch(BATCH):
            stop = done + len(batch[1])
            images[done:stop], labels[done:stop] = batch[0].numpy(), batch[1].numpy()
            done = stop
        if done < num_examples:
            raise ValueError(f"{done} examples instead of {num_examples}")
    except Exception as e:
        what = f"{name} at {builder.data_path} can't be read ({_first_line(e)})"
        raise InvalidArgument(f"{what}: delete that folder and prepare it again.") from e
    return images, labels, tuple(info.features[label_key].names)


def _check_classes(folder: pathlib.Path) -> None:
    """Raise InvalidArgument for a prepared dataset of features that are not TFDS's: it would import their module."""
    for path in sorted(folder.glob("**/features.json"))[:MOST_VERSIONS]:
        try:
            if path.stat().st_size > MOST_FEATURES_BYTES:
                raise ValueError("it is too large")
            named = list(_class_names(json.loads(path.read_bytes())))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"{path} can't be read ({_first_line(error)}): prepare the dataset again.") from None
        foreign = [x for x in named if not (isinstance(x, str) and x.startswith("tensorflow_datasets."))]
        if foreign:
            what = f"{path} names {shown(foreign[0])}, which is none of TFDS's features and would be imported"
            raise InvalidArgument(f"{what}: take a dataset that TFDS prepared.")


def _class_names(node: object) -> Iterator[Any]:
    """Return all that a features.json names as a class, at any depth."""
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _class_names(child)
    if isinstance(node, dict):
        yield from (node[key] for key in ("pythonClassName", "python_class_name") if key in node)
        # As older versions of TFDS name it; what else is called so has no dot.
        if isinstance(node.get("type"), str) and "." in node["type"]:
            yield node["type"]


def _check_features(builder: Any, name: str, resizes: bool) -> None:
    keys, features = builder.info.supervised_keys, builder.info.features
    named = bool(keys) and len(keys) == 2 and all(isinstance(k, str) and k in features for k in keys)
    image, label = (features[k] for k in keys) if named else (None, None)
    if not isinstance(image, tfds.features.Image) or not isinstance(label, tfds.features.ClassLabel):
        raise InvalidArgument(f"{name} is not image classification, but must have one image and one class label.")
    if None in image.shape[2:]:
        raise InvalidArgument(f"{name} has images with several numbers of channels, but all must have one.")
    if None in image.shape and not resizes:
        raise InvalidArgument(
            f"{name} has images of several sizes, but all must have one size: give --image-size HEIGHT,WIDTH."
        )
    if np.dtype(image.np_dtype) != np.uint8:
        raise InvalidArgument(f"{name} has images of type {np.dtype(image.np_dtype)}, but they must be uint8.")


def _prepare(builder: Any, name: str) -> None:
    """Download and prepare the dataset; a failure leaves no half folder behind."""
    root = pathlib.Path(builder.data_dir_root)
    advice = f"prepare it with `tfds build {name} --data_dir {root}` where there is a network."
    if not _reachable(builder):
        raise InvalidArgument(f"{name} is not prepared in {root} and its download can't be reached: {advice}")
    folders = [root / "downloads" / builder.name, root / "downloads" / "extracted", root / "downloads"]
    folders += [folder for folder in pathlib.Path(builder.data_path).parents if root in folder.parents]
    made = [folder for folder in [*folders, root] if not folder.exists()]
    old = _halves(root, builder.name)
    try:
        builder.download_and_prepare()
    except BaseException as e:
        for half in _halves(root, builder.name) - old:
            shutil.rmtree(half, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if not isinstance(e, Exception):
            raise
        manual = isinstance(e, AssertionError) and bool(builder.MANUAL_DOWNLOAD_INSTRUCTIONS)
        reason = "must be downloaded by hand" if manual else f"its download failed ({_first_line(e)})"
        if manual:
            manual_dir = tfds.download.DownloadConfig().manual_dir or root / "downloads" / "manual"
            advice = f"put its files in {manual_dir} as TFDS's catalogue says, then run `tfds build {name}`."
        raise InvalidArgument(f"{name} is not prepared in {root} and {reason}: {advice}") from e


def _halves(root: pathlib.Path, name: str) -> set[pathlib.Path]:
    """Return the folders that TFDS leaves behind if it is stopped between download and prepared dataset."""
    return {*(root / "downloads" / name).glob("*.tmp.*"), *(root / name).rglob("incomplete.*")}


def _reachable(builder: Any) -> bool:
    """Return whether a server of the dataset accepts a connection: without a network TFDS itself tries for minutes."""
    if urllib.request.getproxies():
        return True
    try:
        urls = list(builder.url_infos)
    except Exception:
        urls = []
    hosts = {urllib.parse.urlsplit(str(url)).hostname or PREPARED_ELSEWHERE for url in urls}
    for host in sorted(hosts or {PREPARED_ELSEWHERE})[:2]:
        for port in (443, 80):
            with contextlib.suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
                return True
    return False


def _unknown(name: str, known: Sequence[str], names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), [*known, *names], n=6, cutoff=0.6)
    near = list(dict.fromkeys(near))[:3]
    choice = f"choose one of {', '.join(map(repr, known))} or a TFDS name for image classification."
    advice = f"did you mean {' or '.join(map(repr, near))}?" if near else choice
    return f"There is no data source {name!r}: {advice}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200].rstrip(".:") if lines else type(error).__name__
