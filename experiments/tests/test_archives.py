"""The preparation of datasets from archives carried by hand, on small archives made here with sums of their own."""

import gzip
import hashlib
import io
import json
import pathlib
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import scipy.io
import tensorflow_datasets as tfds
from click.testing import CliRunner
from sklearn.datasets import _covtype

from experiments import archives, prepare
from experiments.tests.test_prepare import idx
from tfp_bfl import data

FINE, COARSE = [f"fine {i}" for i in range(100)], [f"coarse {i}" for i in range(20)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def folders(tmp_path):
    """Return an empty folder of archives, and the folder of TFDS, which does not exist."""
    (tmp_path / "archives").mkdir()
    return tmp_path / "archives", tmp_path / "store"


def run(folders, *names):
    source, store = folders
    return CliRunner().invoke(prepare.main, ["--from", str(source), *names, "--data-dir", str(store)])


def prepared(folders, *names):
    result = run(folders, *names)
    assert result.exit_code == 0, result.output
    return result.output


def refused(folders, *names):
    """Return the error, of one line; nothing was written."""
    result = run(folders, *names)
    assert result.exit_code == 2, result.output
    store = folders[1]
    assert not store.exists() or not [path for path in store.rglob("*") if path.is_file()]
    return result.output.partition("Error: ")[2].strip()


def sums(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def publish(monkeypatch, name, path):
    """Have TFDS state the size and the sum of a file made here."""
    stated = tfds.builder_cls(name).url_infos
    url = next(url for url, info in stated.items() if info.filename == path.name)
    info = type(stated[url])(size=path.stat().st_size, checksum=sums(path), filename=path.name)
    monkeypatch.setitem(stated, url, info)


def pack(path, members):
    """Write a .tar.gz or .zip of name -> bytes, also with names that leave the folder."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def pairs(images, labels):
    return sorted((np.asarray(image, np.uint8).tobytes(), int(label)) for image, label in zip(images, labels))


def check_loads(name, store, splits):
    """TFDS shuffles what it writes: the same pairs of image and label."""
    for split, (images, labels) in splits.items():
        loaded = data.load(name, split, data_dir=store)
        assert pairs(loaded.features, loaded.labels) == pairs(images, labels)
    return loaded


def cifar100(rng):
    """Return split -> images [N, 32, 32, 3], fine and coarse labels."""
    make = lambda n: (rng.integers(0, 256, (n, 32, 32, 3)), rng.integers(0, 100, n), rng.integers(0, 20, n))
    return {"train": make(7), "test": make(3)}


def binary_cifar100(path, splits, **more):
    rows = {
        split: b"".join(bytes([c, f]) + bytes(x.transpose(2, 0, 1).ravel().tolist()) for x, f, c in zip(*arrays))
        for split, arrays in splits.items()
    }
    files = {f"{split}.bin": content for split, content in rows.items()}
    files |= {"fine_label_names.txt": "\n".join(FINE).encode(), "coarse_label_names.txt": "\n".join(COARSE).encode()}
    pack(path, {**{f"cifar-100-binary/{name}": x for name, x in files.items()}, **more})


def test_cifar100_is_read_by_tfds_and_no_member_leaves_its_folder(folders, rng, monkeypatch, tmp_path):
    source, store = folders
    path, splits = source / "cifar-100-binary.tar.gz", cifar100(rng)
    outside = tmp_path / "absolute"
    binary_cifar100(path, splits, **{"a/../../../outside": b"x", str(outside): b"x"})
    publish(monkeypatch, "cifar100", path)
    work = tmp_path / "deep" / "work"
    work.mkdir(parents=True)
    monkeypatch.setattr(archives.tempfile, "tempdir", str(work))
    assert "7 train" in prepared(folders, "cifar100")
    loaded = check_loads("cifar100", store, {split: x[:2] for split, x in splits.items()})
    assert list(loaded.class_names) == FINE
    assert not outside.exists() and not list(tmp_path.rglob("outside")) and not list(tmp_path.rglob("train.bin"))
    assert prepared(folders, "cifar100") == "cifar100: prepared already\n"


def test_cifar100_of_pickles(folders, rng, monkeypatch):
    source, store = folders
    path, splits = source / "cifar-100-python.tar.gz", cifar100(rng)
    parts = {"meta": {"fine_label_names": FINE, "coarse_label_names": COARSE}}
    for split, (images, fine, coarse) in splits.items():
        rows = images.astype(np.uint8).transpose(0, 3, 1, 2).reshape(-1, 3072)
        parts[split] = {"data": rows, "fine_labels": fine.tolist(), "coarse_labels": coarse.tolist()}
    pack(path, {f"cifar-100-python/{name}": pickle.dumps(part) for name, part in parts.items()})
    stated = archives._cifar100_of_python()
    assert f"but must have {stated.sha256}" in refused(folders, "cifar100")
    monkeypatch.setattr(archives, "_cifar100_of_python", lambda: stated._replace(sha256=sums(path)))
    prepared(folders, "cifar100")
    loaded = check_loads("cifar100", store, {split: x[:2] for split, x in splits.items()})
    assert list(loaded.class_names) == FINE
    coarse = tfds.load("cifar100", split="test", data_dir=store).as_numpy_iterator()
    assert sorted(int(x["coarse_label"]) for x in coarse) == sorted(splits["test"][2].tolist())


@pytest.fixture
def emnist(rng, monkeypatch):
    """Return name -> gzipped IDX file of EMNIST's configuration "mnist" with 6 and 2 images, and its splits."""
    config = tfds.builder("emnist/mnist").builder_config
    files, splits = {}, {}
    for split, number in (("train", 6), ("test", 2)):
        monkeypatch.setattr(config, f"{split}_examples", number)
        splits[split] = rng.integers(0, 256, (number, 28, 28, 1)), rng.integers(0, 10, number)
        arrays = {"images-idx3": splits[split][0][..., 0], "labels-idx1": splits[split][1]}
        files |= {f"emnist-mnist-{split}-{kind}-ubyte.gz": gzip.compress(idx(x)) for kind, x in arrays.items()}
    return files, splits


def test_emnist_in_its_archive(folders, emnist, monkeypatch):
    source, store = folders
    files, splits = emnist
    outside = source.parent / "outside"
    pack(source / "gzip.zip", {**{f"gzip/{name}": x for name, x in files.items()}, str(outside): b"x"})
    publish(monkeypatch, "emnist", source / "gzip.zip")
    prepared(folders, "emnist/mnist")
    check_loads("emnist/mnist", store, splits)
    assert not outside.exists()


def test_emnist_unpacked(folders, emnist):
    source, store = folders
    files, splits = emnist
    for name, content in files.items():
        (source / name).write_bytes(content)
    (source / min(files)).write_bytes(files[min(files)][:-9])
    assert f"{min(files)} is truncated or another file" in refused(folders, "emnist/mnist")
    (source / min(files)).write_bytes(gzip.compress(idx(np.zeros((1, 28, 28)))))
    assert "its shape is [1, 28, 28], but must be [2, 28, 28]" in refused(folders, "emnist/mnist")
    (source / min(files)).write_bytes(files[min(files)])
    labels = "emnist-mnist-train-labels-idx1-ubyte.gz"
    (source / labels).write_bytes(gzip.compress(idx(np.full(6, 10))))
    assert "its labels must be below 10" in refused(folders, "emnist/mnist")
    (source / labels).write_bytes(files[labels])
    prepared(folders, "emnist/mnist")
    check_loads("emnist/mnist", store, splits)


def test_svhn_without_the_extra_images(folders, rng, monkeypatch):
    source, store = folders
    splits = {"train": (5, "train_32x32.mat"), "test": (3, "test_32x32.mat")}
    for split, (number, file) in splits.items():
        images, labels = rng.integers(0, 256, (32, 32, 3, number)), rng.integers(1, 11, (number, 1))
        scipy.io.savemat(source / file, {"X": images.astype(np.uint8), "y": labels.astype(np.uint8)})
        publish(monkeypatch, "svhn_cropped", source / file)
        splits[split] = images.transpose(3, 0, 1, 2), labels[:, 0] % 10
    assert "svhn_cropped: 5 train, 3 test\n" in prepared(folders, "svhn_cropped")
    check_loads("svhn_cropped", store, splits)


def test_a_dataset_of_which_the_writing_fails_is_not_prepared(folders, monkeypatch):
    source, store = folders
    for file in ("train_32x32.mat", "test_32x32.mat"):
        scipy.io.savemat(source / file, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])})
        publish(monkeypatch, "svhn_cropped", source / file)
    assert run(folders, "svhn_cropped").exception is not None
    assert not tfds.builder("svhn_cropped", data_dir=store).is_prepared()
    assert not [path for path in store.rglob("*") if path.is_file()]


