"""The shape of examples that lie elsewhere, and clients with such examples."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.clients import ClientExamples
from tfp_bfl.data.encoding import Feature
from tfp_bfl.data.sources import Learnt
from tfp_bfl.data.statistics import Column


@dataclasses.dataclass(frozen=True)
class Schema(Learnt):
    """The shape of examples, as far as a model must know it.

    Attributes:
      name: of the data.
      element_shape: of one example's features.
      is_image: whether they are bytes, [height, width, channels]; else float32.
      class_names: C names; () where numbers are regressed on.
      columns: of a table: all sites standardise theirs by these means and standard deviations.
      target: of what is regressed on; None for classes.
      encoding: how the columns of a table become those of `columns`, where they are not all full and of numbers; ()
        otherwise.
    """

    name: str
    element_shape: tuple[int, ...]
    is_image: bool
    class_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    target: Column | None = None
    encoding: tuple[Feature, ...] = ()


class Parties(NamedTuple):
    """Clients with examples that are elsewhere: `simulate` takes them with the engine that reaches them.

    Fields:
      source: what their data look like.
      names: of each, by its number.
      sizes: how many examples each has, int64 [K].
    """

    source: Schema
    names: tuple[str, ...]
    sizes: np.ndarray

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.names)

    @property
    def element_spec(self) -> ClientExamples:
        """The specification of a batch, as of `Clients`."""
        return self.source.element_spec

    def shards(self, numbers: Sequence[int], count: int) -> list[int]:
        """Return the numbers by which the engine knows the clients."""
        del count
        return [int(number) for number in numbers]

    @property
    def description(self) -> str:
        """The sites and their sizes, as a checkpoint records them."""
        digest = hashlib.sha256(json.dumps([self.names, self.sizes.tolist()]).encode()).hexdigest()[:8]
        return f"{self.num_clients} parties of {self.source.name} ({digest})"
