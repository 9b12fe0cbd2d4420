"""Eleven small inputs that a reader of files takes for something else: each is read as meant, noted, or refused."""

import pathlib
import struct
import unicodedata
import zlib

import numpy as np
import pytest
from PIL import Image
from scipy import stats

import tfp_bfl as bfl
from tests.kit import call
from tfp_bfl.errors import InvalidArgument

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "K\u00f6ln") for form in ("NFC", "NFD"))
TWO = ("Ulm", COMPOSED, DECOMPOSED)
RNG = np.random.default_rng(0)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def write(head, row, number=60, name="f.csv"):
    """A table of `number` rows; `row` gives the line of its number."""
    lines = "".join(row(i) + "\n" for i in range(number))
    pathlib.Path(name).write_text(f"{head}\n{lines}", encoding="utf-8")
    return name


def x():
    return f"{RNG.normal():.3f}"


def read(*arguments, **options):
    """The data, or None of a file that is refused."""
    try:
        return bfl.data.read_own(*arguments, **options)
    except InvalidArgument:
        return None


def agreed(*files):
    """The schema of sites with these files; None if they are refused."""
    try:
        parts = {name: bfl.data.read_part(name).train for name in files}
        return bfl.sites.agree("t", {name: bfl.sites.describe(part) for name, part in parts.items()})
    except InvalidArgument:
        return None


@case
def a_name_in_two_unicode_forms():
    assert len(read(write("x,label", lambda i: f"{x()},{TWO[i % 3]}")).train.class_names) == 2
    table = write("x,c,label", lambda i: f"{x()},{TWO[i % 3]},{'ab'[i // 30]}")
    assert read(table).train.features.shape[1] == 2 and len(read(table, client="c").client_names) == 2
    rows = lambda name: lambda i: f"{x()},{x()},{('Ulm', name)[i // 30]}"
    forms = COMPOSED, DECOMPOSED
    found = agreed(*(write(f"{name},z,label", rows(name), name=f"{k}.csv") for k, name in enumerate(forms)))
    assert len(found.columns) == len(found.class_names) == 2
    for site, name in zip("AB", forms):
        for label in ("Ulm", name):
            folder = pathlib.Path("images") / site / label
            folder.mkdir(parents=True)
            for i in range(6):
                Image.fromarray(RNG.integers(0, 255, (8, 8), np.uint8)).save(folder / f"{i}.png")
    assert len(read("images").train.class_names) == 2
    table = write("ort,x,y", lambda i: f"{('Aachen', *forms)[i % 3]},{x()},{x()}")
    assert call("glm", table, "--outcome", "y", "--output", "fit") == 0
    assert pathlib.Path("fit/coefficients.csv").read_text(encoding="utf-8").count("ort[K") == 1


@case
def images_of_16_bits():
    def png(path, pixels, kind):
        raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
        part = lambda tag, data: struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))
        head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, kind, 0, 0, 0)
        packed = zlib.compress(raw)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", packed) + part(b"IEND", b""))

    for kind, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        for label, level in (("dark", 20), ("light", 230)):
            folder = pathlib.Path(f"kind_{kind}") / label
            folder.mkdir(parents=True)
            for i in range(10):
                png(folder / f"{i}.png", np.full((8, 8, channels), level, np.uint16), kind)
        data = read(f"kind_{kind}")
        if data is not None:
            dark, light = (np.mean(data.train.features[data.train.labels == k][..., :1]) for k in (0, 1))
            assert dark < light


@case
def ties_of_confidence():
    """The base rate as a prediction is calibrated, in any order of rows."""
    p, y = np.full((200, 2), [0.3, 0.7]), np.repeat([0, 1], [60, 140])
    for order in (np.arange(200), RNG.permutation(200)):
        assert bfl.evaluation.adaptive_calibration_error(p[order], y[order]) < 1e-6
        assert bfl.evaluation.classwise_calibration_error(p[order], y[order], equal_mass=True) < 1e-6


