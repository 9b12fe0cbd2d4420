"""Prepares CIFAR-100, EMNIST, SVHN, FEMNIST and covertype from their original archives, copied by hand to a folder.

All archives are checked before any work starts, by the sizes and SHA-256 sums that TFDS, Keras and scikit-learn state.
Datasets of TFDS are written to the folder of TFDS, the others to an .npz file in it, for `tfp-bfl run --dataset`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import pickle
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import _covtype

from experiments.kernel_posterior import femnist
from experiments.tfds_files import Examples, read_idx, write, write_examples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import digest, open_regular
from tfp_bfl.files.arrays import write_arrays

EMNIST = ("emnist", *(f"emnist/{config.name}" for config in tfds.builder_cls("emnist").BUILDER_CONFIGS))
# Not in TFDS.
TABLES = ("covertype", "femnist")
NAMES = ("cifar100", "svhn_cropped", *EMNIST, *TABLES)
LEAF = "https://github.com/TalwalkarLab/leaf, data/femnist/preprocess.sh"
SIDE = 28  # of the images of EMNIST and FEMNIST.


class File(NamedTuple):
    """A file, or files, of a published dataset."""

    name: str  # Of the file, or the pattern of the names.
    url: str
    sha256: str | None = None  # None if no package states it.
    size: int | None = None  # In bytes; None if no package states it.

    def __str__(self) -> str:
        size = [] if self.size is None else [f"{self.size:,} bytes"]
        total = [] if self.sha256 is None else [f"SHA-256 {self.sha256}"]
        return f"{self.name} ({', '.join([*size, *total, f'published at {self.url}'])})"


class Form(NamedTuple):
    """Files that are a whole dataset, and the function that writes it: of name, folder and TFDS's folder."""

    files: tuple[File, ...]
    write: Callable[[str, pathlib.Path, pathlib.Path], None]


def forms(name: str) -> list[Form]:
    """Return the forms in which a dataset is accepted, the preferred one first."""
    if name == "covertype":
        archive = _covtype.ARCHIVE
        return [Form((File(archive.filename, archive.url, archive.checksum),), _write_covertype)]
    if name == "femnist":
        return [_femnist_in({"": "train", "test_": "test"}), _femnist_in({"": "all_data"})]
    stated = tfds.builder_cls(name.partition("/")[0]).url_infos
    files = {x.filename: File(x.filename, url, x.checksum, int(x.size)) for url, x in stated.items()}
    if name == "svhn_cropped":
        return [Form((files["train_32x32.mat"], files["test_32x32.mat"]), _write_svhn)]
    whole = Form(tuple(files.values()), _write_by_tfds)
    if name == "cifar100":
        return [whole, Form((_cifar100_of_python(),), _write_cifar100)]
    names = (f"{stem}-ubyte*" for split in ("train", "test") for stem in _stems(name, split))
    return [whole, Form(tuple(File(x, whole.files[0].url) for x in names), _write_emnist)]


def _cifar100_of_python() -> File:
    """Return the archive of pickles, with the address and the SHA-256 sum in the constants of Keras's reader."""
    stated = [x for x in tf.keras.datasets.cifar100.load_data.__code__.co_consts if isinstance(x, str)]
    (sha256,) = (x for x in stated if re.fullmatch("[0-9a-f]{64}", x))
    (url,) = (x for x in stated if x.startswith("https:"))
    return File(url.rpartition("/")[2], url, sha256)


