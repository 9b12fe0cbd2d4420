"""Datasets in the folder of TFDS, written under the names, versions and features of TFDS's own builders."""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import click
import numpy as np
import tensorflow_datasets as tfds

IDX_UINT8 = 8


class Examples(NamedTuple):
    """One split: images uint8 [N, height, width, channels] and labels [N]."""

    images: np.ndarray
    labels: np.ndarray


Splits = dict[str, Examples]


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Return the array of an IDX file, gzipped or not: two zeros, the type, the rank, the sizes, the numbers."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    if raw[2] != IDX_UINT8:
        raise click.UsageError(f"{path.name} is not an IDX file of bytes.")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def write(name: str, splits: Splits, data_dir: str | None = None) -> None:
    """Write a dataset of images and labels as TFDS's own builder of that name would."""
    own = tfds.builder(name, data_dir=data_dir)

    def examples(split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, (image, label) in enumerate(zip(*splits[split])):
            example = {"image": image, "label": int(label)}
            if "id" in own.info.features:
                example["id"] = f"{split}_{i:05d}"
            yield i, example

    write_examples(own, {split: examples(split) for split in splits})


def write_examples(own: Any, splits: Mapping[str, Iterable[tuple[int, dict[str, Any]]]]) -> None:
    """Write examples, each with its number, as a builder of TFDS would; nothing is downloaded.

    TFDS writes to a folder beside that of the dataset, and renames it at the end.

    Args:
      own: TFDS's builder of the dataset.
      splits: name of a split -> its examples, with the features of the builder.
    """
    with tfds.core.registered.skip_registration():

        class FromElsewhere(tfds.core.GeneratorBasedBuilder):
            """The same name, version, configurations and features; other examples."""

            VERSION = own.version
            BUILDER_CONFIGS = own.BUILDER_CONFIGS
            pkg_dir_path = own.pkg_dir_path

            def _info(self) -> tfds.core.DatasetInfo:
                return tfds.core.DatasetInfo(
                    builder=self, features=own.info.features, supervised_keys=own.info.supervised_keys
                )

            def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
                return dict(splits)

            def _generate_examples(self, *args: Any) -> Any:
                raise NotImplementedError

    FromElsewhere.name = own.name
    config = own.builder_config.name if own.builder_config else None
    builder = FromElsewhere(data_dir=own.data_dir_root, config=config)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
