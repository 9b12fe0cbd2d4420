"""`tfp-bfl doctor`: what it finds, and its exit status."""

from importlib import metadata

import pytest
import tensorflow as tf
from rich.console import Console

from tests.kit import call
from tfp_bfl.app import doctor


def test_all_is_well_here(capsys):
    assert call("doctor") == 0
    assert capsys.readouterr().out.count("ok") >= 5


@pytest.mark.parametrize("version", ["1.2.0", None])
def test_a_wrong_version_is_named_and_fails(version, monkeypatch, capsys):
    found = metadata.version

    def other(name):
        if name != "numpy":
            return found(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(doctor.metadata, "version", other)
    monkeypatch.setattr(doctor, "_worker", lambda: "started")
    assert call("doctor") == 1
    (failed,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert failed.startswith(f"FAIL packages: numpy is {version or 'missing'}, not ") and "install" in failed


def test_too_little_memory_fails(monkeypatch):
    monkeypatch.setattr(doctor, "_worker", lambda: "started")
    assert all(check.passed for check in doctor.examine(Console(quiet=True)))
    monkeypatch.setattr(doctor, "_LEAST_GIB", 10**6)
    assert [check.name for check in doctor.examine(Console(quiet=True)) if not check.passed] == ["memory"]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that sets what TensorFlow and /dev have, and returns what is said of GPUs."""

    def say(devices=(), details=(), files=(), cuda=True, hidden=None):
        for name in files:
            (tmp_path / name).touch()
        places = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in devices]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: places if kind == "GPU" else [])
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda d: dict(details))
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: cuda)
        monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"cuda_version": "12.5"} if cuda else {})
        monkeypatch.setattr(doctor, "_DEVICES", tmp_path)
        if hidden is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        return doctor._gpus()

    return say


def test_gpus_in_use_are_named(machine):
    details = {"device_name": "NVIDIA H100 80GB HBM3", "compute_capability": (9, 0)}
    said = machine([0, 1], details, ["nvidia0", "nvidia1"])
    assert said.count("NVIDIA H100 80GB HBM3 (compute capability 9.0)") == 2 and "TensorFlow computes on" in said


def test_a_gpu_without_details_is_named_by_its_place(machine):
    assert "computes on /physical_device:GPU:0;" in machine([0])


def test_no_gpu_at_all(machine):
    assert machine(files=["nvidiactl", "nvidia-uvm"]) == "none: this machine has no NVIDIA device"


@pytest.mark.parametrize("hidden", ["-1", ""])
def test_hidden_gpus(machine, hidden):
    assert machine(files=["nvidia0"], hidden=hidden) == f"none: CUDA_VISIBLE_DEVICES={hidden} hides them"


@pytest.mark.parametrize(
    ("cuda", "words"), [(False, "built for the CPU alone"), (True, "tensorflow[and-cuda]=="), (True, "CUDA 12.5")]
)
def test_a_gpu_that_tensorflow_cannot_use(machine, cuda, words):
    said = machine(files=["nvidia0", "nvidia1", "nvidiactl"], cuda=cuda, hidden="0")
    assert said.startswith("none of 2: ") and words in said


def test_a_gpu_out_of_use_fails_nothing(machine, monkeypatch, capsys):
    machine(files=["nvidia0"])
    monkeypatch.setattr(doctor, "_worker", lambda: "started")
    assert call("doctor") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " GPU: " in line]
    assert line.startswith("ok") and "none of 1" in line
