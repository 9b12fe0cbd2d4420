"""Checks whether this machine can run simulations: one line a check, with what to do where it fails."""

import os
import pathlib
import platform
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

import psutil
from packaging.requirements import Requirement
from rich.console import Console

from tfp_bfl.engines.tff import local_workers, require_tff
from tfp_bfl.errors import INSTALL_COMMAND, INSTALL_TFF_COMMAND, Error
from tfp_bfl.faces import engine, tf
from tfp_bfl.machine import num_cores

_LEAST_GIB = 2
_DEVICES = pathlib.Path("/dev")


class _Failed(Exception):
    """A check's bad news, with the remedy."""


class Checked(NamedTuple):
    """The result of a check; text: what it found, or what is wrong with the remedy."""

    name: str
    passed: bool
    text: str


def examine(console: Console) -> list[Checked]:
    """Run every check, print a line for each, and return the results."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("Python", platform.python_version),
        ("packages", _packages),
        ("TensorFlow Federated", _worker),
        ("cores", lambda: f"{num_cores()} usable; as many clients train at once"),
        ("GPU", _gpus),
        ("memory", _memory),
    )
    found = []
    for name, check in checks:
        try:
            found.append(Checked(name, True, check()))
        except (_Failed, Error) as error:
            found.append(Checked(name, False, str(error)))
        console.print(f"{'[green]ok  [/]' if found[-1].passed else '[red]FAIL[/]'} {name}: ", end="")
        console.print(found[-1].text, markup=False, highlight=False, soft_wrap=True)
    return found


def _packages() -> str:
    installed, wrong = [], []
    for line in metadata.requires("tfp_bfl") or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = "missing"
        installed.append(f"{requirement.name} {version}")
        if version == "missing" or version not in requirement.specifier:
            wrong.append(f"{requirement.name} is {version}, not {requirement.specifier}")
    if wrong:
        raise _Failed(f"{'; '.join(wrong)}: {INSTALL_COMMAND}")
    return ", ".join(installed)


def _worker() -> str:
    if not engine("tff").is_installed():
        return (
            "optional, not installed: runs use the engine 'local'; for the engine 'tff', with Python 3.11, "
            f"{INSTALL_TFF_COMMAND} installs it"
        )
    tff = require_tff()

    @tff.tensorflow.computation
    def answer() -> int:
        return 42

    started = time.perf_counter()
    with local_workers() as runtime:
        if int(answer()) != 42:
            raise _Failed(f"its worker answers wrongly; reinstall: {INSTALL_TFF_COMMAND}")
        seconds = time.perf_counter() - started
        pid = runtime.workers[0].pid
    if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        raise _Failed(f"process {pid} did not stop: end it with kill -9 {pid}")
    version = metadata.version("tensorflow_federated")
    return f"{version}; its worker started, answered after {seconds:.1f} s, and stopped"


def _gpus() -> str:
    """Return which GPUs TensorFlow computes on; without any the reason, which fails nothing: runs then take the CPU."""
    devices = tf.config.list_physical_devices("GPU")
    if devices:
        return f"TensorFlow computes on {', '.join(_name(x) for x in devices)}; --engine local uses the first"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and (hidden.strip() == "" or hidden.strip().startswith("-1")):
        return f"none: CUDA_VISIBLE_DEVICES={hidden} hides them"
    number = len([path for path in _DEVICES.glob("nvidia*") if path.name[len("nvidia") :].isdigit()])
    if not number:
        return "none: this machine has no NVIDIA device"
    version = tf.__version__
    if not tf.test.is_built_with_cuda():
        return f"none of {number}: TensorFlow {version} is built for the CPU alone; install 'tensorflow=={version}'"
    return (
        f"none of {number}: TensorFlow {version} did not load CUDA; pip install 'tensorflow[and-cuda]=={version}' "
        f"brings its libraries for CUDA {tf.sysconfig.get_build_info().get('cuda_version', 'of that version')}, which "
        "the driver must support"
    )


def _name(device: Any) -> str:
    """Return the model of the GPU and its compute capability."""
    details = tf.config.experimental.get_device_details(device)
    capability = details.get("compute_capability")
    version = f" (compute capability {'.'.join(map(str, capability))})" if capability else ""
    return f"{details.get('device_name', device.name)}{version}"


def _memory() -> str:
    available = psutil.virtual_memory().available / 2**30
    if available < _LEAST_GIB:
        raise _Failed(f"{available:.1f} GiB free, but a run with ResNet-20 takes {_LEAST_GIB}: close other programs")
    return f"{available:.1f} GiB free; a run takes about 1 with LeNet, 2 with ResNet-20"