def leaf(path, writers):
    path.parent.mkdir(exist_ok=True)
    examples = {name: {"x": x.reshape(-1, 784).tolist(), "y": y.tolist()} for name, (x, y) in writers.items()}
    path.write_text(json.dumps({"users": [*writers], "num_samples": [], "user_data": examples}))


@pytest.mark.parametrize("parts", [("train", "test"), ("all_data",)])
def test_femnist_by_writer(folders, rng, parts):
    source, store = folders
    make = lambda n: (rng.integers(0, 256, (n, 28, 28)), np.arange(n) % 62)
    writers = {part: {f"f{k:04}_{k}": make(n) for k, n in enumerate((120, 9, 8))} for part in parts}
    for part, held in writers.items():
        scaled = {name: (x / 255, y) for name, (x, y) in held.items()}
        for k, name in enumerate(scaled):
            leaf(source / part / f"all_data_{k}.json", {name: scaled[name]})
    path = store / "femnist.npz"
    assert prepared(folders, "femnist") == f"femnist: --dataset {path}\n"
    own = data.read_own(path)
    assert own.client_names == ("f0000_0", "f0001_1", "f0002_2") and own.train.class_names[10] == "A"
    rows = np.concatenate([own.train.features, own.test.features]), np.concatenate([own.train.labels, own.test.labels])
    every = [example for held in writers.values() for example in held.values()]
    assert pairs(*rows) == pairs(255 - np.concatenate([x for x, _ in every]), np.concatenate([y for _, y in every]))
    if len(parts) == 2:
        assert own.train.num_examples == own.test.num_examples == 137
        assert own.test.owners.tolist() == own.train.owners.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "is truncated or another file"),
        (lambda path: path.write_text("[]"), "is truncated or another file"),
        (lambda path: path.write_text('{"user_data": {}}'), "have no images"),
        (lambda path: leaf(path, {"a": (np.zeros((2, 784)), np.zeros(1))}), "the writer a has other labels"),
        (lambda path: leaf(path, {"a": (np.zeros((1, 784)), np.full(1, 62))}), "the writer a has other labels"),
        (lambda path: leaf(path, {"a": (np.full((1, 784), 2.0), np.zeros(1))}), "pixels that are not from 0 to 1"),
    ],
)
def test_other_files_of_writers_are_refused(folders, change, message):
    path = folders[0] / "all_data" / "all_data_0.json"
    leaf(path, {"a": (np.zeros((1, 784)), np.zeros(1))})
    change(path)
    assert str(path.parent) in (error := refused(folders, "femnist")) and message in error and "\n" not in error


