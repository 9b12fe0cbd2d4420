"""Broken user-supplied tables, archives and parquet files: examples, or one sentence."""

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.fuzz.harness import attempt, fuzz
from tests.fuzz.mutations import mutated
from tfp_bfl.data import OwnData, read_own

RNG = np.random.default_rng(0)
ROWS = 30
SUFFIXES = (".csv", ".parquet", ".npz")
TOKENS = {
    ".csv": [b"nan", b"inf", b"1e999", b'"', b"\n\n", b",,", b"\0", b"\xff\xfe", b"label,label", b"9" * 400],
    ".parquet": [b"PAR1", b"\xff\xff\xff\x7f", b"\0\0\0\0"],
    ".npz": [b"PK\3\4", b"\x93NUMPY", b"|O8", b"<f8", b"(2147483647, 4)", b"features.npy"],
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    columns = {name: RNG.normal(size=ROWS) for name in ("a", "b")}
    labels, owners = np.arange(ROWS) % 3, np.repeat(["x", "y"], ROWS // 2)
    table = pyarrow.table({**columns, "label": labels, "clients": owners})
    pyarrow.csv.write_csv(table, folder / "d.csv")
    pyarrow.parquet.write_table(table, folder / "d.parquet")
    np.savez_compressed(folder / "d.npz", features=np.stack([*columns.values()], -1), labels=labels, clients=owners)
    for suffix in SUFFIXES:
        assert_valid(read_own(folder / f"d{suffix}", client="clients"))
    return folder


def assert_valid(data):
    assert isinstance(data, OwnData)
    for source in (data.train, data.test):
        assert np.isfinite(source.features).all() and source.features.shape[0] == len(source.labels)
        assert (source.labels.dtype == np.int32 and not len(source.labels)) or source.labels.max() < source.num_classes
    if data.clients:
        assert np.array_equal(np.sort(np.concatenate(data.clients.indices)), np.arange(data.train.num_examples))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_mutated(valid, tmp_path, suffix):
    path = tmp_path / f"d{suffix}"
    content = (valid / path.name).read_bytes()
    others = [(valid / f"d{other}").read_bytes() for other in SUFFIXES if other != suffix]

    def read(broken):
        path.write_bytes(broken)
        return attempt(tmp_path, read_own, path, "label", "clients")

    strategy = mutated(content, others, TOKENS[suffix])
    fuzz(f"own data {suffix}", 0.15, strategy, read, lambda _, found: assert_valid(found))
