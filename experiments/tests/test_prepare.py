"""The preparation of datasets from packages, on packages made here."""

import gzip
import json
import os
import struct

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from experiments import prepare
from tfp_bfl import data

RNG = np.random.default_rng(0)


def idx(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def mnist_files(folder, suffix=""):
    """Files as the packages hold them, below another folder; returns what they say."""
    (folder / "deep").mkdir()
    splits = {}
    for split, stem, number in (("train", "train", 7), ("test", "t10k", 3)):
        images, labels = RNG.integers(0, 256, (number, 28, 28)), RNG.integers(0, 10, number)
        for name, array in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
            raw = idx(array)
            (folder / "deep" / f"{name}{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)
        splits[split] = (images[..., None], labels)
    return splits


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files(tmp_path, suffix):
    wanted = mnist_files(tmp_path, suffix)
    splits = prepare.read_mnist(tmp_path)
    assert splits.keys() == wanted.keys()
    for split, (images, labels) in wanted.items():
        np.testing.assert_array_equal(splits[split].images, images)
        np.testing.assert_array_equal(splits[split].labels, labels)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "floats").write_bytes(bytes([0, 0, 13, 1]) + struct.pack(">I", 1) + bytes(4))
    with pytest.raises(click.ClickException, match="floats is not an IDX file of bytes"):
        prepare.read_idx(tmp_path / "floats")


def cifar_files(folder):
    wanted, labels = {}, {"train": RNG.integers(0, 10, 20).tolist(), "test": RNG.integers(0, 10, 4).tolist()}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        wanted[name] = RNG.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
        Image.fromarray(wanted[name].reshape(4, 1024, 3)).save(folder / f"{name}.png")
    for split, numbers in labels.items():
        (folder / f"{split}_lables.json").write_text(json.dumps(numbers))
    return wanted, labels


def test_cifar_sheets(tmp_path):
    images, labels = cifar_files(tmp_path)
    splits = prepare.read_cifar10(tmp_path)
    np.testing.assert_array_equal(splits["test"].images, images["test_batch"])
    np.testing.assert_array_equal(splits["train"].images[8:12], images["data_batch_3"])
    for split, wanted in labels.items():
        np.testing.assert_array_equal(splits[split].labels, wanted)


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
@pytest.mark.deep(after="experiments/tests/test_prepare.py")
def test_what_is_written_loads_by_its_name(tmp_path, name, monkeypatch):
    source, store = tmp_path / "source", tmp_path / "store"
    source.mkdir()
    (cifar_files if name == "cifar10" else mnist_files)(source)
    read = {"cifar10": prepare.read_cifar10, "mnist": prepare.read_mnist}[name]
    monkeypatch.setitem(prepare.READERS, name, lambda folder: read(source))
    result = CliRunner().invoke(prepare.main, [name, "--data-dir", str(store)])
    assert result.exit_code == 0 and f"{name}: " in result.output, result.output
    splits = read(source)
    for split in ("train", "test"):
        loaded = data.load(name, split, data_dir=store)
        # TFDS shuffles what it writes: the same pairs of image and label.
        pairs = lambda images, labels: sorted((image.tobytes(), int(label)) for image, label in zip(images, labels))
        assert pairs(loaded.features, loaded.labels) == pairs(*(np.asarray(x, np.uint8) for x in splits[split]))
    again = CliRunner().invoke(prepare.main, [name, "--data-dir", str(store)])
    assert again.exit_code == 0 and again.output == f"{name}: prepared already\n"


def test_programs_that_fail_or_are_not_there_say_so(tmp_path):
    with pytest.raises(click.ClickException, match="no-such-program is not installed"):
        prepare.run("no-such-program", folder=tmp_path)
    with pytest.raises(click.ClickException, match=r"ls nothing-here failed: .*nothing-here"):
        prepare.run("ls", "nothing-here", folder=tmp_path)
    assert CliRunner().invoke(prepare.main, ["imagenet"]).exit_code == 2
    assert os.listdir(tmp_path) == []
