"""A server of linear models that reports false totals, so that the next step leads to a point of its choice."""

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.federation import Question
from tfp_bfl.glm.protocol import broken_bound
from tfp_bfl.glm.sums import NO_PEARSON, Sums, pack


class LyingServer:
    """Steers clients (`tests.glm.guarded.Guarded`) with a flat prior to any point, one for each question."""

    def __init__(self, federation):
        self._federation, self._size = federation, len(federation.names)
        self._now, self._number = np.zeros(self._size), 0
        # Of rows that it claims to exist: more than those of any client.
        first = Sums.unpack(federation.total(Question("first", self._now)), self._size)
        self._information = 1e6 * first.information

    def ask(self, point):
        self._number += 1
        gradient = self._information @ (point - self._now)
        value = -1e9 + 1e6 * self._number
        self._federation.last = pack(1e6, 5e5, value, gradient, self._information, NO_PEARSON)
        sums = Sums.unpack(self._federation.total(Question("sums", point)), self._size)
        self._now = point
        return sums


def steepest(clients, family, direction, most_questions, start):
    """The points towards the largest row in a direction, up to the steepest one that the bounds allow."""
    design = np.concatenate([one.design for one in clients])
    largest = np.max(design[:, 1:] @ direction)
    at = lambda k: np.concatenate([[start - k * largest], k * direction])
    allowed = lambda k: not any(broken_bound(one, family, Question("sums", at(k)[np.newaxis])) for one in clients)
    low, high = 0.0, 60.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return [at(low * j / most_questions) for j in range(1, most_questions + 1)]


def candidates(informations, start):
    """Rows that explain sums of weights exp(start + k (z_i - max z)) x_i x_i' at equidistant k: matrix pencils."""
    size, number = len(informations[0]), len(informations)
    upper = np.triu_indices(size)
    series = np.array([x[upper] for x in informations]) * np.exp(-start)
    order = number // 2
    hankel = np.stack([np.concatenate([series[a + b] for b in range(number - order)]) for a in range(order + 1)])
    left = np.linalg.svd(hankel, full_matrices=False)[0]
    rows = [informations[-1][0] / informations[-1][0, 0]]
    for rank in range(1, order + 1):
        shift = np.linalg.lstsq(left[:-1, :rank], left[1:, :rank], rcond=None)[0]
        powers = np.power.outer(np.linalg.eigvals(shift), np.arange(1, number + 1)).T
        for moment in np.linalg.lstsq(powers, series.astype(complex), rcond=None)[0]:
            if abs(moment[0]) > 1e-12:
                rows.append((moment[:size] / moment[0]).real)
    return np.array(rows)


def distance(rows, design):
    """The smallest distance of a candidate from a row: the largest one over columns with an sd of 1."""
    return min(np.min(np.max(np.abs(design - row), 1)) for row in rows)


def read(federation, clients, family, direction, most_questions, start):
    """The distance of the row that the server reads, and the number of questions that were answered."""
    server, found = LyingServer(federation), []
    for point in steepest(clients, family, direction, most_questions, start):
        try:
            found.append(server.ask(point).information)
        except InvalidArgument:
            break
    if len(found) < 2:
        return np.inf, len(found)
    return distance(candidates(found, start), np.concatenate([one.design for one in clients])), len(found)
