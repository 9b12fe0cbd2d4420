"""User-supplied data: tables, archives and folders of images, with and without clients, and their faults."""

import shutil

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

from tests.kit import refuses
from tfp_bfl.data import Clients, Source, is_own, names_clients, read_images, read_own

ROWS = 60
RNG = np.random.default_rng(0)
AGE, DOSE = RNG.normal(50, 9, ROWS), RNG.integers(0, 5, ROWS)
SICK = np.where(RNG.random(ROWS) < 0.4, "yes", "no")
CENTRE = np.array([f"centre {k}" for k in RNG.integers(8, 12, ROWS)])
TABLE = pyarrow.table({"age": AGE, "dose": DOSE, "sick": SICK, "centre": CENTRE, "smokes": AGE > 50})
WRITERS = {".csv": pyarrow.csv.write_csv, ".parquet": pyarrow.parquet.write_table}


def written(folder, suffix=".csv", table=TABLE, name="patients"):
    path = folder / f"{name}{suffix}"
    WRITERS[suffix](table, path)
    return path


def replaced(name, values):
    return TABLE.set_column(TABLE.column_names.index(name), name, pyarrow.array(values))


def raw(source):
    """The rows of a table as they were in its file."""
    means, stddevs = (np.array([getattr(c, name) for c in source.columns]) for name in ("mean", "stddev"))
    return source.features * stddevs + means


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_table_with_clients(tmp_path, suffix):
    data = read_own(written(tmp_path, suffix), label="sick", client="centre")
    assert [c.name for c in data.train.columns] == ["age", "dose", "smokes"]
    assert data.train.name == "patients" and data.train.class_names == ("no", "yes") == data.test.class_names
    assert data.client_names == ("centre 8", "centre 9", "centre 10", "centre 11")
    assert data.train.num_examples + data.test.num_examples == ROWS
    np.testing.assert_allclose(data.train.features.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(data.train.features.std(0), 1, atol=1e-5)
    # Each row is in one of the two, with its label and at its client.
    wanted = {(round(a, 3), d): (s, c) for a, d, s, c in zip(AGE, DOSE, SICK, CENTRE)}
    for k, name in enumerate(data.client_names):
        for i in data.clients.indices[k]:
            age, dose, _ = raw(data.train)[i]
            assert wanted.pop((round(age, 3), round(dose))) == (data.train.class_names[data.train.labels[i]], name)
    for (age, dose, _), label in zip(raw(data.test), data.test.labels):
        assert wanted.pop((round(age, 3), round(dose)))[0] == data.test.class_names[label]
    assert not wanted


def test_a_share_of_each_client_and_class_is_held_out(tmp_path):
    data = read_own(written(tmp_path), label="sick", client="centre")
    assert 11 <= data.test.num_examples <= 13
    for name, kept in zip(data.client_names, data.clients.sizes):
        assert 0.6 < kept / (name == CENTRE).sum() < 0.95
    assert abs((data.test.labels == 1).mean() - (SICK == "yes").mean()) < 0.05
    again = read_own(written(tmp_path, ".parquet"), label="sick", client="centre")
    np.testing.assert_array_equal(data.test.features, again.test.features)


def test_a_test_set_of_its_own(tmp_path):
    path = written(tmp_path)
    test = written(tmp_path, table=TABLE.slice(0, 10).select(["smokes", "dose", "age", "sick", "centre"]), name="later")
    data = read_own(path, "sick", "centre", test)  # columns are found by name
    assert (data.train.num_examples, data.test.num_examples) == (ROWS, 10)
    np.testing.assert_allclose(raw(data.test)[:, 0], AGE[:10], rtol=1e-5)
    assert [data.test.class_names[label] for label in data.test.labels] == SICK[:10].tolist()
    assert data.test.columns == data.train.columns
    short = written(tmp_path, table=TABLE.drop(["dose"]), name="short")
    message = "has no column 'dose', which the model requires: its columns are 'age'"
    refuses(message, read_own, path, "sick", "centre", short)


BOTH = {"label": "sick", "client": "centre"}
CENTRES = pyarrow.concat_tables([replaced("centre", [f"centre {k * 2 // 3}" for k in range(ROWS)])] * 2)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (TABLE, {"label": "sic"}, "There is no column 'sic' in .*patients.csv for --label: did you mean 'sick'"),
        (TABLE, {"label": "sick", "client": "center"}, "for --client-column: did you mean 'centre'"),
        (CENTRES, {"label": "sick"}, "texts, such as 'centre 0' in row 1: .* or give --client-column centre if it"),
        (replaced("age", [*AGE[:7], np.inf, *AGE[8:]]), BOTH, "inf in row 8, which is not finite"),
        (TABLE, {"label": "sick", "client": "sick"}, "'sick' is label and client-column: name two columns"),
        (TABLE, {}, "has no column 'label': name the column with the labels by --label; its columns are 'age', 'dose'"),
        (TABLE.slice(0, 0), {"label": "sick"}, "has no rows"),
        (TABLE.select(["sick"]), {"label": "sick"}, "no columns besides 'sick'"),
        (TABLE.slice(0, 1), BOTH, "labels of the column 'sick' of .* are all '"),
    ],
)
def test_what_is_wrong_with_a_table(tmp_path, change, options, message):
    refuses(message, read_own, written(tmp_path, table=change), **options)


