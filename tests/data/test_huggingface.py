"""Datasets of Hugging Face: tables, images, arrays, partitions and folders are read as the same data in other forms."""

import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.kit import assert_same, refusal, refuses
from tfp_bfl.app.one_run.datasets import load
from tfp_bfl.app.options.config import make_config
from tfp_bfl.data import from_huggingface, read_encoded, read_own
from tfp_bfl.errors import MissingDependency

datasets = pytest.importorskip("datasets")

ROWS = 60
RNG = np.random.default_rng(0)
AGE, PAIR = RNG.normal(50, 9, ROWS), RNG.normal(size=(ROWS, 2))
CODES, SEX = RNG.integers(0, 2, ROWS), RNG.choice(["f", "m"], ROWS)
SITES = np.resize(["north", "south", "east"], ROWS)
CLASSES = ("well", "ill")  # Not in the order of the alphabet.
PIXELS = RNG.integers(0, 256, (ROWS, 8, 6, 3)).astype(np.uint8)
LABEL = datasets.ClassLabel(names=list(CLASSES))


def dataset(label=LABEL, labels=CODES, site=SITES, **columns):
    """A dataset of labels and sites, and of columns (values, type)."""
    given = {**columns, "label": (labels, label), "site": (site, datasets.Value("string"))}
    features = datasets.Features({name: kind for name, (_, kind) in given.items()})
    return datasets.Dataset.from_dict({name: list(values) for name, (values, _) in given.items()}, features=features)


NUMBER = datasets.Value("float64")
TABLE = dataset(
    age=(AGE, NUMBER), pair=(PAIR.tolist(), datasets.Sequence(NUMBER, length=2)), sex=(SEX, datasets.Value("string"))
)
IMAGES = dataset(scan=([Image.fromarray(x) for x in PIXELS], datasets.Image()), number=(AGE, NUMBER))
FRAME = pd.DataFrame(
    {"age": AGE, "pair[0]": PAIR[:, 0], "pair[1]": PAIR[:, 1], "sex": SEX, "site": SITES, "label": CODES.astype(str)}
)


def test_a_dataset_is_a_table():
    data, wanted = from_huggingface(TABLE, client_column="site"), read_own(FRAME, client="site")
    assert data.train.class_names == CLASSES and data.client_names == ("east", "north", "south")
    assert (data.train.columns, data.train.encoding) == (wanted.train.columns, wanted.train.encoding)
    for ours, theirs in zip(data[:2], wanted[:2]):
        assert_same((ours.features, ours.labels), (theirs.features, theirs.labels))
        assert (ours.owners == theirs.owners).all()
    assert_same(read_own(TABLE, client="site").train.features, data.train.features)


def test_a_folder_is_read_from_python_the_command_line_and_for_predictions(tmp_path):
    order = RNG.permutation(ROWS)
    TABLE.select(order).save_to_disk(tmp_path / "saved")
    wanted = read_own(FRAME.iloc[order], client="site", drop=["sex"]).train
    options = {"dataset": str(tmp_path / "saved"), "client_column": "site", "drop": "sex"}
    config = make_config(None, options)
    assert (config.model, config.partition) == ("mlp", "given")
    assert_same(load(config).train.features, wanted.features)
    data = from_huggingface(tmp_path / "saved", "site")
    rows = read_encoded(tmp_path / "saved", data.train.encoding, data.train.columns).rows
    FRAME.iloc[order].to_csv(tmp_path / "rows.csv", index=False)
    same = read_encoded(tmp_path / "rows.csv", data.train.encoding, data.train.columns).rows
    np.testing.assert_allclose(rows, same, rtol=1e-12)


@pytest.mark.parametrize("size", [None, (4, 3)])
def test_images_with_their_splits(size, tmp_path):
    both = datasets.DatasetDict({"train": IMAGES, "validation": IMAGES.select(range(5))})
    both.save_to_disk(tmp_path / "scans")
    assert make_config(None, {"dataset": str(tmp_path / "scans")}).model == "lenet"
    data = from_huggingface(tmp_path / "scans", "site", image_size=size)
    wanted = read_own((PIXELS, CODES, SITES), test=(PIXELS[:5], CODES[:5], SITES[:5]), image_size=size)
    assert data.train.class_names == CLASSES and data.test.num_examples == 5
    for ours, theirs in zip(data[:2], wanted[:2]):
        assert_same((ours.features, ours.labels), (theirs.features, theirs.labels))
        assert (ours.owners == theirs.owners).all()
    assert "The features are the arrays in 'scan': 'number' left out." in data.notes


