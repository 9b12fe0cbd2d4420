"""Images from files, folders and archives: their pixels and order, and which can not be read; and crops and mirrors."""

import collections
import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.kit import refuses
from tfp_bfl import data
from tfp_bfl.data import read_images, read_own
from tfp_bfl.errors import InvalidArgument

SHAPE = (6, 5, 3)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=SHAPE).astype(np.uint8)


def write(path, pixels=PIXELS, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


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
    np.testing.assert_array_equal(images.pixels[[0, 2, 3]], [PIXELS] * 3)
    assert images.pixels.dtype == np.uint8 and images.failures == ()


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
    refuses(r"has an array of shape \[1, 6, 5\], but it must be \[N, 6, 5, 3\]", read_images, tmp_path / "a.npz", SHAPE)


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
    refuses(r"can't be read|paths is|[Nn]o image|path", read_images, paths, SHAPE)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 0), (6, 5, 3.0), "abc", None, 3])
def test_shapes(tmp_path, shape):
    refuses("shape", read_images, write(tmp_path / "a.png"), shape)


def test_files_and_folders_without_images(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("text")
    np.savez(tmp_path / "a.npz", np.array([{}], dtype=object))
    for name, message in {
        "empty": r"has no image files: their names must end in \.bmp, \.gif",
        "a.txt": r"No image can be read: .*a\.txt is not an image file",
        "a.npz": "a.npz holds Python objects",  # Nothing is unpickled.
    }.items():
        refuses(message, read_images, tmp_path / name, SHAPE)


KINDS = np.random.default_rng(1)
RGBA = KINDS.integers(256, size=(6, 5, 4)).astype(np.uint8)
RGB, LA, L = RGBA[..., :3], RGBA[..., :2], RGBA[..., 0]
PALETTE = Image.fromarray(RGB).quantize(4)
EXIF = Image.Exif()
EXIF[0x0112] = 6  # The first row is at the right.


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, form, **options)
    return buffer.getvalue()


def png_of_16_bits(values, colour):
    """A PNG of 16 bits a channel, from [height, width, channels], which Pillow does not write."""
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


COLOURS = {"gray": (1, 0), "RGB": (3, 2), "gray with alpha": (2, 4), "RGBA": (4, 6)}
TRANSPARENT, MASK = PALETTE.copy(), L > 127
TRANSPARENT.info["transparency"] = 1
GRAY_PALETTE = Image.fromarray(L).quantize(4)
# Kind -> the file's content, and its values [6, 5, C].
READ = {
    "black and white": (encoded(MASK), 255 * MASK[..., np.newaxis]),
    "gray": (encoded(L), L[..., np.newaxis]),
    "gray with alpha": (encoded(LA), LA),
    "palette": (encoded(PALETTE), np.array(PALETTE.convert("RGB"))),
    "palette with a transparent entry": (encoded(PALETTE, transparency=1), np.array(TRANSPARENT.convert("RGBA"))),
    "palette of gray": (encoded(GRAY_PALETTE), np.array(GRAY_PALETTE.convert("L"))[..., np.newaxis]),
    "gray with a transparent value": (
        encoded(L, transparency=int(L[0, 0])),
        np.stack([L, np.where(L[0, 0] == L, 0, 255)], -1),
    ),
    "RGB": (encoded(RGB), RGB),
    "RGB as BMP": (encoded(RGB, "BMP"), RGB),
    "RGB with a transparent colour": (
        encoded(RGB, transparency=tuple(map(int, RGB[0, 0]))),
        np.concatenate([RGB, np.where((RGB[0, 0] == RGB).all(-1, keepdims=True), 0, 255)], -1),
    ),
    "RGBA": (encoded(RGBA), RGBA),
    "EXIF orientation": (encoded(Image.fromarray(RGB.transpose(1, 0, 2)[:, ::-1].copy()), exif=EXIF), RGB[::-1, ::-1]),
    "animation": (encoded(L, "GIF", save_all=True, append_images=[Image.fromarray(255 - L)]), L[..., np.newaxis]),
}
REFUSED = {
    **{
        f"16-bit {name}": (png_of_16_bits(257 * KINDS.integers(256, size=(6, 5, n)), colour), "has 16 bits a channel")
        for name, (n, colour) in COLOURS.items()
    },
    "CMYK": (encoded(Image.fromarray(RGBA, "CMYK"), "JPEG"), "pixels of the kind CMYK"),
    "TIFF": (encoded(RGB, "TIFF"), "is not an image file: it must be BMP, GIF, JPEG or PNG"),
    "truncated": (encoded(RGB)[:-40], "is a damaged PNG image"),
    "text": (b"text", "is not an image file"),
}


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("suffix", [".png", ".jpeg", ".bmp", ".GIF"])
def test_values_of_each_kind_under_any_name(tmp_path, kind, suffix):
    content, values = READ[kind]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    np.testing.assert_array_equal(read_images(path, values.shape).pixels[0], values)


