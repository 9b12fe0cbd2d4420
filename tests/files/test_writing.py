"""Files and folders are written as a whole or not at all, and a full disk has one name."""

import errno

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.disks import enlarge, small_disk
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.files.writing import begun, space

SIZE = 2**16
NUMBERS = np.random.default_rng(0).normal(size=SIZE)  # 512 KiB


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", SIZE) as folder:
        yield folder


def save_tensor(path):
    tf.raw_ops.SaveV2(prefix=str(path), tensor_names=["x"], shape_and_slices=[""], tensors=[NUMBERS])


@pytest.mark.parametrize(
    "write",
    [
        save_tensor,
        lambda path: tf.io.write_file(str(path), NUMBERS.tobytes()),
        lambda path: write_arrays(path, {"x": NUMBERS}),
        lambda path: write_arrays(path, {"x": NUMBERS}, compressed=True),
        lambda path: write_whole(path, "x" * 2 * SIZE),
    ],
    ids=["save", "write_file", "arrays", "compressed", "text"],
)
def test_a_full_disk_is_an_error_of_the_system_that_names_the_file_and_leaves_nothing(write, disk):
    with pytest.raises(OSError, match="No space left") as raised, begun(disk / "folder"):
        (disk / "folder").mkdir()
        with space(disk / "folder" / "file"):
            write(disk / "folder" / "file")
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(disk / "folder")
    assert not list(disk.iterdir())


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(tf.errors.ResourceExhaustedError), space(tmp_path):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    with pytest.raises(FileNotFoundError), begun(tmp_path / "new"):
        (tmp_path / "nosuch" / "file").write_text("")


@pytest.mark.parametrize("remove", [False, True])
def test_a_folder_that_was_there_stays_empty_unless_asked_otherwise(tmp_path, remove):
    with pytest.raises(KeyError), begun(tmp_path / "folder", remove=remove):
        (tmp_path / "folder" / "inner").mkdir(parents=True)
        raise KeyError
    assert not (tmp_path / "folder").exists()
    (tmp_path / "folder").mkdir()
    with pytest.raises(KeyError), begun(tmp_path / "folder", remove=remove):
        (tmp_path / "folder" / "inner").mkdir()
        raise KeyError
    assert not list(tmp_path.iterdir()) if remove else list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_file_that_cannot_be_replaced_stays_as_it_was(disk):
    write_arrays(disk / "x.npz", {"x": np.arange(3)})
    with pytest.raises(OSError, match="No space left"):
        write_arrays(disk / "x.npz", {"x": NUMBERS})
    assert [path.name for path in disk.iterdir()] == ["x.npz"]
    np.testing.assert_array_equal(read_arrays(disk / "x.npz", "file", SIZE)["x"], np.arange(3))


def test_an_export_that_found_no_space_leaves_nothing_and_can_be_repeated(disk):
    model = bfl.models.mlp(input_shape=(4,), num_classes=2)
    with pytest.raises(OSError, match="No space left") as raised:
        bfl.export.save(model, disk / "model")
    assert raised.value.filename == str(disk / "model") and not list(disk.iterdir())
    enlarge(disk, 2**24)
    bfl.export.save(model, disk / "model")
    assert bfl.export.load(disk / "model")