def test_arrays_and_rows_without_a_label():
    series = RNG.normal(size=(ROWS, 5, 2))
    given = dataset(x=(series.tolist(), datasets.Array2D((5, 2), "float64")), labels=np.where(CODES, 1, -1))
    data = from_huggingface(given)
    assert data.train.element_shape == (5, 2) and data.train.num_examples + data.test.num_examples == CODES.sum()
    rows = {tuple(x.ravel()) for x in series[CODES == 1].astype(np.float32)}
    assert rows == {tuple(x.ravel()) for part in data[:2] for x in part.features}


def test_one_of_two_columns_of_arrays():
    kind = datasets.Array2D((2, 2), "float32")
    x, y = RNG.normal(size=(2, ROWS, 2, 2)).astype(np.float32)
    two = dataset(x=(x.tolist(), kind), y=(y.tolist(), kind))
    data = from_huggingface(two, test=two, only=["y"])
    assert_same((data.train.features, data.test.features), (y, y))


def test_partitions_are_clients():
    parts = [TABLE.shard(4, k) for k in range(4)]
    data = from_huggingface(parts, test=TABLE.select(range(10)), only=["age"])
    assert data.client_names == ("0", "1", "2", "3") and data.test.num_examples == 10
    own = [data.train.columns[0].mean + data.train.columns[0].scale * data.train.features[x, 0]
           for x in data.clients.indices]  # fmt: skip
    assert_same(own, [np.array(x["age"][:], np.float32) for x in parts], rtol=1e-5)


LISTS = dataset(x=([[1.0], [2.0, 3.0]] * (ROWS // 2), datasets.Sequence(NUMBER)))
RAGGED = dataset(x=([[[1.0]], [[2.0], [3.0]]] * (ROWS // 2), datasets.Sequence(datasets.Sequence(NUMBER))))
DAMAGED = dataset(x=([{"bytes": b"GIF", "path": None}] * ROWS, datasets.Image()))
BAD = {
    "no column 'clinic' in dataset for --client-column": (TABLE, {"client_column": "clinic"}),
    "no column 'label': name the column with the labels": (TABLE.rename_column("label", "y"), {}),
    "no column 'clinic' in dataset for --client-column: choose": (IMAGES, {"client_column": "clinic"}),
    "column 'site' holds 'north' in row 1, which is no number": (TABLE, {"label": "site", "task": "regression"}),
    "column 'x' holds lists or records": (LISTS, {}),
    "arrays in the column 'x' of dataset differ in shape, or hold text": (RAGGED, {}),
    r"image dataset\[0\] can't be read": (DAMAGED, {}),
    "splits 'a', 'b', but must have 'train'": (datasets.DatasetDict(a=TABLE, b=TABLE), {}),
    "client_column is given, and each partition is a client": ([TABLE, TABLE], {"client_column": "site"}),
    "partitions have different columns": ([TABLE, IMAGES], {}),
    "dataset is 'imdb', but must be a Dataset or": ("imdb", {}),
    "the columns 'x' and 'y' of images or arrays: choose one": (
        dataset(x=(PIXELS[..., 0].tolist(), datasets.Array2D((8, 6), "uint8")),
                y=(PIXELS[..., 0].tolist(), datasets.Array2D((8, 6), "uint8"))), {}),
    "text_features belongs to tables": (IMAGES, {"text_features": "wordllama"}),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_read_is_refused(message):
    given, options = BAD[message]
    refuses(message, from_huggingface, given, **options)


def test_the_command_line_refuses_a_dataset_without_the_client_column(tmp_path, capsys):
    TABLE.save_to_disk(tmp_path / "saved")
    said = refusal(capsys, "run", "--dataset", str(tmp_path / "saved"), "--client-column", "clinic")
    assert "no column 'clinic'" in said


def test_a_folder_without_the_package(tmp_path, monkeypatch):
    TABLE.save_to_disk(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match="the package datasets, which is not installed: pip install datasets"):
        from_huggingface(tmp_path / "saved")
    assert read_own(FRAME, client="site").train.num_examples


def test_a_damaged_folder(tmp_path):
    TABLE.save_to_disk(tmp_path / "saved")
    next((tmp_path / "saved").glob("*.arrow")).write_bytes(b"nothing")
    refuses("dataset .*saved can't be read", from_huggingface, tmp_path / "saved")