@pytest.mark.parametrize("kind", ["gray with a transparent value", "RGB with a transparent colour"])
def test_transparency_is_never_left_out(tmp_path, kind):
    content, values = READ[kind]
    (tmp_path / "a.png").write_bytes(content)
    given = values.shape[-1]
    refuses(f"is 6 x 5 with {given} channels, but must be", read_images, tmp_path / "a.png", (6, 5, given - 1))


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_kinds_that_lose_values_are_refused(tmp_path, kind, channels):
    content, reason = REFUSED[kind]
    (tmp_path / "a.png").write_bytes(content)
    if kind == "truncated" and channels != 3:
        reason = "with 3 channels"
    refuses(reason, read_images, tmp_path / "a.png", (6, 5, channels))


def in_folders(folder, content, suffix=".png"):
    for label in ("dark", "light"):
        (folder / label).mkdir(parents=True)
        for i in range(5):
            (folder / label / f"{i}{suffix}").write_bytes(content)
    return folder


@pytest.mark.parametrize("kind", REFUSED)
def test_folders_with_such_images_are_refused_by_name(tmp_path, kind):
    refuses(r"dark/0\.png", read_own, in_folders(tmp_path / "images", REFUSED[kind][0]))


@pytest.mark.parametrize("kind", READ)
def test_folders_of_images_under_another_name(tmp_path, kind):
    folder = in_folders(tmp_path / "images", READ[kind][0], suffix=".jpg")
    train = read_own(folder).train
    assert len(train.features) and train.features.shape[1:3] == (6, 5)


def photographs(folder):
    """Write images of several sizes in two classes, and return them by path."""
    found = {}
    for label in ("dark", "light"):
        (folder / label).mkdir(parents=True)
        for i in range(5):
            pixels = RNG.integers(256, size=(*RNG.integers(5, 40, 2), 3)).astype(np.uint8)
            found[str(write(folder / label / f"{i}.png", pixels))] = pixels
    return found


def by_pillow(pixels, size):
    """The triangle filter of Pillow, which widens it where images become smaller, as antialiasing does."""
    return np.array(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))


@pytest.mark.parametrize("size", [(8, 6), (50, 60), (1, 1)])
def test_images_of_any_size_are_resized_as_pillow_does(tmp_path, size):
    wanted = photographs(tmp_path / "images")
    found = read_images(tmp_path / "images", (*size, 3), resize=True)
    assert found.failures == () and found.pixels.dtype == np.uint8
    for name, pixels in zip(found.names, found.pixels, strict=True):
        assert np.abs(pixels.astype(int) - by_pillow(wanted[name], size)).max() <= 2
    own = read_own(tmp_path / "images", image_size=size)
    assert {x.tobytes() for x in (*own.train.features, *own.test.features)} == {x.tobytes() for x in found.pixels}
    refuses("of the size of the first unless --image-size is given", read_own, tmp_path / "images")


