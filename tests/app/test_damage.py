"""Files from elsewhere, bounded before they are unpacked, and what happens to a run's folder: one sentence, no harm."""

import json
import sys
import zipfile

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import call
from tfp_bfl import errors
from tfp_bfl.app.one_run import run as runs
from tfp_bfl.app.one_run import run_folder
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.export import model_card
from tfp_bfl.files.arrays import read_arrays

SMALL = {"model": "mlp", "rounds": 1, "clients": 2, "engine": "local", "examples_per_client": 40, "num_samples": 2}


def test_an_archive_is_bounded_by_what_it_unpacks_to(tmp_path):
    path = tmp_path / "predictions.npz"
    np.savez_compressed(path, probabilities=np.zeros((1000, 1000)))
    assert path.stat().st_size < 20_000
    with pytest.raises(InvalidArgument, match="is too large: unpacked it may have at most 100000 bytes"):
        read_arrays(path, "file of predictions", 100_000, compressed=True)
    assert read_arrays(path, "file of predictions", 9_000_000, compressed=True)["probabilities"].shape == (1000, 1000)
    with pytest.raises(InvalidArgument, match="is not a file of arrays"):
        read_arrays(path, "file of predictions", 9_000_000)


def test_an_import_error_is_not_called_damage(tmp_path, monkeypatch):
    np.savez(tmp_path / "p.npz", a=np.zeros(3))
    monkeypatch.setattr(
        zipfile, "ZipFile", lambda *_, **__: (_ for _ in ()).throw(ModuleNotFoundError("no module", name="zlib"))
    )
    with pytest.raises(ModuleNotFoundError):
        read_arrays(tmp_path / "p.npz", "file", 10_000)


def test_more_samples_than_memory_holds_are_refused_before_anything_is_written(tmp_path, capsys):
    output = tmp_path / "run"
    assert call("run", "--num-samples", "2147483647", "--output", output) == 2
    told = capsys.readouterr().err
    assert "num_samples is 2147483647; predictions of 359 examples at once take" in told and "take at most" in told
    assert not output.exists()
    model = bfl.models.mlp("flipout", (2,), 2, hidden=())
    with pytest.raises(InvalidArgument, match="num_samples is 2000000000; predictions of 3 examples"):
        bfl.evaluation.predict(model, np.zeros((3, 2), np.float32), num_samples=2_000_000_000)


def test_a_dataset_cannot_name_a_module_to_import(tmp_path):
    payload = tmp_path / "payload_of_a_dataset.py"
    payload.write_text("raise SystemExit('imported')\n")
    folder = tmp_path / "data" / "evil" / "1.0.0"
    folder.mkdir(parents=True)
    features = {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": {"image": {"pythonClassName": "payload_of_a_dataset.X"}}},
    }
    (folder / "features.json").write_text(json.dumps(features))
    (folder / "dataset_info.json").write_text('{"name": "evil", "version": "1.0.0"}')
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(InvalidArgument, match=r"names 'payload_of_a_dataset\.X', which is none of TFDS's features"):
            bfl.data.load("evil", data_dir=tmp_path / "data")
        features["type"], features["featuresDict"] = "payload_of_a_dataset.X", {}
        (folder / "features.json").write_text(json.dumps(features))
        with pytest.raises(InvalidArgument, match="would be imported"):
            bfl.data.load("evil", data_dir=tmp_path / "data")
        assert "payload_of_a_dataset" not in sys.modules
    finally:
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "runs/x"), "the system says for runs/x: Permission denied. Files"),
        (OSError(28, "No space left on device"), "there is no space left on the disk: make some"),
        (MemoryError("Unable to allocate 9 GiB"), "there is not enough memory (Unable to allocate 9 GiB): give fewer"),
        (OSError(5, "Input/output error"), "the system says: Input/output error. Files saved before remain"),
    ],
)
def test_every_error_of_the_system_is_one_sentence(error, told, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(runs, "_run", lambda *_: (_ for _ in ()).throw(error))
    assert call("run", "--output", tmp_path / "run") == 1
    shown = capsys.readouterr().err
    assert told in shown and "Traceback" not in shown and shown.count("\n") == 1


@pytest.mark.deep(after="tests/app/test_run.py")
def test_a_folder_that_vanishes_is_an_error(tmp_path, monkeypatch):
    import shutil

    config, folder = make_config(None, {**SMALL, "rounds": 3}), tmp_path / "run"
    simulate = bfl.federated.simulate

    def vanishing(*args, monitor, **options):
        def then(row):
            if row["round"] == 2:
                shutil.rmtree(folder)
            monitor.on_round(row)

        return simulate(*args, monitor=monitor._replace(on_round=then), **options)

    monkeypatch.setattr(bfl.federated, "simulate", vanishing)
    with pytest.raises(errors.Error, match="is no longer there, so that the run ended"):
        runs.execute(config, folder)


def test_the_second_of_two_runs_into_one_folder_is_refused(tmp_path):
    """As a process sees it that has passed the first check, and then waits for the first to begin or to end."""
    config, folder = make_config(None, SMALL), tmp_path / "run"
    other = make_config(None, {**SMALL, "seed": 5})
    going_on = pytest.raises(InvalidArgument, match="is still going on in another process")
    with run_folder.owned(folder, config), going_on, run_folder.owned(folder, other):
        pass
    with pytest.raises(InvalidArgument, match="Another run has just begun in"), run_folder.owned(folder, other):
        pass
    with run_folder.owned(folder, config):  # as resume does
        pass
    (folder / "summary.json").write_text("{}")
    with pytest.raises(InvalidArgument, match="has just finished the run in"), run_folder.owned(folder, config):
        pass
    assert (folder / "config.yaml").read_text() == config.record()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("[x](javascript:alert)", "\\[x\\](javascript:alert)"),
        ("![t](http://tracker.example)", "\\!\\[t\\](http\\://tracker.example)"),
        ("`code` *bold* | # head", "\\`code\\` \\*bold\\* \\| \\# head"),
        ("www.example.org", "www\\.example.org"),
        ("two\nlines", "two lines"),
        ("log_linear_pool", "log_linear_pool"),
    ],
)
def test_names_in_a_card_are_text(name, told):
    assert model_card._cell(name) == told