@pytest.fixture
def covertype(folders, rng, monkeypatch):
    """Return the rows of a file with a known sum in the folder of archives, and its path."""
    rows = np.concatenate([rng.integers(0, 5000, (40, 54)), np.arange(40)[:, None] % 7 + 1], 1)
    path = folders[0] / "covtype.data.gz"
    path.write_bytes(gzip.compress("\n".join(",".join(map(str, row)) for row in rows).encode()))
    monkeypatch.setattr(_covtype, "ARCHIVE", _covtype.ARCHIVE._replace(checksum=sums(path)))
    return rows, path


def test_covertype_and_what_is_there_stays(folders, covertype):
    rows, path = covertype
    table = folders[1] / "covertype.npz"
    assert prepared(folders, "covertype") == f"covertype: --dataset {table}\n"
    with np.load(table) as arrays:
        np.testing.assert_array_equal(np.column_stack([arrays["features"], arrays["labels"]]), rows)
    assert data.read_own(table).train.class_names == tuple("1234567")
    assert [x.name for x in folders[1].iterdir()] == ["covertype.npz"]
    path.unlink()
    before = table.read_bytes()
    assert prepared(folders, "covertype") == "covertype: prepared already\n" and table.read_bytes() == before


def test_a_write_that_fails_leaves_nothing(folders, covertype, monkeypatch):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    assert isinstance(run(folders, "covertype").exception, OSError)
    assert not list(folders[1].rglob("*.npz*"))


