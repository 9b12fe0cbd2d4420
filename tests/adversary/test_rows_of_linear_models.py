"""Threat: a server that reads single rows from the sums of a linear model, by coefficients of its choice.

A try is a random direction of the columns. Each test states how many rows the server reads of how many tries. Tables
have nine independent normal columns with an sd of 1; a row counts as read if each of its columns is within 0.1.
"""

import numpy as np
import pytest

from tests.adversary.lying_server import distance, read
from tests.glm.guarded import Guarded, clients_of
from tests.sites.linear_models import ILL, Channel, check_equal, pooled, run
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm.cox import RiskSums, event_times
from tfp_bfl.glm.federation import Question, answer
from tfp_bfl.glm.sums import Sums
from tfp_bfl.sites.deployment.channel import SUMS

TRIES = 20
STEEP = 3e4


def directions():
    for number in range(TRIES):
        direction = np.random.default_rng(number + 99).normal(size=9)
        yield number, direction / np.linalg.norm(direction)


def threshold(clients, kind, direction):
    """The row between two steep predictors whose intercepts differ by one row: the change of the gradient."""
    design = np.concatenate([one.design for one in clients])
    z = np.sort(design[:, 1:] @ direction)
    middle = len(z) // 2
    gradients = []
    for between in (z[middle - 1 : middle + 1], z[middle : middle + 2]):
        point = np.concatenate([[-STEEP * np.mean(between)], STEEP * direction])
        if kind == "effects":
            point = np.append(point, 1e-9)
        question = Question(kind, point[np.newaxis], (0,) if kind == "effects" else (), 15 * (kind == "effects"))
        total = sum(answer(one, "bernoulli", question) for one in clients)
        gradients.append(Sums.unpack(total, len(point)).gradient[:10])
    row = gradients[0] - gradients[1]
    return distance([row / row[0]], design)


def largest(clients, family, direction):
    """The row with the largest value in a direction: the information where it has all of the weight."""
    design = np.concatenate([one.design for one in clients])
    point = np.concatenate([[-STEEP * np.max(design[:, 1:] @ direction)], STEEP * direction])
    question = Question("sums", point[np.newaxis])
    information = Sums.unpack(sum(answer(one, family, question) for one in clients), 10).information
    return distance([information[0] / information[0, 0]], design)


def test_without_rules_each_try_reads_a_row_of_the_sum_of_300():
    """20 of 20, for logistic regression, with random intercepts, and for counts."""
    for family, attack in [
        ("bernoulli", lambda clients, v: threshold(clients, "sums", v)),
        ("bernoulli", lambda clients, v: threshold(clients, "effects", v)),
        ("poisson", lambda clients, v: largest(clients, "poisson", v)),
    ]:
        found = [attack(clients_of(family, number), direction) for number, direction in directions()]
        assert np.sum(np.array(found) < 0.01) == TRIES


def test_without_rules_most_tries_read_the_difference_of_two_rows_of_a_stratum():
    """14 of 20 differences up to their length (cosine above .99), by one question of a stratified Cox model."""
    count = 0
    for number, direction in directions():
        (one,) = clients_of("cox", number, sizes=(100,))
        question = Question("stratum", STEEP / 100 * direction[np.newaxis], centre=np.mean(one.design, 0))
        information = Sums.unpack(answer(one, "cox", question), 9).information
        vector = np.linalg.eigh(information)[1][:, -1]
        pairs = one.design[:, np.newaxis] - one.design
        lengths = np.linalg.norm(pairs, axis=2) + np.eye(100)
        count += bool(np.max(np.abs(pairs @ vector) / lengths) > 0.99)
    assert count >= 10


OPTIONS = [
    ILL,
    {**ILL, "random": ["(intercept)"]},
    {"outcome": "stage", "family": "poisson", "categorical": [], "missing": "indicate", "prior_stddev": 2.0},
    {"outcome": "days", "family": "cox", "event": "ill", "stratified": True, "categorical": ["stage"]},
]


class Curious(Channel):
    """A server that asks each site a question of its own before each question of the fit, and after the fit."""

    def __init__(self, kits, change):
        super().__init__(kits)
        self.change, self.answers, self.refusals, self.tries = change, 0, [], 0

    def reply(self, task, site, content):
        if task == SUMS:
            asked = dict(stored_arrays(content, "message", 2**30))
            if asked["points"].shape[1]:
                self.attack(site, asked)
        return super().reply(task, site, content)

    def attack(self, site, asked):
        other = self.change(dict(asked), self.tries)
        self.tries += 1
        try:
            site.sums(stored_arrays(to_bytes(other), "message", 2**30))
            self.answers += 1
        except InvalidArgument as error:
            self.refusals.append(str(error))


