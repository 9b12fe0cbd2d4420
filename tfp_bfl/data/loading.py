"""Datasets by name: those of scikit-learn and of this package, which are embedded, and TFDS's image classification."""

import importlib.util
import os
import pathlib
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data import _tfds
from tfp_bfl.data.folders import splits
from tfp_bfl.data.images import image_files
from tfp_bfl.data.own import read_own
from tfp_bfl.data.partitions import generator
from tfp_bfl.data.sizes import at_size, parse_size
from tfp_bfl.data.sources import TEST_SHARE, Source, standardised_target
from tfp_bfl.data.statistics import Column
from tfp_bfl.errors import InvalidArgument, missing_package
from tfp_bfl.files import Path

# The names that the tests and studies of this library use; any other image classification of TFDS loads as well.
COMMON_TFDS = ("cifar10", "fashion_mnist", "mnist")


class _Table(NamedTuple):
    features: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    columns: tuple[str, ...] = ()


# Ten measurements of cell nuclei, and as scikit-learn names what was computed of each.
_NUCLEI = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points"),
    *("symmetry", "fractal dimension"),
)


def _file(name: str) -> pathlib.Path:
    """Return the path of one of scikit-learn's data files; importing all of scikit-learn takes longer than training."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise missing_package("scikit-learn")
    return pathlib.Path(spec.origin).parent / "datasets" / "data" / name


def _digits() -> _Table:
    rows = np.loadtxt(_file("digits.csv.gz"), delimiter=",")
    pixels = np.rint(rows[:, :-1].reshape(-1, 8, 8, 1) * (255.0 / 16.0)).astype(np.uint8)
    return _Table(pixels, rows[:, -1].astype(np.int32), tuple(map(str, range(10))))


def _breast_cancer() -> _Table:
    path = _file("breast_cancer.csv")
    with open(path, encoding="utf-8") as file:
        _, _, *class_names = file.readline().strip().split(",")
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    columns = [*(f"mean {x}" for x in _NUCLEI), *(f"{x} error" for x in _NUCLEI), *(f"worst {x}" for x in _NUCLEI)]
    return _Table(rows[:, :-1], rows[:, -1].astype(np.int32), tuple(class_names), tuple(columns))


def _diabetes() -> _Table:
    """Return ten baseline measurements and the disease progression a year after them (Efron et al. 2004)."""
    rows = np.loadtxt(_file("diabetes_data_raw.csv.gz"))
    columns = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
    return _Table(rows, np.loadtxt(_file("diabetes_target.csv.gz")), (), columns)


EMBEDDED: dict[str, Callable[[], _Table]] = {"breast_cancer": _breast_cancer, "diabetes": _diabetes, "digits": _digits}


# Embedded data that name the client of each example: 920 patients of four hospitals (heart_disease/README.md).
FEDERATIONS = ("heart_disease",)
EMBEDDED_TABLES = ("breast_cancer", "diabetes", "heart_disease")


def _load_embedded(name: str, split: str) -> Source:
    if split not in ("train", "test"):
        raise InvalidArgument(f"{name} has no split {split!r}: its splits are 'test', 'train'.")
    if name in FEDERATIONS:
        path = pathlib.Path(__file__).parent / name / f"{name}.csv"
        own = read_own(path, label="disease", client="hospital")
        return own.train if split == "train" else own.test
    table = EMBEDDED[name]()
    rng = generator(0, "embedded", name)
    is_test = np.zeros(len(table.labels), bool)
    strata = table.labels if table.class_names else np.zeros(len(table.labels))
    for label in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == label))
        is_test[members[: round(TEST_SHARE * len(members))]] = True
    features, columns = table.features, tuple[Column, ...]()
    if features.dtype != np.uint8:
        train = features[~is_test]
        mean, stddev = train.mean(0), train.std(0)
        features = ((features - mean) / stddev).astype(np.float32)
        columns = tuple(map(Column, table.columns, mean.tolist(), stddev.tolist()))
    keep = is_test if split == "test" else ~is_test
    if table.class_names:
        labels = table.labels[keep].astype(np.int32)
        return Source(name, split, features[keep], labels, table.class_names, columns)
    target, numbers = standardised_target("target", table.labels[~is_test], table.labels)
    return Source(name, split, features[keep], numbers[keep], columns=columns, target=target)


def load(
    name: str,
    split: str = "train",
    data_dir: Path | None = None,
    image_size: str | Sequence[int] | None = None,
) -> Source:
    """Load one split of a dataset into memory.

    "digits" (uint8 [N, 8, 8, 1]: 0..16 scaled to 0..255), "breast_cancer" (float32 [N, 30]: each column
    less the mean and over the standard deviation of the train split) and "diabetes" (float32 [N, 10], likewise; its
    labels are numbers to regress on) come with scikit-learn; a fifth, of each class, is the test split, always the
    same. "heart_disease" has 920 patients of four hospitals (Janosi, Steinbrunn, Pfisterer and Detrano 1989, UCI
    Machine Learning Repository, CC BY 4.0): a table with categories and empty cells; the hospitals are its
    `Source.clients`. Every other name is one of TFDS, for image classification; the images stay uint8. What TFDS has
    not prepared yet is downloaded first, if it can be reached.

    Args:
      name: of the dataset; of TFDS also with config or version, as in "cifar10_corrupted/fog_3".
      split: "train", "test", or what TFDS reads, as in "train[:10%]".
      data_dir: where TFDS keeps prepared datasets; its own default (TFDS_DATA_DIR, else
        ~/tensorflow_datasets) if None.
      image_size: (height, width) or "224,224", to which images are resized bilinearly with antialiasing; None for
        images of one size, which stay as they are.

    Raises:
      InvalidArgument: there is no such name or split, it is not image classification with images of one
        size and no image_size is given, or it is neither prepared nor can be downloaded.

    Example:
      >>> bfl.data.load("digits")
      <Source digits/train: 1438 examples [8, 8, 1], 10 classes>
    """
    if not isinstance(name, str) or not isinstance(split, str):
        raise InvalidArgument(f"name and split are {name!r} and {split!r}, but both must be strings.")
    size = parse_size(image_size)
    if name in (*EMBEDDED, *FEDERATIONS):
        return at_size(_load_embedded(name, split), size)
    builder = _tfds.find(name, known=list_sources(), data_dir=data_dir, resizes=size is not None)
    features, labels, class_names = _tfds.read(builder, name, split, size)
    return Source(name, split, features, labels, class_names)


def peek(name: str, data_dir: Path | None = None, image_size: str | Sequence[int] | None = None) -> Source:
    """Return one example or more of the train split, read at once: enough to know the shapes and the classes."""
    return load(name, "train" if name in (*EMBEDDED, *FEDERATIONS) else "train[:1]", data_dir, image_size)


def list_sources() -> tuple[str, ...]:
    """Return the embedded names and the TFDS names in common use; `load` takes others of TFDS as well.

    Example:
      >>> bfl.data.list_sources()[:3]
      ('breast_cancer', 'diabetes', 'digits')
    """
    return (*sorted({*EMBEDDED, *FEDERATIONS}), *COMMON_TFDS)


def names_clients(dataset: Path) -> bool:
    """Return whether data other than tables name the client of each example: embedded data, folders or archives.

    Args:
      dataset: a name, or the path of an archive or a folder.
    """
    path = pathlib.Path(dataset)
    try:
        if os.path.isdir(path):
            root = next(iter(splits(path).values()), path)
            first = next(image_files(root), None)
            return first is not None and len(first.relative_to(root).parts) == 3
        if path.suffix.lower() == ".npz":
            with zipfile.ZipFile(path) as archive:
                return "clients.npy" in archive.namelist()
    except (InvalidArgument, OSError, zipfile.BadZipFile, ValueError):
        pass  # Reading it will say what is wrong.
    return dataset in FEDERATIONS