def prepare(names: Sequence[str], folder: str, data_dir: str | None = None) -> None:
    """Prepare datasets from the files in a folder; leave those alone that are prepared already.

    Args:
      names: of `NAMES`.
      folder: with the archives.
      data_dir: folder of TFDS's datasets; None for TFDS's data folder.

    Raises:
      InvalidArgument: there is no such folder, it lacks a file (each dataset has a line), or a file is another one, is
        truncated or can't be read.
    """
    source = pathlib.Path(folder).expanduser().absolute()
    if not source.is_dir():
        raise InvalidArgument(f"There is no folder {source}: name the folder with the archives.")
    root = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    chosen: dict[str, Form] = {}
    lacks = []
    for name in dict.fromkeys(names):
        if _is_prepared(name, root):
            click.echo(f"{name}: prepared already")
            continue
        lacking = {form: [x for x in form.files if not any(source.glob(x.name))] for form in forms(name)}
        if whole := [form for form, files in lacking.items() if not files]:
            chosen[name] = whole[0]
        else:
            missing = " or ".join(" and ".join(map(str, files)) for files in lacking.values())
            lacks.append(f"{source} has not all of {name}: it lacks {missing}.")
    if lacks:
        raise InvalidArgument("\n".join(lacks))
    for file in dict.fromkeys(file for form in chosen.values() for file in form.files if file.sha256):
        _check(source / file.name, file)
    for name, form in chosen.items():
        form.write(name, source, root)
        click.echo(summary(name, root))


def summary(name: str, root: pathlib.Path | str | None) -> str:
    """Return the number of examples of a prepared dataset, or the option that reads it."""
    if name in TABLES:
        return f"{name}: --dataset {_table(name, root)}"
    splits = tfds.builder(name, data_dir=root).info.splits
    return f"{name}: {', '.join(f'{split.num_examples} {key}' for key, split in splits.items())}"


def _table(name: str, root: pathlib.Path | str | None) -> pathlib.Path:
    return pathlib.Path(root or "") / f"{name}.npz"


def _is_prepared(name: str, root: pathlib.Path) -> bool:
    return _table(name, root).exists() if name in TABLES else tfds.builder(name, data_dir=root).is_prepared()


def _check(path: pathlib.Path, file: File) -> None:
    """Raise InvalidArgument unless a file has the published SHA-256 sum."""
    found = digest(path)
    if found == file.sha256:
        return
    size = path.stat().st_size
    cut = f", as it is truncated to {size:,} of {file.size:,} bytes" if file.size and size < file.size else ""
    must = f"but must have {file.sha256}{cut}: copy it again from {file.url}."
    raise InvalidArgument(f"{path} has the SHA-256 sum {found}, {must}")


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Iterator[None]:
    """Raise InvalidArgument if a file without a known sum is truncated or has another format."""
    try:
        yield
    except InvalidArgument:
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, zlib.error) as error:
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidArgument(f"{path} is truncated or another file ({what}): copy it again.") from None


def _write_by_tfds(name: str, folder: pathlib.Path, root: pathlib.Path) -> None:
    """Have TFDS read its archives: it takes them from a folder of files downloaded by hand, and unpacks them safely."""
    with tempfile.TemporaryDirectory() as work:
        config = tfds.download.DownloadConfig(extract_dir=work, manual_dir=folder, try_download_gcs=False)
        tfds.builder(name, data_dir=root).download_and_prepare(download_dir=work, download_config=config)


def _write_svhn(name: str, folder: pathlib.Path, root: pathlib.Path) -> None:
    """Write the splits train and test as TFDS's builder reads them, which itself requires the file of "extra" too."""
    own = tfds.builder(name, data_dir=root)
    read = lambda split: own._generate_examples(f"{split}_", folder / f"{split}_32x32.mat")
    write_examples(own, {split: read(split) for split in ("train", "test")})


