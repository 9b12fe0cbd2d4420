"""FEMNIST of TFF: 3,400 writers of EMNIST's digits and letters, each a client with training and test examples."""

from __future__ import annotations

import functools
import pathlib
import string
import urllib.request
from typing import Any

import numpy as np

import tfp_bfl as bfl
from tfp_bfl.engines.tff import require_tff
from tfp_bfl.errors import InvalidArgument

CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
URL = "https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma"
TIMEOUT = 5.0
MOST_TEST = 10_000


def load_data(cache_dir: str | None = None) -> tuple[Any, Any]:
    """Return TFF's train and test `ClientData`, downloaded (170 MB) unless they are in the folder.

    Args:
      cache_dir: where TFF keeps its files; its own place, ~/.tff, if None.

    Raises:
      InvalidArgument: they are not there and can't be downloaded.
    """
    folder = pathlib.Path(cache_dir or pathlib.Path.home() / ".tff")
    file = folder / "emnist_all.sqlite"
    was_there = file.exists()
    try:
        if not was_there:
            # TFF itself would wait for minutes, and take what it got of the file for all of it the next time.
            urllib.request.urlopen(urllib.request.Request(URL, method="HEAD"), timeout=TIMEOUT).close()
        datasets = require_tff().simulation.datasets
        return datasets.emnist.load_data(only_digits=False, cache_dir=str(folder))
    except Exception as error:
        if not was_there:
            file.unlink(missing_ok=True)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidArgument(
            f"FEMNIST can't be read from {folder} nor downloaded ({reason}): bring {file.name} there from where there "
            "is a network, or take mnist_writers."
        ) from error


@functools.lru_cache(maxsize=1)
def load(num_writers: int, seed: int, cache_dir: str | None = None) -> tuple[bfl.data.Clients, bfl.data.Source]:
    """Return the writers' train splits, and 10,000 examples at most of their test splits.

    Raises:
      InvalidArgument: as `load_data` and `clients`.
    """
    train, test = load_data(cache_dir)
    shown = clients(test, num_writers, seed, "test").source
    return clients(train, num_writers, seed), shown.subset(min(MOST_TEST, shown.num_examples), seed)


def clients(data: Any, num_writers: int, seed: int, split: str = "train") -> bfl.data.Clients:
    """Return writers of a `ClientData` of elements {label [], pixels [28, 28]}, drawn by the seed, in memory.

    TFF has pixels as 1 - ink, floats in [0, 1]; here they are as MNIST's: uint8 [N, 28, 28, 1], ink is 255. The same
    number and seed give the same writers for each split.

    Raises:
      InvalidArgument: more writers than there are.
    """
    names = sorted(data.client_ids)
    if num_writers > len(names):
        raise InvalidArgument(f"{num_writers} writers are asked for, but FEMNIST has {len(names)}: ask for fewer.")
    chosen = np.sort(np.random.default_rng([seed, 9]).choice(len(names), num_writers, replace=False))
    parts = [_examples(data.create_tf_dataset_for_client(names[k])) for k in chosen]
    images, labels = (np.concatenate(x) for x in zip(*parts))
    ends = np.cumsum([len(part[1]) for part in parts])
    source = bfl.data.Source("femnist", split, images, labels, CLASS_NAMES)
    return bfl.data.Clients(source, np.split(np.arange(ends[-1]), ends[:-1]))


def as_bytes(pixels: np.ndarray) -> np.ndarray:
    """Return pixels [N, 28, 28], 1 - ink in [0, 1], as uint8 [N, 28, 28, 1]: ink is 255."""
    return np.rint(255 * (1 - pixels)).astype(np.uint8)[..., np.newaxis]


def _examples(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    batches = list(dataset.batch(1000).as_numpy_iterator())
    images = as_bytes(np.concatenate([batch["pixels"] for batch in batches]))
    labels = np.concatenate([batch["label"] for batch in batches])
    return images, labels.astype(np.int32)
