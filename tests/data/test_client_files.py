"""Clients in files are the clients in memory, and what is not theirs is refused."""

import json
import shutil

import numpy as np
import pytest

from tests.kit import refuses, without_times
from tfp_bfl import clients, data, models, simulate
from tfp_bfl.algorithms import compose
from tfp_bfl.servers import replace

SOURCE = data.load("breast_cancer").subset(60, seed=0)
CLIENTS = data.Clients(SOURCE, [np.arange(0, 9), np.arange(9, 40), np.arange(30, 60)])


@pytest.fixture
def files(tmp_path):
    return data.write_clients(CLIENTS, tmp_path / "clients")


def test_examples_are_those_in_memory(files):
    assert files.num_clients == 3 and files.sizes.tolist() == [9, 31, 30]
    assert files.element_spec == CLIENTS.element_spec and files.source.num_outputs == SOURCE.num_outputs
    for k in range(3):
        for found, wanted in zip(files.examples(k), CLIENTS.examples(k)):
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype
    assert files.shares(range(3), 2) == CLIENTS.shares(range(3), 2) == [[1], [2, 0]]


def test_numbers_that_are_regressed_on(tmp_path):
    source = data.load("diabetes").subset(20, seed=0)
    held = data.write_clients(source.partition(data.iid(2), seed=0), tmp_path / "clients")
    assert held.source.target == source.target and held.examples(1).labels.dtype == np.float32


def test_a_run_over_files_is_that_over_memory(files):
    model = lambda: models.mlp("flipout", (30,), 2, hidden=(3,))
    process = compose(model, clients.variational(model, local_epochs=1, batch_size=16), "log_linear_pool", replace())
    runs = [simulate(process, held, 2, cohort_size=2, engine="local").rounds for held in (CLIENTS, files)]
    assert without_times(runs[0]) == without_times(runs[1])


def test_writing_again_changes_nothing_and_others_are_refused(files):
    before = {path: path.stat().st_mtime_ns for path in files.folder.rglob("*")}
    assert data.write_clients(CLIENTS, files.folder).digest == files.digest
    other = data.Clients(SOURCE, [np.arange(0, 9), np.arange(9, 40)])
    refuses("holds something else than these clients: name a new folder", data.write_clients, other, files.folder)
    assert {path: path.stat().st_mtime_ns for path in files.folder.rglob("*")} == before


def test_nothing_is_left_of_what_is_not_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "savez", lambda path, **arrays: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        data.write_clients(CLIENTS, tmp_path / "clients")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("index", ["[]", "{}", '{"version": 2}', "null", '{"version": 1, "source": {}}'])
def test_an_index_of_something_else(tmp_path, index):
    (tmp_path / "clients.json").write_text(index)
    refuses(r"clients\.json is (not an index|of version 2)", data.ClientFiles, tmp_path)
    refuses(r"holds no clients here: it has no clients\.json", data.ClientFiles, tmp_path.parent)


HARMS = {
    "swapped": lambda own, other: shutil.copy(other, own),
    "cut": lambda own, other: own.write_bytes(own.read_bytes()[:200]),
    "gone": lambda own, other: own.unlink(),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_file_is_named(files, harm):
    HARMS[harm](files.folder / "000/client-000001.npz", files.folder / "000/client-000000.npz")
    refuses(r"client-000001\.npz", files.examples, 1)
    assert len(files.examples(2).labels) == 30
    refuses("There is no client 3: clients are numbered 0 to 2", files.examples, 3)


def test_sizes_that_lie(files):
    index = json.loads((files.folder / "clients.json").read_text())
    index["sizes"][0] = 10
    other = files.folder.parent / "other"
    shutil.copytree(files.folder, other)
    (other / "clients.json").write_text(json.dumps(index))
    refuses(r"client-000000\.npz holds arrays", data.ClientFiles(other).examples, 0)
