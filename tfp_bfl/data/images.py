"""Image files and .npz archives from anywhere, checked against the shape that a model takes before they are decoded."""

import contextlib
import io
import math
import os
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.sizes import MOST_PIXELS, Size, resized
from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.files import Path
from tfp_bfl.files.arrays import stored_arrays

# Names of files that a folder's images have; what a file holds is decided by its content.
FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
# Pillow rather than TensorFlow decodes: it reads an image's size before it decodes anything.
_DECODERS = ("BMP", "GIF", "JPEG", "PNG")
# Pillow's mode -> channels; others, such as CMYK and I;16, are refused. A transparent colour is one channel more.
CHANNELS = {"1": 1, "L": 1, "LA": 2, "P": 3, "PA": 4, "RGB": 3, "RGBA": 4}
# Pillow decodes 16 bits a channel to the upper 8 without a word, so that only the header has the number of bits.
_PNG_SIGNATURE, _PNG_BITS = b"\x89PNG\r\n\x1a\n", 24
# Beyond its pixels an image file holds profiles, previews and text.
MOST_EXTRA_BYTES = 16 * 2**20
# Of the array of images, and of an archive with all its arrays.
MOST_ARRAY_BYTES, MOST_ARCHIVE_BYTES = 2**29, 2**31
# EXIF's numbers: as stored; turned by 90 or 270 degrees.
_ORIENTATION_TAG = 0x0112
_UPRIGHT = 1
_TURNED = (5, 6, 7, 8)
_MUST_BE = "but must be gray, RGB, RGBA or palette of 8 bits a channel"


class Images(NamedTuple):
    """Images to predict, and those that could not be read.

    Fields:
      names: N; the path of a file, or path[i] for the i-th image of an archive.
      pixels: [N, height, width, channels]; uint8, or float32 in [0, 1] if an archive with floats is among them.
      failures: (name, reason) of each image that could not be read.
    """

    names: tuple[str, ...]
    pixels: np.ndarray
    failures: tuple[tuple[str, str], ...]


class _Unreadable(Exception):
    """The reason why a file cannot be read."""


def read_images(paths: Path | Sequence[Path], shape: tuple[int, int, int], resize: bool = False) -> Images:
    """Read images of one shape; one that can't be read does not stop the others.

    A path is an image file, a folder (its files .png, .jpg, .jpeg, .bmp and .gif that are not hidden, and those of its
    subfolders, sorted by path), or an .npz archive with one array or one called "images": uint8, or floating-point
    numbers in [0, 1], [N, height, width, channels] or [N, height, width]. Nothing is unpickled. Sizes are checked
    before memory is reserved: an image must have the shape `shape`, an array at most 512 MiB.

    The format of an image file is decided by its content, so that a PNG file named .jpg is read as PNG:

        kind of image                                   channels
        black and white, gray; gray with alpha          1; 2
        RGB, palette; RGBA                              3; 4
        one colour or palette entries are transparent   one more, alpha
        palette of gray colours, for a shape of 1       1
        EXIF orientation                                turned upright
        animation                                       those of the first frame
        16 bits a channel, CMYK, floating point         refused

    Args:
      paths: one path or several.
      shape: (height, width, channels), such as a model's `input_shape[1:]`.
      resize: images of other sizes, of at most 67 million pixels, are resized to the shape's height and width
        bilinearly, with antialiasing.

    Raises:
      InvalidArgument: a path does not exist, a folder has no image files, none of the images can be read, or `shape`
        is not three positive integers.
    """
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise InvalidArgument(f"shape is {shown(shape)}, but must be (height, width, channels).")
    height, width, channels = (check_count(n, "each of shape's sizes") for n in shape)
    shape = height, width, channels
    names: list[str] = []
    parts: list[np.ndarray] = []
    failures: list[tuple[str, str]] = []
    for path in _expand(paths):
        name = files.name(path)
        try:
            with files.open_regular(path, "image file") as file:
                if path.suffix.lower() == ".npz":
                    pixels, bad = _read_archive(file, name, shape, resize)
                    names += [f"{name}[{i}]" for i in np.flatnonzero(~bad)]
                    failures += [(f"{name}[{i}]", "has values that are not in [0, 1]") for i in np.flatnonzero(bad)]
                    parts.append(pixels[~bad])
                else:
                    parts.append(_read_image(file, shape, resize)[np.newaxis])
                    names.append(name)
        except (_Unreadable, InvalidArgument) as error:
            failures.append((name, str(error).split(f"{name} ", 1)[-1].rstrip(".")))
    if not names:
        rest = f", and {len(failures) - 1} more can't be read either" if len(failures) > 1 else ""
        raise InvalidArgument(f"No image can be read: {failures[0][0]} {failures[0][1]}{rest}.")
    if len({part.dtype for part in parts}) > 1:
        parts = [part / np.float32(255) if part.dtype == np.uint8 else part for part in parts]
    return Images(tuple(names), np.concatenate(parts), tuple(failures))