@case
def drift_of_skewed_columns():
    for old, new in [
        (np.append(RNG.normal(50, 10, 2000), 99999.0), RNG.normal(80, 10, 500)),
        (RNG.lognormal(0, 2.5, 4000), RNG.lognormal(np.log(2), 2.5, 1000)),
    ]:
        scaled = [((z - old.mean()) / old.std())[:, None] for z in (old, new)]
        counts = [bfl.evaluation.feature_histograms(z, ["x"]).counts[0] for z in scaled]
        assert stats.ks_2samp(old, new).pvalue < 1e-5 and bfl.evaluation.homogeneity(*counts)[1] <= 0.01


@case
def blanks_in_headers():
    rows = lambda i: f"{x()},{x()},{'ab'[i // 30]}"
    for one, other in (("age", "age "), ("age", " age"), ("age", "age\u00a0"), ("age (y)", "age  (y)")):
        found = agreed(*(write(f"{name},z,label", rows, name=f"{k}.csv") for k, name in enumerate((one, other))))
        assert found is None or [column.name for column in found.columns] == [one, "z"]


@case
def error_codes_of_spreadsheets():
    for code in ("#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "."):
        data = read(
            write("x,z,label", lambda i, code=code: f"{code if i % 3 == 0 else i % 5},{x()},{'ab'[i // 45]}", 90)
        )
        assert data is None or data.train.features.shape[1] <= 3 or any(repr(code) in note for note in data.notes)


@case
def numbers_with_a_sign_beside_them():
    cells = [lambda k: f"{k}%", lambda k: f"{k}.5 %", lambda k: f"${k}", lambda k: f"{k} \u20ac"]
    for cell in [*cells, lambda k: "<5" if k < 5 else str(k)]:
        data = read(write("x,z,label", lambda i, cell=cell: f"{cell(i % 20)},{x()},{'ab'[i // 60]}", 120))
        assert data is None or data.train.features.shape[1] == 2 or any("'x'" in note for note in data.notes)


@case
def invisible_characters():
    for mark in ("\u200b", "\ufeff", "\u00ad", "\u200e"):
        table = write("x,k,label", lambda i, mark=mark: f"{x()},{('a', 'b', 'a' + mark)[i % 3]},{'cd'[i // 30]}")
        assert len(read(table, label="k", drop=["label"]).train.class_names) == 2


@case
def images_with_the_name_of_another_kind():
    for label in "ab":
        folder = pathlib.Path("f") / label
        folder.mkdir(parents=True)
        for i in range(6):
            Image.fromarray(RNG.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / f"{i}.jpg", format="PNG")
    assert read("f").train.features.shape[1:] == (8, 8, 3)


@case
def counts_that_vary_more_than_poisson():
    """With a dispersion of 7 the intervals of 95 % would hold half of the time."""
    values = RNG.normal(size=(200, 1))
    mean = np.exp(1 + 0.3 * values[:, 0])
    y = RNG.negative_binomial(0.5, 0.5 / (0.5 + mean)).astype(float)
    found = bfl.glm.fit([(values[k::4], y[k::4]) for k in range(4)], family="poisson")
    assert any("Pearson" in warning for warning in found.warnings)


@case
def one_outlier_in_a_column():
    row = lambda i: f"{99999 if i == 7 else 50 + 10 * RNG.normal() + 15 * (i % 2):.3f},{'ab'[i % 2]}"
    data = read(write("x,label", row, 400))
    z = np.sort(np.concatenate([data.train.features[:, 0], data.test.features[:, 0]]))
    assert z[:-1].std() >= 0.05 or any("'x'" in note and "99999" in note for note in data.notes)


@pytest.mark.deep(after="tests/data/test_names.py")
@pytest.mark.parametrize("name", CASES)
def test_a_small_input_is_read_as_meant(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))
    assert len(CASES) == 11
    CASES[name]()
