"""Clients in this process that answer by the rules of `glm.protocol`, as sites do; rows and derivatives for tests."""

import functools

import numpy as np

from tfp_bfl.glm.federation import TIMES, Question
from tfp_bfl.glm.fitting import fit_federation
from tfp_bfl.glm.posterior import Model
from tfp_bfl.glm.protocol import Answers
from tfp_bfl.glm.rows import INTERCEPT, Rows
from tfp_bfl.glm.sums import decode, encode


class Guarded:
    """A federation that follows the rules; `last` is the total that it reports with the next question."""

    def __init__(self, clients, family, is_secure=False, random=(), **options):
        self.names = [INTERCEPT] * (family != "cox") + [f"x{j}" for j in range(clients[0].design.shape[1])]
        self.names = self.names[: clients[0].design.shape[1]]
        self._fit = functools.partial(fit_federation, model=Model(family, random=random, **options))
        self.num_clients, self.is_secure, self.last = len(clients), is_secure, np.zeros(0)
        of = family, self._fit, self.names, len(clients), is_secure
        most = 50 + (2 * len(self.names) + 1) * bool(options.get("second_order"))
        self.answers = [Answers(rows, *of, most) for rows in clients]

    def total(self, question):
        question = question._replace(points=np.atleast_2d(question.points))
        parts = [one.answer(question, self.last) for one in self.answers]
        self.last = decode(np.sum([encode(x) for x in parts], 0)) if self.is_secure else np.sum(parts, 0)
        return self.last

    def event_times(self):
        question = Question(TIMES, np.zeros((1, len(self.names))))
        self.last = np.unique(np.concatenate([one.answer(question, self.last) for one in self.answers]))
        return self.last

    def fit(self):
        return self._fit(self)


def outcomes(rng, family, eta, noise=1.0):
    """Draw outcomes from linear predictors."""
    if family == "gaussian":
        return eta + noise * rng.normal(size=len(eta))
    drawn = rng.poisson(np.exp(eta)) if family == "poisson" else rng.random(len(eta)) < 1 / (1 + np.exp(-eta))
    return drawn.astype(float)


def derivatives(value, at, size):
    """Gradient and Hessian of a function by central differences."""
    steps, signs = size * np.eye(len(at)), (1, -1)
    gradient = [sum(i * value(at + i * s) for i in signs) for s in steps]
    hessian = [[sum(i * j * value(at + i * s + j * t) for i in signs for j in signs) for t in steps] for s in steps]
    return np.array(gradient) / (2 * size), np.array(hessian) / (4 * size**2)


def clients_of(family, seed=0, sizes=(100, 100, 100), columns=9, steepness=0.3, between=0.0):
    """Rows of clients with independent columns; `between`: sd of intercepts and slopes of x0 between clients."""
    rng = np.random.default_rng(seed)
    coefficients, clients = steepness * rng.normal(size=columns), []
    for count in sizes:
        x = rng.normal(size=(count, columns))
        eta = x @ coefficients - 0.5 + between * (rng.normal() + rng.normal() * x[:, 0])
        offset, design = np.zeros(count), np.column_stack([np.ones(count), x])
        if family == "poisson":
            offset = np.log(rng.uniform(0.5, 3.0, count))
        if family == "cox":
            times, ends = rng.exponential(np.exp(-eta)), rng.exponential(2.0, count)
            outcome, design = np.stack([np.minimum(times, ends), times < ends], 1).astype(float), x
        else:
            outcome = outcomes(rng, family, eta + offset)
        clients.append(Rows(design, outcome, offset))
    return clients
