"""Datasets of Hugging Face, in memory or in folders of `save_to_disk`, as tables and arrays, without downloads."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from tfp_bfl.data.images import decoded
from tfp_bfl.data.sizes import MOST_PIXELS, Size
from tfp_bfl.errors import InvalidArgument, MissingDependency, shown
from tfp_bfl.faces import compute, pyarrow, types
from tfp_bfl.files import Path, read_regular
from tfp_bfl.files import name as name_of

# Types of features: lists, and arrays of which each is an example.
_LISTS = ("List", "LargeList", "Sequence")
_ARRAYS = ("Image", "Array2D", "Array3D", "Array4D", "Array5D")
# Splits that are the test set, the first that is there.
_TEST = ("test", "validation")
# The column with the number of the partition of each row.
_PARTITION = "partition"


def is_dataset(value: object) -> bool:
    """Return whether a value is a Dataset of the package datasets, or a DatasetDict of its splits."""
    kinds = [kind.__name__ for kind in type(value).__mro__ if kind.__module__.partition(".")[0] == "datasets"]
    return not {"Dataset", "DatasetDict"}.isdisjoint(kinds)


def are_partitions(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list of Datasets, as `load_partition` of flwr_datasets gives them."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_dataset, value))


def is_saved(path: Path) -> bool:
    """Return whether a path is a folder that `save_to_disk` wrote."""
    return any((pathlib.Path(path) / x).is_file() for x in ("state.json", "dataset_dict.json"))


def load(path: Path) -> Any:
    """Return the Dataset, or the DatasetDict, of a folder."""
    try:
        import datasets
    except ImportError:
        what = f"The folder {name_of(path)} holds a dataset of Hugging Face, and the package datasets is not installed"
        raise MissingDependency(f"{what}: pip install datasets") from None
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # Of a damaged folder, of many types.
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InvalidArgument(f"The dataset {name_of(path)} can't be read: {reason}.") from None


def joined(parts: Sequence[Any], client: str | None) -> tuple[Any, str]:
    """Return the rows of all partitions, and the column that numbers the partition of each row."""
    import datasets

    if client is not None:
        raise InvalidArgument("client_column is given, and each partition is a client: leave it out.")
    if any(part.features != parts[0].features for part in parts):
        raise InvalidArgument("The partitions have different columns or types: give partitions of one dataset.")
    rows = datasets.concatenate_datasets([*parts])
    column = _PARTITION
    while column in rows.column_names:
        column += "_"
    return rows.add_column(column, np.repeat(np.arange(len(parts)), [len(x) for x in parts])), column


def splits(dataset: Any, where: str) -> tuple[Any, Any | None]:
    """Return the training set, and the test set of a DatasetDict that has one."""
    if not isinstance(dataset, dict):
        return dataset, None
    train = dataset.get("train") or (next(iter(dataset.values())) if len(dataset) == 1 else None)
    if train is None:
        must = "but must have 'train', and 'test' or 'validation' for a test set"
        raise InvalidArgument(f"{where} has the splits {', '.join(map(shown, dataset))}, {must}.")
    return train, next((dataset[x] for x in _TEST if x in dataset), None)


def array_names(dataset: Any) -> list[str]:
    """Return the columns of images and of arrays with two or more dimensions."""
    return [name for name, feature in dataset.features.to_dict().items() if _is_array(feature)]


def saved_arrays(path: Path) -> bool:
    """Return whether a folder of `save_to_disk` has a column of images or arrays, without the package datasets."""
    info = next(pathlib.Path(path).glob("**/dataset_info.json"), None)
    features = json.loads(info.read_text("utf-8")).get("features") if info else None
    return any(map(_is_array, (features or {}).values()))


def _is_array(feature: Any) -> bool:
    inner = feature.get("feature") if isinstance(feature, dict) else None
    return isinstance(feature, dict) and (
        feature.get("_type") in _ARRAYS or (isinstance(inner, dict) and inner.get("_type") in _LISTS)
    )


def as_arrow(dataset: Any, where: str) -> Any:
    """Return a Dataset as a pyarrow Table: class labels as their names, lists of M numbers as M columns."""
    if isinstance(dataset, dict):
        raise InvalidArgument(f"{where} has the splits {', '.join(map(shown, dataset))}: give one of them.")
    table, columns = dataset.with_format("arrow")[:], dict[str, Any]()
    for name, feature in dataset.features.items():
        column = table[name]
        if class_names := getattr(feature, "names", None):
            codes = compute.if_else(compute.less(column, 0), None, column).combine_chunks().cast(pyarrow.int32())
            columns[name] = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(class_names))
            continue
        kind = column.type
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
            sizes = compute.list_value_length(column).drop_null().unique()
            if len(sizes) == 1:
                each = range(sizes[0].as_py())
                columns |= {f"{name}[{j}]": compute.list_element(column, j) for j in each}
                continue
        columns[name] = column
    return pyarrow.table(columns)


def arrays(dataset: Any, column: str, size: Size | None, where: str) -> np.ndarray:
    """Return the images of a column, decoded and of one size, or its arrays of numbers [N, ...]."""
    of_column = dataset.select_columns([column])
    if getattr(dataset.features[column], "_type", "") == "Image":
        stored = of_column.with_format("arrow")[:][column]
        return decoded([_content(x.as_py()) for x in stored], where, size)
    try:
        found = np.asarray(of_column.with_format("numpy")[:][column])
    except ValueError:
        found = np.zeros(0, object)
    if found.dtype.kind not in "biuf":
        what = f"The arrays in the column {shown(column)} of {where} differ in shape, or hold text"
        raise InvalidArgument(f"{what}: give all of them one shape, and numbers.")
    return found


def _content(image: Any) -> bytes:
    """Return the bytes of an image file that a dataset holds, or names by a path on this machine."""
    if image is None:
        return b""
    content: bytes | None = image["bytes"]
    return read_regular(image["path"], "image", MOST_PIXELS * 8) if content is None else content