def _expand(paths: object) -> list[pathlib.Path]:
    """Return the files that paths mean, folders opened up."""
    expanded = []
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(paths, (list, tuple)) or not paths:
        raise InvalidArgument(f"paths is {shown(paths)}, but must be a path or a list of paths.")
    for path in paths:
        try:
            path = pathlib.Path(path)
            is_folder = path.is_dir()
            # Sorted by name, so that the order does not depend on the file system.
            inside = sorted(image_files(path)) if is_folder else [path]
            path.stat()
        except OSError as error:
            raise InvalidArgument(f"The images {files.name(path)} can't be read: {error.strerror}.") from None
        except (TypeError, ValueError):
            raise InvalidArgument(f"The images {shown(path)} can't be read: that is not a path.") from None
        if not inside:
            kinds = ", ".join(FORMATS)
            raise InvalidArgument(f"The folder {files.name(path)} has no image files: their names must end in {kinds}.")
        expanded += inside
    return expanded


def _read_image(file: BinaryIO, shape: tuple[int, int, int], resize: bool) -> np.ndarray:
    """Return the pixels, uint8 [height, width, channels]."""
    from PIL import ImageOps

    most = (MOST_PIXELS if resize else shape[0] * shape[1]) * 8 + MOST_EXTRA_BYTES
    with _errors_as("is not an image file: it must be BMP, GIF, JPEG or PNG, or .npz"):
        content = file.read(most + 1)
        if len(content) > most:
            raise _Unreadable(f"has more than {most} bytes, too many for such an image")
        image = _open(io.BytesIO(content))
    with _errors_as(f"is a damaged {image.format} image"), image, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if content.startswith(_PNG_SIGNATURE) and content[_PNG_BITS] > 8:
            raise _Unreadable(f"has {content[_PNG_BITS]} bits a channel, {_MUST_BE}")
        size, is_upright = _as_shown(image)
        there = size[:2]
        if resize:
            if there[0] * there[1] > MOST_PIXELS:
                raise _Unreadable(f"is {there[0]} x {there[1]}, but may have at most {MOST_PIXELS:,} pixels")
            size = (*shape[:2], size[2])
        if image.mode == "P" and size == (*shape[:2], 3) and shape[2] == 1:  # As of GIF, which has palettes only.
            palette = np.array(image.getpalette() or [0, 1, 2]).reshape(-1, 3)
            size = shape if (palette == palette[:, :1]).all() else size
        if size[2] is None:
            raise _Unreadable(f"has pixels of the kind {image.mode}, {_MUST_BE}")
        if size != shape:
            raise _Unreadable(f"is {_size(*size)}, but must be {_size(*shape)}")
        image.load()
        direct = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[shape[2]]
        upright = image if is_upright else ImageOps.exif_transpose(image)
        pixels = np.array(upright.convert(direct), np.uint8).reshape(1, *there, shape[2])
    return resized(pixels, shape[:2])[0]


