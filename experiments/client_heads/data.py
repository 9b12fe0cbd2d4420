"""Federations of the study: rows of training and test, encoded and standardised by those of training."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

import tfp_bfl as bfl
from experiments.client_heads.config import FEDERATIONS, Options
from tfp_bfl.glm.posterior import mean_outcome


class Split(NamedTuple):
    """Training and test rows, as encoded and standardised by the training rows."""

    train: bfl.data.Source
    test: bfl.data.Source

    @property
    def family(self) -> str:
        return "gaussian" if self.train.target else "bernoulli"

    def clients(self) -> tuple[list[str], list[tuple[np.ndarray, np.ndarray]]]:
        """Return the names of the clients and the training rows of each."""
        names = sorted(set(self.train.owners.tolist()))
        rows = [np.flatnonzero(self.train.owners == name) for name in names]
        x, y = self.train.features.astype(np.float64), self.train.labels.astype(np.float64)
        return names, [(x[own], y[own]) for own in rows]

    def nll(self, centre: np.ndarray, stddev: np.ndarray, dispersion: float) -> float:
        """Compute the mean NLL of test rows with linear predictors N(centre, stddev^2), in units of the labels."""
        y = self.test.labels.astype(np.float64)
        if self.family == "bernoulli":
            p = np.clip(mean_outcome("bernoulli", centre, stddev), 1e-9, 1 - 1e-9)
            return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))
        variance = stddev**2 + dispersion
        losses = 0.5 * np.log(2 * np.pi * variance) + 0.5 * (y - centre) ** 2 / variance
        return float(np.mean(losses) + np.log(self.train.target.scale))


def split_of(folder: pathlib.Path, options: Options) -> Split:
    """Read a federation, and hold out a random part of its rows."""
    rng, given = np.random.default_rng(options["split"]), dict(FEDERATIONS[options["federation"]])
    if not given:
        parts = [bfl.data.load("heart_disease", split=split) for split in ("train", "test")]
        of = lambda name: np.concatenate([getattr(part, name) for part in parts])
        names, columns = parts[0].class_names, parts[0].columns
        whole = bfl.data.Source(
            "heart", "all", of("features"), of("labels"), names, owners=of("owners"), columns=columns
        )
        held_out = rng.random(whole.num_examples) < options["test_share"]
        return Split(*(whole.select(np.flatnonzero(chosen)) for chosen in (~held_out, held_out)))
    path = folder / given.pop("file")
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    held_out = rng.random(len(table)) < options["test_share"]
    parts = [table[rows].reset_index(drop=True) for rows in (~held_out, held_out)]
    data = bfl.data.read_own(parts[0], test=parts[1], **given)
    return Split(data.train, data.test)
