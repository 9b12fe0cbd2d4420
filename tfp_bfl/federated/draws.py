"""The samples of a chain over rounds: stored by the driver, each written once.

draw_12.npz    the server's point weights after round 12
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.posterior import Samples
from tfp_bfl.weights import ModelWeights

MOST_BYTES = 2**34


class Thinning(NamedTuple):
    """The rounds of a chain with stored samples: each `every`-th after the burn-in, of which the last `most` predict.

    On disk all of them stay.
    """

    burn_in: int = 0
    every: int = 1
    most: int | None = None

    def is_due(self, number: int) -> bool:
        """Return whether a round's sample is stored; rounds count from 1."""
        since = number - self.burn_in
        return since >= 1 and (since - 1) % self.every == 0


def check_thinning(thinning: Thinning) -> Thinning:
    """Return the thinning, if its counts are in range; raise InvalidArgument otherwise."""
    check_count(thinning.burn_in, "burn_in_rounds", 0)
    check_count(thinning.every, "every")
    if thinning.most is not None:
        check_count(thinning.most, "max_samples")
    return thinning


class Draws:
    """The draws so far that a thinning keeps, written to a folder if there is one.

    `digests`, round -> SHA-256 of its file, in order, are what a checkpoint holds of them.
    """

    def __init__(self, thinning: Thinning, folder: str | os.PathLike | None = None):
        self._thinning = check_thinning(thinning)
        self._folder = None if folder is None else pathlib.Path(folder)
        self._kept: list[tuple[np.ndarray, ...]] = []
        self.digests: dict[str, str] = {}

    def add(self, number: int, weights: ModelWeights) -> None:
        """Keep the weights after a round, if they are due."""
        if not self._thinning.is_due(number):
            return
        self._keep(tuple(np.asarray(x) for x in weights.point))
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._path(number)
            write_arrays(path, {str(i): x for i, x in enumerate(self._kept[-1])})
            self.digests[str(number)] = files.digest(path)

    def restore(self, digests: Mapping[str, str], weights: ModelWeights) -> None:
        """Read the samples that a run wrote before its interruption, as far as this thinning has their rounds."""
        self.digests = dict(digests)
        for number, digest in digests.items():
            path = self._path(int(number))
            if not path.is_file() or files.digest(path) != digest:
                raise InvalidArgument(
                    f"The draw {path} is missing or damaged: take another folder, or delete the checkpoints to start "
                    "anew."
                )
            if self._thinning.is_due(int(number)):
                arrays = read_arrays(path, "draw", MOST_BYTES)
                self._keep(tuple(arrays[str(i)] for i in range(len(weights.point))))

    def samples(self) -> Samples | None:
        """Return the kept draws as a posterior; None before the first."""
        return Samples(tuple(np.stack(leaves) for leaves in zip(*self._kept))) if self._kept else None

    def predictive(self, weights: ModelWeights) -> ModelWeights:
        """Return the weights with the draws as the posterior over them; as they are before the first."""
        samples = self.samples()
        return weights if samples is None else weights._replace(posterior=samples, point=())

    def _keep(self, draw: Any) -> None:
        self._kept.append(draw)
        if self._thinning.most is not None:
            del self._kept[: -self._thinning.most]

    def _path(self, number: int) -> pathlib.Path:
        assert self._folder is not None
        return self._folder / f"draw_{number}.npz"
