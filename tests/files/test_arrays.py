"""Named arrays in a file: back as they were, and nothing else read."""

import io
import os
import zipfile

import numpy as np
import pytest

from tests.kit import refuses
from tfp_bfl.files.arrays import read_arrays, stored_arrays, to_bytes, write_arrays

ARRAYS = {
    "a/0/b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "double": np.array(1 / 3),
    "names": np.array(["Aachen/1", "Ωmega", ""]),
    "none": np.zeros([0, 4], np.int64),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "flags": np.array([True, False]),
}


def saved(write=np.savez, *positional, **arrays):
    stream = io.BytesIO()
    write(stream, *positional, **arrays)
    return stream.getvalue()


def archive(*members, method=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        for name, content in members:
            file.writestr(name, content)
    return stream.getvalue()


def header(shape, descr="<f4"):
    """Of an array in NumPy's own format."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text


def test_arrays_come_back_as_they_were(tmp_path):
    write_arrays(tmp_path / "a.npz", ARRAYS)
    back = read_arrays(tmp_path / "a.npz", "file", 10_000)
    assert list(back) == list(ARRAYS)
    for name, wanted in ARRAYS.items():
        assert (back[name].dtype, back[name].shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(back[name], wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_numpy_reads_what_is_written_and_a_path_may_be_text(tmp_path):
    write_arrays(str(tmp_path / "without a suffix"), ARRAYS)
    with np.load(tmp_path / "without a suffix", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["a/0/b"], ARRAYS["a/0/b"])
    assert set(read_arrays(str(tmp_path / "without a suffix"), "file", 10_000)) == set(ARRAYS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # NumPy's archive, left open
def test_a_file_that_is_there_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.npz"
    write_arrays(path, {"x": np.ones(3)})
    before = path.read_bytes()

    class Broken:
        def __array__(self):
            raise RuntimeError("this is expected")

    with pytest.raises(RuntimeError, match="this is expected"):
        write_arrays(path, {"x": np.zeros(3), "y": Broken()})
    assert path.read_bytes() == before
    write_arrays(path, {"x": np.zeros(3)})
    np.testing.assert_array_equal(read_arrays(path, "file", 10_000)["x"], np.zeros(3))


def test_a_file_may_have_so_many_bytes_and_no_more(tmp_path):
    path = tmp_path / "a.npz"
    write_arrays(path, ARRAYS)
    size = path.stat().st_size
    assert set(read_arrays(path, "file", size)) == set(ARRAYS)
    refuses(rf"is too large: it may have at most {size - 1} bytes", read_arrays, path, "file", size - 1)


VALID = saved(**ARRAYS)
BROKEN = {
    "empty": b"",
    "text": b"1, 2, 3\n",
    "an archive of nothing but its end": b"PK\5\6" + b"\0" * 17,
    "one array, not in an archive": saved(np.save, np.ones(3)),
    "compressed": saved(np.savez_compressed, x=np.zeros(10**6)),
    "compressed another way": archive(("x.npy", header((3,)) + b"\0" * 12), method=zipfile.ZIP_BZIP2),
    "a program": archive(("x.npy", b"\x93NUMPY\1\0\x20\0__import__('os').system('true')\n")),
    "other files": archive(("notes.txt", b"hello")),
    "other files as well": archive(("x.npy", header((3,)) + b"\0" * 12), ("notes.txt", b"hello")),
    "too short": archive(("x.npy", header((3,)) + b"\0" * 11)),
    "claims much": archive(("x.npy", header((2**40,)) + b"\0" * 12)),
    "a negative size": archive(("x.npy", header((-3,)) + b"\0" * 12)),
    "a changed byte": VALID.replace(ARRAYS["a/0/b"].tobytes(), bytes(24), 1),
    **{f"cut at {share}": VALID[: int(share * len(VALID))] for share in (0.01, 0.3, 0.9, 0.999)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.npz"
    path.write_bytes(BROKEN[name])
    refuses(r"^The list .*a\.npz is not a file of arrays, or is damaged\.$", read_arrays, path, "list", 10_000)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_an_archive_without_arrays_is_an_empty_one(tmp_path):
    write_arrays(tmp_path / "a.npz", {})
    assert read_arrays(tmp_path / "a.npz", "file", 100) == {}


@pytest.mark.parametrize("what", ["absent", "folder", "pipe", "device"])
def test_what_is_not_a_file(tmp_path, what):
    path = tmp_path / "a.npz"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    refuses(r"^The file .* can't be read: ", read_arrays, "/dev/zero" if what == "device" else path, "file", 100)


def test_stored_arrays_are_the_same_and_state_their_form_before():
    stored = stored_arrays(to_bytes(ARRAYS), "message", 10_000)
    assert list(stored) == list(ARRAYS)
    for name, wanted in ARRAYS.items():
        assert stored.form(name) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(stored[name], wanted)


@pytest.mark.parametrize("shape", [(2,), (4,), (2**62,), (2**40, 2**40)])
def test_a_header_that_does_not_fit_the_size_in_the_directory_is_refused(shape):
    stored = stored_arrays(archive(("x.npy", header(shape) + bytes(12))), "message", 10_000)
    for read in (stored.form, stored.__getitem__):
        refuses("The message is not a file of arrays", read, "x")


def test_a_name_twice_is_refused():
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = archive(*[("x.npy", header((1,)) + bytes(4))] * 2)
    refuses("not a file of arrays", stored_arrays, content, "message", 10_000)


def test_reading_takes_as_many_steps_as_there_are_arrays(monkeypatch):
    """By counts, not by the clock: each entry is looked up once in a dictionary and opened once for each question."""
    number = 2000
    content = to_bytes({f"{i}": np.zeros(1, np.float32) for i in range(number)})
    opened = []
    original = zipfile.ZipFile.open
    monkeypatch.setattr(
        zipfile.ZipFile, "open", lambda self, *args, **kw: opened.append(0) or original(self, *args, **kw)
    )
    stored = stored_arrays(content, "message", 2**24)
    assert not opened and len(stored) == number
    assert sum(len(x) for x in stored.values()) == number and len(opened) == 2 * number


@pytest.mark.parametrize(
    "content",
    [
        saved(x=np.array([{"a": 1}], object)),
        archive(("x.npy", header((1,), "|O") + b"cos\nsystem\n(S'touch made'\ntR.")),
    ],
)
def test_python_objects_are_refused_and_never_unpickled(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses("The array 'x' of the message holds Python objects", dict, stored_arrays(content, "message", 10_000))
    assert not list(tmp_path.iterdir())
