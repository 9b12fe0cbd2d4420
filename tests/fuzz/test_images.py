"""Broken images and archives of them: pixels of the right shape, or one sentence."""

import io
import struct
import zipfile
import zlib

import hypothesis.strategies as st
import numpy as np
import pytest
from PIL import Image

from tests.fuzz.harness import assert_one_sentence, attempt, fuzz
from tests.fuzz.mutations import mutated
from tfp_bfl.data import read_images
from tfp_bfl.errors import InvalidArgument

SHAPE = (6, 5, 3)
PIXELS = np.random.default_rng(0).integers(256, size=SHAPE).astype(np.uint8)


def encoded(kind, image=None, **options):
    stream = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(stream, kind, **options)
    return stream.getvalue()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, content, *more, bits=8, color=2):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def header(shape, descr="|u1", version=(1, 0), order="False"):
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text


def archive(content, name="images.npy", method=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        file.writestr(name, content)
    return stream.getvalue()


def saved(*arrays, compress=True, **named):
    stream = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(stream, *arrays, **named)
    return stream.getvalue()


PALETTE = Image.fromarray(PIXELS).quantize(8)
FRAMES = [PALETTE, PALETTE.rotate(180)]
VALID = {
    ".png": [encoded("PNG"), encoded("PNG", PALETTE), encoded("PNG", optimize=True)],
    ".jpg": [encoded("JPEG"), encoded("JPEG", progressive=True)],
    ".bmp": [encoded("BMP"), encoded("BMP", PALETTE)],
    ".gif": [encoded("GIF", PALETTE), encoded("GIF", PALETTE, save_all=True, append_images=FRAMES)],
    ".npz": [
        saved(PIXELS[np.newaxis]),
        saved(images=np.stack([PIXELS / 255, 1 - PIXELS / 255]).astype(np.float32)),
        saved(PIXELS[np.newaxis], compress=False),
        archive(header((1, *SHAPE)) + PIXELS.tobytes(), method=zipfile.ZIP_STORED),
        archive(header((1, *SHAPE), version=(2, 0)) + PIXELS.tobytes()),
    ],
}
TOKENS = {
    ".png": [b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"iCCP", b"zTXt", b"eXIf", b"acTL", b"fdAT", b"\0\0\0\0"],
    ".jpg": [bytes([0xFF, marker]) for marker in (0xC0, 0xC2, 0xC4, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE0, 0xE1, 0xE2)],
    ".bmp": [struct.pack("<I", n) for n in (0, 1, 2, 3, 4, 12, 40, 108, 124)],
    ".gif": [b"GIF87a", b"GIF89a", b"\x21\xf9\x04", b"\x21\xff\x0b", b"\x2c", b"\x3b", b"NETSCAPE2.0"],
    ".npz": [
        *[b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"\x93NUMPY"],
        *[b"|O", b"<f4", b">f8", b"<c8", b"True"],
    ],
}
BOMB = zlib.compress(b"\0" * 2**26)
HOSTILE = {
    "claims 50,000 x 50,000 pixels.png": png(50_000, 50_000, b"\0" * 100),
    "claims the most pixels.png": png(2**31 - 1, 2**31 - 1, b"\0"),
    "no pixels.png": png(0, 0, b""),
    "cut short.png": VALID[".png"][0][:-40],
    "text that unpacks to much.png": png(5, 6, b"\0" * 96, *[chunk(b"zTXt", b"a\0\0" + BOMB)] * 40),
    "profile that unpacks to much.png": png(5, 6, b"\0" * 10, chunk(b"iCCP", b"a\0\0" + BOMB)),
    "16 bits.png": png(5, 6, b"\0" * 200, bits=16, color=0),
    "text.png": b"hello",
    "empty.png": b"",
    "an EPS.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n(made) (w) file\n",
    "claims 65,535 x 65,535.gif": b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\1\0\0;",
    "claims a negative size.bmp": encoded("BMP")[:18] + struct.pack("<ii", -5, -(2**31)) + encoded("BMP")[26:],
    "claims 65,500 x 65,500.jpg": encoded("JPEG").replace(b"\0\6\0\5", b"\xff\xdc\xff\xdc"),
    "larger than an image needs.bmp": encoded("BMP") + b"\0" * (17 * 2**20),
    "an image.tif": encoded("TIFF"),
    "a program.py": b"open('made', 'w')",
    "unpacks to much.npz": archive(header((2**20, *SHAPE)) + b"\0" * 2**20 * 30),
    "claims much.npz": archive(header((2**40, *SHAPE))),
    "claims a little less.npz": archive(header((2**22, *SHAPE))),
    "a negative number.npz": archive(header((-1, *SHAPE))),
    "none.npz": archive(header((0, *SHAPE))),
    "too short.npz": archive(header((1, *SHAPE)) + b"\0" * 89),
    "too long.npz": archive(header((1, *SHAPE)) + b"\0" * 91),
    "pickled.npz": saved(np.array([{"a": 1}] * 3, dtype=object)),
    "claims a pickle.npz": archive(header((1, *SHAPE), "|O") + b"cos\nsystem\n(S'touch made'\ntR."),
    "complex.npz": saved(np.zeros([1, *SHAPE], np.complex64)),
    "strings.npz": saved(np.full([1, *SHAPE], "a")),
    "header that unpacks to much.npz": archive(b"\x93NUMPY\2\0\xff\xff\xff\x3f" + b"\0" * 2**26),
    "header that is a program.npz": archive(header("__import__('os').system('touch made')")),
    "deep header.npz": archive(header("(" * 3000)),
    "bzip2.npz": archive(header((1, *SHAPE)) + b"\0" * 90, method=zipfile.ZIP_BZIP2),
    "LZMA.npz": archive(header((1, *SHAPE)) + b"\0" * 90, method=zipfile.ZIP_LZMA),
    "too large numbers.npz": saved(np.full([1, *SHAPE], 2.0)),
    "not numbers.npz": saved(np.full([1, *SHAPE], np.nan)),
    "two arrays.npz": saved(PIXELS[np.newaxis], PIXELS[np.newaxis]),
    "no array.npz": archive(b"", name="notes.txt"),
    "path outside.npz": archive(header((1, *SHAPE)), name="../made.npy"),
    "not an archive.npz": b"PK\5\6" + b"\0" * 18,
    "an array.npz": header((1, *SHAPE)) + PIXELS.tobytes(),
}


def many_members():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for i in range(25_000):
            file.writestr(f"{i}.npy", b"")
    return stream.getvalue()


def read(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return attempt(folder, read_images, path, SHAPE)


def assert_valid(images, names=None):
    assert images.pixels.dtype in (np.uint8, np.float32) and images.pixels.shape[1:] == SHAPE
    assert len(images.pixels) == len(images.names) >= 1
    if images.pixels.dtype == np.float32:
        assert images.pixels.min() >= 0 and images.pixels.max() <= 1
    for name, reason in images.failures:
        assert_one_sentence(f"{name} {reason}.")


def test_mutated_files(tmp_path):
    valid = [(suffix, content) for suffix, contents in VALID.items() for content in contents]
    strategy = st.sampled_from(valid).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), mutated(pair[1], [content for _, content in valid], TOKENS[pair[0]]))
    )
    read_drawn = lambda drawn: read(tmp_path, f"image{drawn[0]}", drawn[1])
    fuzz("images", 0.42, strategy, read_drawn, lambda _, images: assert_valid(images))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path, name):
    assert isinstance(read(tmp_path, name, HOSTILE[name]), InvalidArgument)


def test_an_archive_of_many_members(tmp_path):
    assert "members" in str(read(tmp_path, "many.npz", many_members()))


@pytest.mark.parametrize(("suffix", "other"), [(".png", ".jpg"), (".jpg", ".png"), (".bmp", ".gif"), (".gif", ".bmp")])
def test_an_image_is_read_by_its_content(tmp_path, suffix, other):
    """The name does not decide the format: the pixels are those of the file with its own suffix."""
    for content in VALID[suffix]:
        wanted, found = (read(tmp_path, f"image{name}", content) for name in (suffix, other))
        assert_valid(found)
        np.testing.assert_array_equal(found.pixels, wanted.pixels)


@pytest.mark.parametrize("suffix", VALID)
def test_valid_files_are_read(tmp_path, suffix):
    for content in VALID[suffix]:
        assert_valid(read(tmp_path, f"image{suffix}", content))