def test_files_that_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    assert is_own("a/b.csv") and is_own("b.PARQUET") and is_own("scans") and is_own(str(tmp_path))
    assert not is_own("mnist") and not is_own("cifar10_corrupted/fog_3")
    for name in ("a.csv", "a.parquet", "a.npz"):
        refuses("can't be read: No such file", read_own, tmp_path / name)
        (tmp_path / name).write_bytes(b"\0\1\2" * 100)
        refuses(".", read_own, tmp_path / name)
    (tmp_path / "a.csv").write_text("x,y\n1,2,3\n")
    refuses(r"Row 1 of .*a.csv has 3 cells, but the header has 2, separated by ','", read_own, tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("x,x,label\n1,2,3\n")
    refuses("two columns 'x'", read_own, tmp_path / "a.csv")
    refuses("must be a folder of images, or end in", read_own, tmp_path / "a.txt")


def test_an_archive(tmp_path):
    path = tmp_path / "scans.npz"
    images = RNG.integers(0, 255, (20, 4, 4), np.uint8)
    arrays = {"features": images, "labels": np.arange(20) % 2, "clients": np.repeat([3, 20], 10)}
    np.savez(path, **arrays, class_names=["cat", "dog"])
    data = read_own(path)
    assert data.train.element_shape == (4, 4, 1) and data.client_names == ("3", "20")
    assert data.train.class_names == ("cat", "dog") and data.clients.sizes.sum() == 16
    np.savez_compressed(path, **arrays, test_features=images[:3], test_labels=[0, 1, 0])
    data = read_own(path)
    assert data.clients.sizes.tolist() == [10, 10] and data.test.labels.tolist() == [0, 1, 0]
    np.savez(path, **arrays, test_features=images[:3], test_labels=[0, 1, 2])
    refuses("The test data have the class '2', which no training example has", read_own, path)
    np.savez(path, **arrays, test_features=images[:0], test_labels=[])
    refuses("The test data have no examples", read_own, path)
    np.savez(path, features=images, label=np.arange(20))
    refuses(r"no array 'labels' in .*scans.npz: did you mean 'label'", read_own, path)
    np.savez(path, **{**arrays, "clients": [1, 2]})
    refuses(r"clients of .* has the shape \[2\]", read_own, path)
    np.savez(path, **arrays, test_labels=[0])
    refuses("must have both or none", read_own, path)


def draw(path, seed, size=(5, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)).save(path)


def pets(folder, numbers=range(10)):
    """Images of cats and dogs."""
    for k in numbers:
        draw(folder / ("cat" if k % 2 else "dog") / f"{k}.png", k)


def test_folders_of_images(tmp_path):
    pets(tmp_path / "flat")
    pets(tmp_path / "split" / "train")
    for k in range(10):
        draw(tmp_path / "split" / "test" / "dog" / f"{k}.png", k)
        pets(tmp_path / "clients" / f"hospital {k // 5}", [k])
    flat, split, clients = (read_own(tmp_path / name) for name in ("flat", "split", "clients"))
    assert flat.train.element_shape == (5, 4, 3) and flat.train.class_names == ("cat", "dog")
    assert flat.train.num_examples + flat.test.num_examples == 10 and flat.clients is None
    assert (split.train.num_examples, split.test.num_examples) == (10, 10) and set(split.test.labels) == {1}
    assert clients.client_names == ("hospital 0", "hospital 1")
    assert clients.clients.sizes.sum() == clients.train.num_examples
    draw(tmp_path / "flat" / "cat" / "z.png", 0, (4, 4))
    refuses(r"z.png is 4 x 4 with 3 channels, but must be 5 x 4.*: all must be", read_own, tmp_path / "flat")
    draw(tmp_path / "flat" / "z.png", 0)
    refuses(r"or all of them in CLIENT/CLASS/, and has 12", read_own, tmp_path / "flat")
    (tmp_path / "empty").mkdir()
    refuses("and has none", read_own, tmp_path / "empty")


@pytest.mark.parametrize(
    ("train", "test"), [("train", "valid"), ("train", "val"), ("Train", "Test"), ("training", "Validation")]
)
@pytest.mark.parametrize("middle", ["", "site a"])
def test_names_of_training_and_test_folders(tmp_path, train, test, middle):
    pets(tmp_path / train / middle, range(8))
    draw(tmp_path / test / middle / "dog" / "9.png", 9)
    data = read_own(tmp_path)
    assert (data.train.num_examples, data.test.num_examples) == (8, 1)
    assert data.client_names == ((middle,) if middle else ()) and names_clients(tmp_path) == bool(middle)


def test_training_and_test_folders_that_are_not_clear_or_alone(tmp_path):
    for name in ("train", "test", "valid"):
        pets(tmp_path / name)
    assert read_own(tmp_path).test.num_examples == 10  # the test set is "test"
    refused = lambda message: refuses(message, read_own, tmp_path)
    draw(tmp_path / "Training" / "dog" / "0.png", 0)
    refused("has both train/ and Training/: leave one out")
    (tmp_path / "Training").rename(tmp_path / "more")
    refused("has 'more' beside train/ and test/: move it")
    for name in ("test", "valid"):
        shutil.rmtree(tmp_path / name)
    refused("has 'more' beside train/: move it into train/ or test/")
    shutil.rmtree(tmp_path / "more")
    data = read_own(tmp_path)
    assert (data.train.num_examples, data.test.num_examples, data.clients) == (8, 2, None)
    assert not names_clients(tmp_path)
    (tmp_path / "train").rename(tmp_path / "test")
    refused("has test/ but no train/: give both, or rename it")


@pytest.mark.parametrize("hidden", [".ipynb_checkpoints/0.png", "__MACOSX/cat/0.png", "cat/._0.png", "cat/.0.png"])
def test_hidden_files_are_no_examples(tmp_path, hidden):
    pets(tmp_path)
    before = read_own(tmp_path)
    draw(tmp_path / hidden, 0, (3, 3))
    (tmp_path / hidden).write_bytes(b"\0\5\x16\7" * 20)
    after = read_own(tmp_path)
    assert after.train.class_names == ("cat", "dog") and after.client_names == ()
    np.testing.assert_array_equal(before.train.features, after.train.features)
    assert len(read_images(tmp_path / "cat", (5, 4, 3)).names) == 5


def test_images_that_are_not_read_are_named_and_a_class_may_be_called_train(tmp_path):
    for k in range(12):
        draw(tmp_path / "scenes" / ("train", "car", "test")[k % 3] / f"{k}.png", k)
    assert read_own(tmp_path / "scenes").train.class_names == ("car", "test", "train")
    shutil.rmtree(tmp_path / "scenes")
    pets(tmp_path)
    (tmp_path / "readme.txt").write_text("Not an image.")
    read_own(tmp_path)
    for name in ("a.tiff", "b.TIFF", "c.webp"):
        (tmp_path / "cat" / name).write_bytes(b"II*")
    refuses(r"can't be read, 2 \.tiff, 1 \.webp: convert them to PNG", read_own, tmp_path)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_images_are_turned_as_exif_states(tmp_path, orientation, suffix):
    """All look alike in a viewer: white above, black below."""
    upright = np.zeros((6, 4, 3), np.uint8)
    upright[:3] = 255
    inverse = {2: [0], 3: [3], 4: [1], 5: [5], 6: [2], 7: [6], 8: [4]}  # of Pillow's transpositions
    for k in range(10):
        image = Image.fromarray(upright)
        for method in inverse.get(orientation, []) if k % 2 else []:
            image = image.transpose(Image.Transpose(method))
        exif = Image.Exif()
        exif[0x0112] = orientation if k % 2 else 1
        path = tmp_path / ("cat" if k % 2 else "dog") / f"{k}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        image.save(path, exif=exif, quality=100)
    data = read_own(tmp_path)
    assert data.train.element_shape == (6, 4, 3)
    means = data.train.features.astype(float).mean((2, 3))
    np.testing.assert_allclose(means, np.broadcast_to([255] * 3 + [0] * 3, means.shape), atol=3)


ARRAYS = {"features": np.stack([AGE, DOSE], 1), "labels": SICK, "clients": CENTRE}


def named_archive(folder):
    np.savez(folder / "data.npz", **ARRAYS, **{f"test_{name}": x[:9] for name, x in ARRAYS.items()})
    return {"path": folder / "data.npz"}


def named_archives(folder):
    paths = {"path": folder / "train.npz", "test": folder / "test.npz"}
    for path, rows in zip(paths.values(), (slice(None), slice(9))):
        np.savez(path, **{key.replace("clients", "site"): x[rows] for key, x in ARRAYS.items()})
    return {**paths, "client": "site"}


def named_folder(folder):
    for split, rows in {"train": range(ROWS), "test": range(9)}.items():
        for i in rows:
            draw(folder / "images" / split / CENTRE[i] / SICK[i] / f"{i:02}.png", i)
    return {"path": folder / "images"}


def named_tables(folder, table=TABLE):
    return {"path": written(folder, table=table), **BOTH, "test": written(folder, table=table.slice(0, 9), name="test")}


def named_frames(folder):
    return {"path": TABLE.to_pandas(), **BOTH, "test": TABLE.to_pandas()[:9]}


def named_clients(folder):
    found, names = Source("a", "train", ARRAYS["features"], SICK), sorted({*CENTRE})
    rows = {name: np.flatnonzero(name == CENTRE) for name in names}
    here = {name: own[own < 9] for name, own in rows.items() if own[0] < 9}
    return {"path": Clients(found, [*rows.values()], names), "test": Clients(found, [*here.values()], [*here])}


FORMS = [named_archive, named_archives, named_folder, named_tables, named_frames, named_clients]


@pytest.mark.parametrize("form", [*FORMS, lambda folder: named_tables(folder, encoded())])
def test_a_separate_test_set_names_the_client_of_each_row(form, tmp_path):
    data = read_own(**form(tmp_path))
    assert sorted(data.test.owners.tolist()) == sorted(CENTRE[:9].tolist())
    assert {*data.test.owners} <= {*data.train.owners} == {*data.client_names} == {*CENTRE}
    labels = [data.test.class_names[k] for k in data.test.labels]
    assert sorted(zip(data.test.owners, labels)) == sorted(zip(CENTRE[:9].tolist(), SICK[:9].tolist()))


def encoded():
    """The table with a category, which is encoded by another road than numbers alone."""
    return TABLE.append_column("colour", pyarrow.array(["red", "blue"] * (ROWS // 2)))


@pytest.mark.parametrize("table", [TABLE, encoded()])
def test_a_test_table_without_names_has_none_and_one_with_gaps_is_refused(tmp_path, table):
    of = named_tables(tmp_path, table)
    written(tmp_path, table=table.slice(0, 9).drop_columns(["centre"]), name="test")
    assert read_own(**of).test.owners is None
    gaps = pyarrow.array([None if i in (2, 5) else name for i, name in enumerate(CENTRE[:9])])
    some = table.slice(0, 9).set_column(table.column_names.index("centre"), "centre", gaps)
    written(tmp_path, table=some, name="test")
    refuses(r"'centre' of .*test.csv.* has 2 empty cells, the first in row 3", read_own, **of)


@pytest.mark.parametrize(
    ("rows", "names", "words"),
    [
        ([[0, 1], [2]], ["a"], "names must give each of the 2 clients a name of its own"),
        ([[0, 1], [2]], ["a", " a"], "a name of its own"),
        ([[0, 1], [2]], ["a", ""], "a name of its own"),
        ([[0, 1], [1]], ["a", "b"], "without common examples"),
    ],
)
def test_names_of_clients_in_memory_are_checked(rows, names, words):
    refuses(words, Clients, Source("a", "train", np.stack([AGE, DOSE], 1), SICK), rows, names)