def _write_cifar100(name: str, folder: pathlib.Path, root: pathlib.Path) -> None:
    """Write the archive of pickles, of which `_check` made sure that it is the published one."""
    own = tfds.builder(name, data_dir=root)
    parts: dict[str, Any] = {}
    with tarfile.open(folder / _cifar100_of_python().name) as tar:
        for part in ("train", "test", "meta"):
            file: Any = tar.extractfile(f"cifar-100-python/{part}")
            parts[part] = pickle.load(file, encoding="latin1")
    for key, kind in (("label", "fine"), ("coarse_label", "coarse")):
        own.info.features[key].names = parts["meta"][f"{kind}_label_names"]

    def examples(split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        images = parts[split]["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = zip(parts[split]["fine_labels"], parts[split]["coarse_labels"])
        for i, (image, (fine, coarse)) in enumerate(zip(images, labels)):
            yield i, {"id": f"{split}_{i:05d}", "image": image, "label": fine, "coarse_label": coarse}

    write_examples(own, {split: examples(split) for split in ("train", "test")})


def _stems(name: str, split: str) -> list[str]:
    config = name.partition("/")[2] or tfds.builder_cls("emnist").BUILDER_CONFIGS[0].name
    return [f"emnist-{config}-{split}-{kind}" for kind in ("images-idx3", "labels-idx1")]


def _write_emnist(name: str, folder: pathlib.Path, root: pathlib.Path) -> None:
    """Write IDX files; with no sum known, their sizes must be those that TFDS states."""
    config = tfds.builder(name, data_dir=root).builder_config
    splits = {}
    for split, number in (("train", config.train_examples), ("test", config.test_examples)):
        arrays = []
        for stem, shape in zip(_stems(name, split), ((number, SIDE, SIDE), (number,))):
            path = min(folder.glob(f"{stem}-ubyte*"))
            with _reading(path):
                arrays.append(read_idx(path))
                if arrays[-1].shape != shape:
                    raise ValueError(f"its shape is {list(arrays[-1].shape)}, but must be {list(shape)}")
        with _reading(path):
            if arrays[1].max() >= config.class_number:
                raise ValueError(f"its labels must be below {config.class_number}")
        splits[split] = Examples(arrays[0][..., np.newaxis], arrays[1])
    write(name, splits, str(root))


def _femnist_in(parts: Mapping[str, str]) -> Form:
    """Return the form of FEMNIST in folders that LEAF writes: prefix of the arrays -> folder."""
    files = tuple(File(f"{part}/*.json", LEAF) for part in parts.values())
    return Form(files, functools.partial(_write_femnist, parts))


def _write_femnist(parts: Mapping[str, str], name: str, folder: pathlib.Path, root: pathlib.Path) -> None:
    """Write the examples of each writer; in the files pixels are 1 - ink."""
    arrays = {"class_names": np.array(femnist.CLASS_NAMES)}
    for prefix, part in parts.items():
        images, labels, owners = [], [], []
        for path in sorted(folder.glob(f"{part}/*.json")):
            with _reading(path), open_regular(path, "file") as file:
                for writer, examples in json.load(file)["user_data"].items():
                    pixels = np.asarray(examples["x"], np.float32).reshape(-1, SIDE, SIDE)
                    classes = np.asarray(examples["y"], np.int32)
                    if classes.shape != pixels.shape[:1] or not np.isin(classes, range(len(femnist.CLASS_NAMES))).all():
                        raise ValueError(f"the writer {writer} has other labels than one of 0 to 61 for each image")
                    if not ((pixels >= 0) & (pixels <= 1)).all():
                        raise ValueError(f"the writer {writer} has pixels that are not from 0 to 1")
                    images.append(femnist.as_bytes(pixels))
                    labels.append(classes)
                    owners += [writer] * len(classes)
        if not owners:
            raise InvalidArgument(f"The files in {folder / part} have no images, but must have those of writers.")
        arrays[f"{prefix}features"], arrays[f"{prefix}labels"] = np.concatenate(images), np.concatenate(labels)
        arrays[f"{prefix}clients"] = np.array(owners)
    _write_table(name, root, arrays)


def _write_covertype(name: str, folder: pathlib.Path, root: pathlib.Path) -> None:
    """Write the columns [581012, 54] and the cover types from 1 to 7."""
    rows = np.loadtxt(folder / _covtype.ARCHIVE.filename, np.float32, delimiter=",")
    _write_table(name, root, {"features": rows[:, :-1], "labels": rows[:, -1].astype(np.int32)})


def _write_table(name: str, root: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    write_arrays(_table(name, root), arrays, compressed=True)
