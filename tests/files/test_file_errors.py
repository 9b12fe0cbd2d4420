"""Errors of TensorFlow's writers of files are errors of the system, and nothing half-written remains."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.app import cli
from tfp_bfl.app.one_run import trackers
from tfp_bfl.app.options.config import make_config
from tfp_bfl.federated.checkpoints import Checkpoints, Record
from tfp_bfl.files.code import failure, place_of
from tfp_bfl.files.writing import begun, space, system_error

ERRORS = [
    (tf.errors.OutOfRangeError, "{{node}} /data/x.tempstate1; File too large [Op:SaveV2]", errno.EFBIG),
    (tf.errors.PermissionDeniedError, "{{node}} /data/x; Permission denied [Op:SaveV2]", errno.EACCES),
    (tf.errors.UnknownError, "{{node}} /data/x; Input/output error\n\tFailed to flush 11 events", errno.EIO),
    (tf.errors.FailedPreconditionError, "/data/x; Read-only file system", errno.EROFS),
    (tf.errors.PermissionDeniedError, "/data/x; Read-only file system", errno.EROFS),
    (tf.errors.FailedPreconditionError, "Not a directory [Op:CreateSummaryFileWriter] name: ", errno.ENOTDIR),
    (tf.errors.UnavailableError, "/data/x; Stale file handle", errno.ESTALE),
    (tf.errors.InvalidArgumentError, "/data/x; File name too long", errno.ENAMETOOLONG),
    (tf.errors.NotFoundError, "/data/x; No such device or address", errno.ENXIO),
    (tf.errors.ResourceExhaustedError, "/data/x; Too many open files", errno.EMFILE),
    (tf.errors.PermissionDeniedError, "the store refuses", errno.EACCES),
    (tf.errors.UnknownError, "the store does not answer", errno.EIO),
    (tf.errors.DataLossError, "truncated", errno.EIO),
]
# Not of files, or not of a writer.
OTHERS = [
    tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
    tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [2] vs. [3]"),
    ValueError("x; Permission denied"),
]


def raising(error):
    def fail(*args, **options):
        raise error

    return fail


@pytest.mark.parametrize("kind, message, number", ERRORS)
def test_each_error_of_a_writer_is_one_of_the_system(kind, message, number, tmp_path):
    with pytest.raises(OSError) as raised, space(tmp_path / "x", writes=True):
        raise kind(None, None, message)
    assert (raised.value.errno, raised.value.strerror) == (number, os.strerror(number))
    assert raised.value.filename == str(tmp_path / "x")


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_other_errors_of_a_writer_stay_what_they_are(error, tmp_path):
    with pytest.raises(type(error)) as raised, space(tmp_path / "x", writes=True):
        raise error
    assert raised.value is error and system_error(error) is None


def test_a_block_that_computes_changes_the_error_of_a_full_disk_alone(tmp_path):
    for kind, message, _ in ERRORS:
        with pytest.raises(kind), space(tmp_path):
            raise kind(None, None, message)
    with pytest.raises(PermissionError, match="own words"), space(tmp_path, writes=True):
        raise PermissionError(errno.EACCES, "own words")


@pytest.mark.deep(after="tests/files/test_file_errors.py")
def test_a_checkpoint_that_fails_leaves_the_one_before_alone(tmp_path, monkeypatch):
    process = bfl.algorithms.fed_opt(lambda: bfl.models.mlp(input_shape=(4,), num_classes=2, hidden=()))
    checkpoints, state = Checkpoints(tmp_path, {}), process.initialize()
    checkpoints.save(state._replace(round=np.int32(1)), Record())
    before, write = sorted(tmp_path.iterdir()), tf.raw_ops.SaveV2
    for kind, message, number in ERRORS:

        def half(kind=kind, message=message, **options):
            write(**options)
            raise kind(None, None, message)

        monkeypatch.setattr(tf.raw_ops, "SaveV2", half)
        with pytest.raises(OSError) as raised:
            checkpoints.save(state._replace(round=np.int32(2)), Record())
        assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path))
        assert sorted(tmp_path.iterdir()) == before
    monkeypatch.undo()
    checkpoints.save(state._replace(round=np.int32(2)), Record())
    assert checkpoints.rounds() == [1, 2]


@pytest.mark.deep(after="tests/files/test_file_errors.py")
def test_exports_that_fail_leave_nothing(tmp_path, monkeypatch):
    model = bfl.models.mlp(input_shape=(4,), num_classes=2, hidden=())
    for kind, message, number in ERRORS[:4]:
        monkeypatch.setattr(tf.saved_model, "save", raising(kind(None, None, message)))
        with pytest.raises(OSError) as raised:
            bfl.export.save(model, tmp_path / "model")
        assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / "model"))
        with pytest.raises(OSError) as raised:
            bfl.export.save_tflite(model, tmp_path / "model.tflite", num_samples=1)
        assert raised.value.errno == number
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind, message, number", ERRORS[:4])
def test_events_that_cannot_be_written_are_an_error_of_the_system(kind, message, number, tmp_path, monkeypatch):
    config = make_config(None, {"tracker": "tensorboard"})
    with pytest.raises(OSError) as raised, trackers.tracking(config, tmp_path) as tracker:
        monkeypatch.setattr(tf.summary, "scalar", raising(kind(None, None, message)))
        tracker.round({"round": 1, "nll": 0.5})
    assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / "tensorboard"))
    monkeypatch.setattr(tf.summary, "create_file_writer", raising(kind(None, None, message)))
    with pytest.raises(OSError) as raised, trackers.tracking(config, tmp_path):
        pass
    assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / "tensorboard"))


@pytest.mark.parametrize("kind, message, number", ERRORS[:5])
def test_the_command_line_answers_each_by_one_sentence(kind, message, number, monkeypatch, capsys):
    monkeypatch.setattr(cli.cli, "main", raising(kind(None, None, message)))
    assert cli.run_command_line(["list"]) == 1
    words = f"tfp-bfl: the system says: {os.strerror(number)}. Files saved before remain; fix the cause, then"
    assert capsys.readouterr().err == f"{words} try again.\n"


@pytest.mark.parametrize("error", [OTHERS[0], OTHERS[2]], ids=["memory", "value"])
def test_the_command_line_does_not_hide_faults_of_a_program(error, monkeypatch):
    monkeypatch.setattr(cli.cli, "main", raising(error))
    with pytest.raises(type(error)):
        cli.run_command_line(["list"])


def test_what_cannot_be_removed_does_not_hide_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.rmtree", raising(OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(OSError, match="File too large"), begun(tmp_path / "new"):
        (tmp_path / "new").mkdir()
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


# No file of more than 4 KiB can be written: a limit holds for a whole process.
_PROGRAM = """
import json, pathlib, resource, sys
import numpy as np
import tfp_bfl as bfl
from tfp_bfl.federated.checkpoints import Checkpoints, Record
folder = pathlib.Path(sys.argv[1])
model_fn = lambda: bfl.models.mlp(input_shape=(64,), num_classes=2)
state, model = bfl.algorithms.fed_opt(model_fn).initialize(), model_fn()
writers = {
    "checkpoints": lambda: Checkpoints(folder / "checkpoints", {}).save(state._replace(round=np.int32(1)), Record()),
    "model": lambda: bfl.export.save(model, folder / "model"),
}
def written():
    found = {}
    for name, write in writers.items():
        try:
            found[name] = write()
        except OSError as error:
            found[name] = [error.errno, error.filename]
    return {**found, "files": sorted(str(x) for x in folder.rglob("*") if x.is_file())}
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
first = written()
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
print(json.dumps([first, written()]))
"""


@pytest.mark.deep(after="tests/files/test_writing.py")
def test_files_above_the_limit_of_a_process_are_an_error_and_can_be_written_after_it(tmp_path):
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = json.loads(done.stdout)
    paths = {name: str(tmp_path / name) for name in ("checkpoints", "model")}
    assert first == {**{name: [errno.EFBIG, path] for name, path in paths.items()}, "files": []}
    assert {name: second[name] for name in paths} == dict.fromkeys(paths)
    assert f"{tmp_path}/checkpoints/round_1.sha256" in second["files"]
    assert f"{tmp_path}/model/saved_model.pb" in second["files"]


def test_errors_that_are_causes_of_each_other_have_one_place():
    """As those of an event loop, which raises an error again while it handles it."""
    first, second = ValueError("one"), KeyError("two")
    first.__context__, second.__context__ = second, first
    assert place_of(first) is None and failure(second) == "KeyError: 'two'"
