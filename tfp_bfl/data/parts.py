"""Data of sites: the table of one as it is, and the shape of examples that lie elsewhere."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.cells import BLANK, TEXT_KINDS, Cells, blank
from tfp_bfl.data.checks import checked_labels, checked_targets
from tfp_bfl.data.clients import ClientExamples
from tfp_bfl.data.encoding import Feature, Raw, encode, scaled
from tfp_bfl.data.sources import Learnt, Source
from tfp_bfl.data.statistics import Column
from tfp_bfl.errors import InvalidArgument, shown


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """One split of a site's table, before all sites have agreed on its encoding.

    Attributes:
      name: of the data.
      split: such as "train".
      features: the cells of its columns.
      labels: int32 [N]; standardised numbers for a target.
      class_names: of this site; () for a target.
      target: of what is regressed on, by the training rows of this site; None for classes.
    """

    name: str
    split: str
    features: Raw
    labels: np.ndarray
    class_names: tuple[str, ...] = ()
    target: Column | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            object.__setattr__(self, "labels", checked_targets(self.labels, len(self.features)).astype(np.float32))
            return
        labels, class_names = checked_labels(self.labels, len(self.features), self.class_names)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "class_names", class_names)

    @property
    def num_examples(self) -> int:
        """N."""
        return len(self.labels)

    def encoded(self, encoding: Sequence[Feature], columns: Sequence[Column]) -> np.ndarray:
        """Return the columns of a model, standardised, float32 [N, D]; a column that is not there is empty.

        Args:
          encoding: the features that all sites agreed on; () where all columns are full and hold numbers.
          columns: D, of all features.
        """
        features = encoding or [Feature(column.name, "number") for column in columns]
        found = {cells.name: cells for cells in self.features.columns}
        raw = [_as_feature(found.get(x.name) or blank(x.name, len(self.labels)), x) for x in features]
        return scaled(encode(Raw(raw, self.features.unit), features, columns), columns)


class PartData(NamedTuple):
    """The data of one site.

    Fields:
      train, test: examples to train on and to evaluate with.
      notes: sentences on columns and rows that were left out.
    """

    train: Source | Part
    test: Source | Part
    notes: tuple[str, ...] = ()


def _as_feature(cells: Cells, feature: Feature) -> Cells:
    if cells.kind == BLANK:
        return blank(cells.name, len(cells.values), feature.kind)
    if (cells.kind in TEXT_KINDS) != feature.is_text or (cells.kind == "date") != (feature.kind == "date"):
        kinds = f"of the kind {cells.kind} here, and of the kind {feature.kind} in the federation"
        raise InvalidArgument(f"The column {shown(feature.name)} is {kinds}: correct the table, or start a new run.")
    if cells.sign != feature.sign:
        signs = f"the sign {shown(cells.sign)} beside them here, and {shown(feature.sign)} in the federation"
        raise InvalidArgument(f"The numbers of the column {shown(feature.name)} have {signs}: write them alike.")
    return cells


@dataclasses.dataclass(frozen=True)
class Schema(Learnt):
    """The shape of examples, as far as a model must know it: attributes as of `Source`, which all sites have alike."""

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
