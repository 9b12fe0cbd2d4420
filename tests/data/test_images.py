"""Images from files, folders and archives: their pixels, their order, and which of them could not be read."""

import numpy as np
import pytest
from PIL import Image

from tfp_bfl.data import read_images
from tfp_bfl.errors import InvalidArgument

SHAPE = (6, 5, 3)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=SHAPE).astype(np.uint8)


def write(path, pixels=PIXELS, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".PNG"])
def test_pixels_of_formats_without_loss(tmp_path, suffix):
    images = read_images(write(tmp_path / f"a{suffix}"), SHAPE)
    np.testing.assert_array_equal(images.pixels, PIXELS[np.newaxis])
    assert images.pixels.dtype == np.uint8 and images.failures == ()
    assert images.names == (str(tmp_path / f"a{suffix}"),)


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".gif"])
def test_pixels_of_formats_with_loss(tmp_path, suffix):
    smooth = np.broadcast_to(np.linspace(40, 200, 5)[:, np.newaxis], SHAPE).astype(np.uint8)
    options = {} if suffix == ".gif" else {"quality": 95}
    images = read_images(write(tmp_path / f"a{suffix}", smooth, **options), SHAPE)
    assert np.abs(images.pixels[0].astype(int) - smooth).max() < 12


def test_a_folder_is_its_images_by_name(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b.png", "a.bmp", "b/0.gif", "c.PNG", ".hidden.png"):
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not an image")
    images = read_images(tmp_path, SHAPE)
    assert [name.removeprefix(f"{tmp_path}/") for name in images.names] == ["a.bmp", "b/0.gif", "b.png", "c.PNG"]


def test_bad_files_do_not_stop_the_others(tmp_path):
    write(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("text")
    write(tmp_path / "c.png", PIXELS[:, :4])
    (tmp_path / "d.png").symlink_to(tmp_path / "nothing")
    (tmp_path / "e.png").mkdir()
    images = read_images(str(tmp_path), SHAPE)
    assert images.names == (str(tmp_path / "a.png"),)
    assert [(name[-5:], reason) for name, reason in images.failures] == [
        ("b.png", "is not an image file: it must be BMP, GIF, JPEG or PNG, or .npz"),
        ("c.png", "is 6 x 4 with 3 channels, but must be 6 x 5 with 3 channels"),
        ("d.png", "can't be read: No such file or directory"),
        ("e.png", "can't be read: it must be a regular file"),
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_archives(tmp_path, dtype, order):
    arrays = RNG.integers(2, size=(4, *SHAPE)).astype(dtype, order=order)
    np.savez(tmp_path / "a.npz", arrays)
    images = read_images(tmp_path / "a.npz", SHAPE)
    np.testing.assert_array_equal(images.pixels, arrays)
    assert images.pixels.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    assert images.names[3] == f"{tmp_path / 'a.npz'}[3]"


def test_archives_without_channels_and_with_other_arrays(tmp_path):
    gray = PIXELS[np.newaxis, ..., 0]
    np.savez_compressed(tmp_path / "a.npz", images=gray, labels=np.arange(3))
    np.testing.assert_array_equal(read_images(tmp_path / "a.npz", (6, 5, 1)).pixels[..., 0], gray)
    with pytest.raises(InvalidArgument, match=r"has an array of shape \[1, 6, 5\], but it must be \[N, 6, 5, 3\]"):
        read_images(tmp_path / "a.npz", SHAPE)


def test_values_out_of_range_are_left_out(tmp_path):
    arrays = np.full((4, *SHAPE), 0.5)
    arrays[1, 2, 3, 0], arrays[3, 0, 0, 0] = np.nan, 1.5
    np.savez(tmp_path / "a.npz", arrays)
    images = read_images(tmp_path / "a.npz", SHAPE)
    assert [name[-3:] for name in images.names] == ["[0]", "[2]"] and images.pixels.shape == (2, *SHAPE)
    assert [name[-3:] for name, _ in images.failures] == ["[1]", "[3]"]


def test_bytes_and_floats_together_are_floats(tmp_path):
    np.savez(tmp_path / "b.npz", PIXELS[np.newaxis] / 255)
    images = read_images([write(tmp_path / "a.png"), tmp_path / "b.npz"], SHAPE)
    np.testing.assert_allclose(images.pixels[0], images.pixels[1], atol=1e-6)
    assert images.pixels.dtype == np.float32


@pytest.mark.parametrize("paths", ["nothing.png", [], None, 3, [3], ["a\0b"], iter([])])
def test_what_is_not_there(tmp_path, monkeypatch, paths):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=r"can't be read|paths is|[Nn]o image|path"):
        read_images(paths, SHAPE)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 0), (6, 5, 3.0), "abc", None, 3])
def test_shapes(tmp_path, shape):
    with pytest.raises(InvalidArgument, match="shape"):
        read_images(write(tmp_path / "a.png"), shape)


def test_files_and_folders_without_images(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("text")
    np.savez(tmp_path / "a.npz", np.array([{}], dtype=object))
    for name, message in {
        "empty": r"has no image files: their names must end in \.bmp, \.gif",
        "a.txt": r"No image can be read: .*a\.txt is not an image file",
        "a.npz": "has values of type 'object'",  # Nothing is unpickled.
    }.items():
        with pytest.raises(InvalidArgument, match=message):
            read_images(tmp_path / name, SHAPE)