def test_arrays_of_images_are_resized(tmp_path):
    images = RNG.integers(256, size=(12, 9, 7, 3)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", images)
    found = read_images(tmp_path / "a.npz", (4, 5, 3), resize=True).pixels
    of_floats = read_own((images / np.float32(255), np.arange(12) % 2, np.arange(12) % 2), image_size=(4, 5))
    of_bytes = read_own((images, np.arange(12) % 2, np.arange(12) % 2), image_size="4,5")
    assert of_floats.clients.source is of_floats.train and of_floats.train.features.dtype == np.float32
    for i, pixels in enumerate(images):
        assert np.abs(found[i].astype(int) - by_pillow(pixels, (4, 5))).max() <= 1
    np.testing.assert_array_equal(np.rint(of_floats.train.features * 255), of_bytes.train.features)
    assert {x.tobytes() for x in of_bytes.train.features} <= {x.tobytes() for x in found}


def test_embedded_images_are_resized_and_tables_are_refused():
    small, large = data.load("digits", image_size="4,6"), data.load("digits")
    assert small.features.shape[1:] == (4, 6, 1) and small.features.dtype == np.uint8
    assert data.peek("digits", image_size=(4, 6)).element_shape == (4, 6, 1)
    assert np.abs(small.features.mean((1, 2)) - large.features.mean((1, 2))).max() < 30
    refuses("belongs to images, and breast_cancer has none", data.load, "breast_cancer", image_size=(4, 4))


@pytest.mark.parametrize("size", ["0,3", "3", "3,3,3", "a,b", "2.5,3", (3,), (0, 1), (2.5, 3), 7, "-1,4", "", "4097,4"])
def test_sizes_that_are_none(size):
    refuses("must be two whole numbers of 1 to 4,096, HEIGHT,WIDTH", data.load, "digits", image_size=size)


def test_an_image_that_is_too_large_to_decode_is_refused(tmp_path):
    content = bytearray(encoded(Image.new("L", (8, 8))))
    content[16:24] = struct.pack(">II", 2**13, 2**13 + 1)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InvalidArgument, match="8193 x 8192, but may have at most 67,108,864"):
        read_images(tmp_path / "a.png", (4, 4, 1), resize=True)


IMAGE = np.arange(1, 13, dtype=np.float32).reshape(1, 3, 4, 1)


def possible(padding):
    """Every crop and its mirror image, as bytes."""
    padded = np.pad(IMAGE[0], [(padding, padding), (padding, padding), (0, 0)])
    moves = range(2 * padding + 1)
    crops = [padded[a : a + 3, b : b + 4] for a in moves for b in moves]
    return {x.tobytes() for crop in crops for x in (crop, crop[:, ::-1])}


@pytest.mark.parametrize("padding", [0, 1])
def test_each_crop_comes_as_often_as_any_other(padding):
    """Chi-squared of 2 (2 padding + 1)^2 equally likely images; fails once in 1e6 seeds."""
    images, expected = np.repeat(IMAGE, 1800, 0), possible(padding)
    found = data.crop_and_flip(padding)(tf.constant(images), [3, padding]).numpy()
    counts = collections.Counter(x.tobytes() for x in found)
    assert set(counts) == expected and len(expected) == 2 * (2 * padding + 1) ** 2
    each = 1800 / len(expected)
    chi_squared = sum((counts[x] - each) ** 2 / each for x in expected)
    assert chi_squared < {2: 24, 18: 58}[len(expected)]


def test_a_seed_says_which_crops():
    augment = data.parse_augmentation("crop_and_flip:4")
    images = tf.constant(np.random.default_rng(0).random((8, 32, 32, 3), np.float32))
    first, again, other = augment(images, [1, 2]), augment(images, [1, 2]), augment(images, [1, 3])
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.shape == images.shape and first.dtype == tf.float32


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: data.crop_and_flip(-1), "padding is -1, but must be an integer of at least 0"),
        (lambda: data.parse_augmentation("crop_and_flip"), "lacks its padding: write crop_and_flip:PADDING"),
        (lambda: data.parse_augmentation("mixup"), "no augmentation 'mixup'"),
        (lambda: data.crop_and_flip()(tf.zeros([3, 5]), [0, 0]), "features have the shape \\(3, 5\\)"),
    ],
)
def test_refused_augmentations(make, message):
    refuses(message, make)
