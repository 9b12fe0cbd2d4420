"""Further columns of a linear model, computed at each client from its own columns: random features, or a network's.

The server sends what determines them once; the model is then that of the clients' columns and of these together.
"""

import re
from typing import NamedTuple, Protocol

import numpy as np

from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.glm.rows import DesignRows

MOST_FEATURES = 2048
# Standard deviation of the arguments of tanh over standardised columns, and the bound of their shifts.
_STEEPNESS, _SHIFT = 2.0, 2.0
_RANDOM = re.compile(r"random:(\d{1,5})(?::(\d{1,9}))?")


class Features(Protocol):
    """A function from the columns of a client [n, d] to these and further ones [n, d + m]."""

    def __call__(self, columns: np.ndarray, /) -> np.ndarray:
        """Return the columns, and the further ones behind them [n, d + m]."""


class RandomFeatures(NamedTuple):
    """Random features of standardised columns, which no training has changed.

        (x, tanh(W' (x - centre) / scale + b)),   W_ij ~ N(0, 4 / d),   b_j ~ U(-2, 2)

    Fields:
      centre, scale: mean and standard deviation of each column over all clients [d].
      weights, shifts: W [d, m] and b [m].

    Source: Rahimi & Recht 2008 (sums of random nonlinearities); Huang et al. 2006.
    """

    centre: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    shifts: np.ndarray

    def __call__(self, columns: np.ndarray, /) -> np.ndarray:
        """Return the columns, and the random features behind them [n, d + m]."""
        x = np.asarray(columns, np.float64)
        if x.ndim != 2 or x.shape[1] != len(self.centre):
            raise InvalidArgument(f"features have shape {x.shape}, but must have [n, {len(self.centre)}].")
        return np.column_stack([x, np.tanh((x - self.centre) / self.scale @ self.weights + self.shifts)])


def draw_features(text: str, centre: np.ndarray, scale: np.ndarray) -> RandomFeatures:
    """Draw the features that "random:NUMBER" or "random:NUMBER:SEED" names, for columns of this mean and scale [d]."""
    number, seed = check_features(text)
    rng, width = np.random.default_rng(seed), len(centre)
    weights = rng.normal(size=(width, number)) * _STEEPNESS / np.sqrt(width)
    return RandomFeatures(centre, scale, weights, rng.uniform(-_SHIFT, _SHIFT, number))


def check_features(text: str) -> tuple[int, int]:
    """Return number and seed of "random:NUMBER" or "random:NUMBER:SEED"."""
    found = _RANDOM.fullmatch(text)
    if found is None or not 0 < int(found[1]) <= MOST_FEATURES:
        raise InvalidArgument(
            f"features is {shown(text)}, but must be random:NUMBER or random:NUMBER:SEED, such as random:40, with a "
            f"NUMBER of 1 to {MOST_FEATURES:,}."
        )
    return int(found[1]), int(found[2] or 0)


def expand_rows(table: DesignRows, features: Features) -> DesignRows:
    """Return the rows of all clients with further columns behind the given ones; each client computes its own."""
    clients, width = [], len(table.names)
    for rows in table.clients:
        columns = np.column_stack([np.ones(len(rows.design)), features(rows.design[:, 1:])])
        if len(columns) != len(rows.design) or not np.all(np.isfinite(columns)):
            raise InvalidArgument("Features must be finite numbers, with a row for each row of the columns.")
        clients.append(rows._replace(design=columns))
    widths = {x.design.shape[1] for x in clients}
    if len(widths) > 1 or not width <= min(widths) <= width + MOST_FEATURES:
        raise InvalidArgument(
            f"Features must be the {width - 1} columns and 1 to {MOST_FEATURES:,} more, but have {min(widths) - 1}."
        )
    further = (f"feature {j + 1}" for j in range(min(widths) - width))
    return table._replace(clients=clients, names=[*table.names, *further])
