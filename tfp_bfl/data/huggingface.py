"""Datasets of Hugging Face, in memory or in folders of `save_to_disk`, as tables and arrays, without downloads."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from tfp_bfl.data.images import decoded
from tfp_bfl.data.sizes import MOST_PIXELS, Size
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.faces import compute, pyarrow, types
from tfp_bfl.files import Path, read_regular
from tfp_bfl.files import name as name_of
from tfp_bfl.files.packages import check_installed

# Types of features: lists, and arrays of which each is an example.
_LISTS = ("List", "LargeList", "Sequence")
_ARRAYS = ("Image", "Array2D", "Array3D", "Array4D", "Array5D")
# Splits that are the test set, the first that is there.
_TEST = ("test", "validation")


def is_dataset(value: object) -> bool:
    """Return whether a value is a Dataset of the package datasets, or a DatasetDict of its splits."""
    kinds = [kind.__name__ for kind in type(value).__mro__ if kind.__module__.partition(".")[0] == "datasets"]
    return not {"Dataset", "DatasetDict"}.isdisjoint(kinds)


def are_partitions(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list of Datasets, as `load_partition` of flwr_datasets gives them."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_dataset, value))


def is_saved(path: Path) -> bool:
    """Return whether a path is a folder that `save_to_disk` wrote."""
    return any(os.path.isfile(os.path.join(path, x)) for x in ("state.json", "dataset_dict.json"))


def load(path: Path) -> Any:
    """Return the Dataset, or the DatasetDict, of a folder."""
    check_installed("datasets", f"The folder {name_of(path)} of Hugging Face")
    import datasets

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
    column = "partition"
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


def array_names(features: Mapping[str, Any]) -> list[str]:
    """Return the columns of images and of arrays with two or more dimensions, from `datasets.Features.to_dict`."""
    kind = lambda x: x.get("_type") if isinstance(x, dict) else None
    nested = lambda x: kind(x) in _LISTS and kind(x.get("feature")) in _LISTS
    return [name for name, feature in features.items() if kind(feature) in _ARRAYS or nested(feature)]


def saves_arrays(path: Path) -> bool:
    """Return whether a folder of `save_to_disk` has such a column, without the package datasets."""
    info = next(pathlib.Path(path).glob("**/dataset_info.json"), None)
    return info is not None and bool(array_names(json.loads(info.read_text("utf-8")).get("features") or {}))


def as_arrow(dataset: Any, where: str) -> Any:
    """Return a Dataset as a pyarrow Table: class labels as their names, lists of M numbers as M columns."""
    if isinstance(dataset, dict):
        raise InvalidArgument(f"{where} has the splits {', '.join(map(shown, dataset))}: give one of them.")
    table, columns = dataset.with_format("arrow")[:], dict[str, Any]()
    for name, feature in dataset.features.items():
        columns[name] = column = table[name]
        kind, sizes = column.type, ()
        if class_names := getattr(feature, "names", None):
            codes = compute.if_else(compute.less(column, 0), None, column).combine_chunks().cast(pyarrow.int32())
            columns[name] = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(class_names))
        elif isinstance(kind, pyarrow.BaseExtensionType):
            columns[name] = pyarrow.chunked_array([part.storage for part in column.chunks], kind.storage_type)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            sizes = compute.list_value_length(column).drop_null().unique().to_pylist()
        if len(sizes) == 1 and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
            del columns[name]
            columns |= {f"{name}[{j}]": compute.list_element(column, j) for j in range(sizes[0])}
    return pyarrow.table(columns)


def arrays(dataset: Any, column: str, size: Size | None, where: str) -> np.ndarray:
    """Return the images of a column, decoded and of one size, or its arrays of numbers [N, ...].

    An image file is in the dataset, or at a path on this machine.
    """
    of_column = dataset.select_columns([column])
    if getattr(dataset.features[column], "_type", "") == "Image":
        stored = [x.as_py() or {"bytes": b""} for x in of_column.with_format("arrow")[:][column]]
        from_path = lambda x: read_regular(x["path"], "image", MOST_PIXELS * 8)
        return decoded([from_path(x) if x["bytes"] is None else x["bytes"] for x in stored], where, size)
    found = np.asarray(of_column.with_format("numpy")[:][column])
    if found.dtype.kind not in "biuf":
        what = f"The arrays in the column {shown(column)} of {where} differ in shape, or hold text"
        raise InvalidArgument(f"{what}: give all of them one shape, and numbers.")
    return found