def steep(asked, number):
    direction = np.random.default_rng(number).normal(size=asked["points"].shape[1])
    return {**asked, "points": STEEP * np.tile(direction, (len(asked["points"]), 1))}


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_site_answers_no_question_beside_those_of_the_fit(kits, options, secure_sums):
    """0 rows of all tries (3 sites, each step of the fit and ten after it); the fit is that without the tries."""
    channel = Curious(kits, steep)
    done = run(kits, channel, options, secure_sums=secure_sums)
    if "random" not in options:
        check_equal(done, pooled(options), 1e-7)
    last = [content for task, _, content in channel.sent if task == SUMS][-1]
    asked, during = dict(stored_arrays(last, "message", 2**30)), channel.tries
    replies = [stored_arrays(reply, "answer", 2**30) for reply in channel.replies[-3:]]
    asked["step"] = asked["step"] + 1
    if secure_sums:
        asked |= {name: np.stack([one[name] for one in replies]) for name in ("masked", "proofs")}
    else:
        asked["total"] = np.sum([one["sums"] for one in replies], 0)
    for _ in range(10):
        for site in channel.sites.values():
            channel.attack(site, asked)
    assert during >= 12 and channel.tries == during + 30 and channel.answers == 0
    assert all("does not follow from the totals" in reason for reason in channel.refusals[:during])
    assert all("no question after the fit" in reason for reason in channel.refusals[during:])


def lie(asked, number):
    """Report the answer of another site as ten times larger, so that the next step leads elsewhere."""
    masked = np.array(asked["masked"])
    if len(masked):
        masked[(number + 1) % 3] *= 10
    return {**asked, "masked": masked}


def test_with_masks_a_server_can_not_lie_about_a_total(kits):
    """0 of all tries: each site adds the masked answers itself, with a proof of each other site."""
    channel = Curious(kits, lie)
    check_equal(run(kits, channel, secure_sums=True), pooled(ILL))
    assert channel.answers == 0 and channel.tries >= 12
    reasons = ("is not the one that it sent", "are not those of all sites")
    assert all(any(reason in one for reason in reasons) for one in channel.refusals)


@pytest.mark.parametrize(
    ("family", "start", "is_secure", "most", "reads"),
    [
        ("bernoulli", -12.0, False, 14, (3, 10)),
        ("poisson", 0.0, False, 13, (6, 14)),
        # The server and one of the sites lie together; 200 rows of two other ones.
        ("bernoulli", -12.0, True, 20, (8, 16)),
        ("poisson", 0.0, True, 20, (8, 16)),
    ],
)
def test_a_server_that_lies_about_totals_reads_some_rows(family, start, is_secure, most, reads):
    """Without masks 7 and 9 of 20 rows of a site of 100, by 14 and 13 questions, the most that the site answers.

    The server steers to the steepest points that the bounds allow, and of the rows that explain the answers the closest
    one counts: a server that does not know the scale of the direction reads fewer. One question reads none of 20.
    """
    count = 0
    for number, direction in directions():
        clients = clients_of(family, number)[: 2 if is_secure else 1]
        federation = Guarded(clients, family)
        for one in federation.answers:
            one.most_numbers *= 3 if is_secure else 1
        found, answered = read(federation, clients, family, direction, most, start)
        assert answered == most
        count += found < 0.1
    assert reads[0] <= count <= reads[1]


def test_one_baseline_hazard_reveals_each_row_with_an_event():
    """All rows with an event, by an honest fit: the documentation says so, and a site can refuse such runs."""
    clients = clients_of("cox", columns=4)
    federation = Guarded(clients, "cox")
    parts, total = [], federation.total

    def ask(question):
        if question.kind == "risk" and not parts:
            parts.extend(answer(one, "cox", question) for one in clients)
            parts.append(question)
        return total(question)

    federation.total = ask
    federation.fit()
    question = parts.pop()
    for one, part in zip(clients, parts):
        sums = RiskSums.unpack(part, len(question.times), 4)
        is_own = sums.num_events == 1
        rows = sums.features[is_own] + question.centre
        exact = one.design[one.outcome[:, 1] == 1][np.argsort(one.outcome[one.outcome[:, 1] == 1, 0])]
        assert len(rows) == len(event_times(one)) > 40
        np.testing.assert_allclose(rows, exact, atol=1e-9)