def _open(file: BinaryIO) -> Any:
    """Read the header of an image of a known format."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Image.open(file, formats=_DECODERS)


def shape_of(file: BinaryIO, name: str) -> tuple[int, int, int]:
    """Return height, width and channels of an image file of this name as it is shown, from its header."""
    try:
        with _open(file) as image:
            height, width, channels = _as_shown(image)[0]
            return height, width, channels or 3
    except Exception:  # Decoders raise errors of many types.
        raise InvalidArgument(f"The image {name} can't be read: give a BMP, GIF, JPEG or PNG.") from None


def decoded(contents: Sequence[bytes], where: str, size: Size | None) -> np.ndarray:
    """Return the pixels of image files, uint8 [N, height, width, channels], resized to `size` or all of one size."""
    first = shape_of(io.BytesIO(contents[0]), f"{where}[0]")
    shape = (*(size or first[:2]), first[2])
    pixels = np.empty((len(contents), *shape), np.uint8)
    failures = []
    for i, content in enumerate(contents):
        try:
            pixels[i] = _read_image(io.BytesIO(content), shape, size is not None)
        except _Unreadable as error:
            failures.append((f"{where}[{i}]", str(error)))
    check_all_read(failures, size)
    return pixels


def check_all_read(failures: Sequence[tuple[str, str]], size: Size | None) -> None:
    """Raise InvalidArgument if some of the images of a dataset, (name, reason) each, can't be read."""
    if failures:
        (name, reason), more = failures[0], len(failures) - 1
        likewise = f", and {more} more are not either" if more else ""
        unless = "" if size else ", and of the size of the first unless --image-size is given"
        raise InvalidArgument(f"The image {name} {reason}{likewise}: all must be readable{unless}.")


def image_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the image files of a folder and its subfolders, without hidden ones."""
    for path in folder.rglob("*"):
        if path.suffix.lower() in FORMATS and not is_hidden(path.relative_to(folder)):
            yield path


def is_hidden(path: pathlib.Path) -> bool:
    """Return whether a relative path has a part that programs hide: ".name", or macOS' copies in archives."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def _as_shown(image: Any) -> tuple[tuple[int, int, int | None], bool]:
    """Return height, width and channels of an image as it is shown, None channels for a kind that is not read; and
    whether its pixels are stored upright. Nothing is decoded.
    """
    orientation = _UPRIGHT
    with contextlib.suppress(Exception):  # Of a damaged record, which leaves pixels as they are.
        if {"exif", "xmp", "Raw profile type exif"} & image.info.keys():
            orientation = int(image.getexif().get(_ORIENTATION_TAG, _UPRIGHT))
    channels = CHANNELS.get(image.mode)
    if channels in (1, 3) and "transparency" in image.info:
        channels += 1
    height, width = image.size if orientation in _TURNED else image.size[::-1]
    return (height, width, channels), orientation == _UPRIGHT


def _size(height: object, width: object, channels: object) -> str:
    return f"{height} x {width} with {channels} channel" + ("s" if channels != 1 else "")


@contextlib.contextmanager
def _errors_as(reason: str) -> Iterator[None]:
    """Translate the errors of image decoders, which can be of any type."""
    try:
        yield
    except _Unreadable:
        raise
    except Exception:
        raise _Unreadable(reason) from None


def _read_archive(
    file: BinaryIO, name: str, shape: tuple[int, int, int], resize: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels, uint8 or float32 [N, height, width, channels], and which images have values out of [0, 1], [N]."""
    content = file.read(MOST_ARCHIVE_BYTES + 1)
    arrays = stored_arrays(content, f"archive {name}", MOST_ARCHIVE_BYTES, compressed=True)
    key = next(iter(arrays)) if len(arrays) == 1 else "images"
    if key not in arrays:
        raise _Unreadable(f"must have one array, or one called 'images', and has {len(arrays)} members")
    dtype, dimensions = arrays.form(key)
    if dtype != np.uint8 and not (dtype.kind == "f" and dtype.itemsize <= 8):
        raise _Unreadable(f"has values of type {shown(str(dtype))}, but they must be uint8 or floating-point")
    full = (*dimensions, 1) if len(dimensions) == 3 else dimensions
    if (full[3:] != shape[2:] or min(full) < 1) if resize else (full[1:] != shape or full[0] < 1):
        wanted = f"[N, {'height, width, ' if resize else ''}{', '.join(map(str, shape[2 * resize :]))}]"
        raise _Unreadable(f"has an array of shape {shown(list(dimensions))}, but it must be {wanted}")
    if (num_bytes := math.prod(dimensions) * dtype.itemsize) > MOST_ARRAY_BYTES:
        raise _Unreadable(f"has {num_bytes} bytes of images, but at most {MOST_ARRAY_BYTES} are read at once")
    array = arrays[key].reshape(full)
    if array.dtype == np.uint8:
        return resized(array, shape[:2]), np.zeros(len(array), bool)
    with np.errstate(invalid="ignore"):
        inside = (array >= 0) & (array <= 1)
    return resized(array.astype(np.float32), shape[:2]), ~inside.all(axis=(1, 2, 3))