def test_another_file_is_refused_with_both_sums(folders, covertype):
    _, path = covertype
    stated = sums(path)
    path.write_bytes(path.read_bytes()[:-5] + b"other")
    error = refused(folders, "covertype")
    assert f"{path} has the SHA-256 sum {sums(path)}, but must have {stated}: copy it again from https:" in error


def test_a_truncated_archive_is_refused_before_the_others_are_prepared(folders, covertype, rng, monkeypatch):
    path = folders[0] / "cifar-100-binary.tar.gz"
    binary_cifar100(path, cifar100(rng))
    publish(monkeypatch, "cifar100", path)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    error = refused(folders, "covertype", "cifar100")
    assert f"as it is truncated to 1,000 of {len(whole):,} bytes" in error and "\n" not in error


def test_what_is_missing_is_said_of_each_name_with_published_sums(folders):
    lines = refused(folders, "cifar100", "svhn_cropped", "emnist", "femnist", "covertype").splitlines()
    wanted = {
        "cifar100": ("cifar-100-binary.tar.gz (168,513,733 bytes, SHA-256 58a81ae1", "SHA-256 85cd44d0", "toronto.edu"),
        "svhn_cropped": ("train_32x32.mat (182,040,794 bytes, SHA-256 435e94d6", "test_32x32.mat (64,275,384 bytes"),
        "emnist": ("gzip.zip (561,753,746 bytes, SHA-256 fb9bb67e", "emnist-byclass-train-images-idx3-ubyte*"),
        "femnist": ("train/*.json (published at https://github.com/TalwalkarLab/leaf", "all_data/*.json"),
        "covertype": ("covtype.data.gz (SHA-256 614360d0",),
    }
    assert len(lines) == len(wanted)
    for line, (name, parts) in zip(lines, wanted.items()):
        assert f"has not all of {name}: it lacks" in line and all(part in line for part in parts)
    assert "extra" not in lines[1]


def test_only_what_is_missing_is_named(folders):
    (folders[0] / "train_32x32.mat").write_bytes(b"x")
    error = refused(folders, "svhn_cropped")
    assert "test_32x32.mat" in error and "train_32x32.mat" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "nowhere", "covertype"], "There is no folder"),
        (["--from", ".", "imagenet"], "'imagenet' is not one of"),
        (["--from", "."], "--from requires the names of datasets: choose from cifar100"),
        (["--from", ".", "cifar10"], "cifar10 is prepared from a package, not from an archive: leave --from out"),
        (["covertype"], "covertype is prepared from an archive, not from a package: give the folder"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(prepare.main, arguments)
    assert result.exit_code == 2 and message in result.output.partition("Error: ")[2]
    assert list(pathlib.Path().iterdir()) == []
