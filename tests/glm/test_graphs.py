"""Sums of clients in TensorFlow, beside those in NumPy: in a graph of TensorFlow 1, as TFF traces it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.glm.test_cox import rows as survival
from tests.glm.test_hierarchical import federation
from tfp_bfl.glm import cox, graphs
from tfp_bfl.glm.federation import KINDS, Question, answer, answer_length
from tfp_bfl.glm.fixed_point import encode
from tfp_bfl.glm.graphs.answers import KINDS as IN_GRAPHS
from tfp_bfl.glm.rows import Rows

SIZE = 3
RNG = np.random.default_rng(0)
POINT, TWO = 0.4 * RNG.normal(size=(1, SIZE)), 0.4 * RNG.normal(size=(2, SIZE))


def theta(number, columns, family):
    """Parameters of random effects of these columns."""
    size = SIZE + len(columns) * (len(columns) + 1) // 2 + (family == "gaussian")
    return np.random.default_rng(1).normal(scale=0.5, size=(number, size))


def rows_of(family):
    if family == "cox":
        features, outcome = survival(count=40)
        features = np.column_stack([features, np.full(len(features), 0.1)])
    else:
        features, outcome = federation(family, clients=1, seed=4)[0]
        features = np.column_stack([np.ones(len(features)), features])
    return Rows(features, outcome, 0.1 * np.random.default_rng(2).normal(size=len(features)))


def in_graph(function, *numbers, free=()):
    """A function of tensors, run in a session; the first axis of the `free` arguments is not known."""
    with tf.Graph().as_default():
        shape = lambda i, x: [None, *x.shape[1:]] if i in free else x.shape
        given = [tf.compat.v1.placeholder(tf.float64, shape(i, x)) for i, x in enumerate(numbers)]
        result = function(*given)
        with tf.compat.v1.Session() as session:
            return session.run(result, dict(zip(given, numbers))), result.shape


def answer_in_graph(rows, family, question):
    def function(design, outcome, offset, points, centre, times):
        of = question._replace(points=points, centre=centre, times=times)
        return graphs.answer(Rows(design, outcome, offset), family, of)

    return in_graph(function, *rows, question.points, question.centre, question.times, free=(0, 1, 2))


def questions(family):
    if family == "cox":
        of = {"centre": np.array([0.1, -0.2, 0.1]), "times": np.array([0.5, 1.0, 2.0, 3.0, 99.0])}
        of["times"] = np.union1d(of["times"], cox.event_times(rows_of("cox")))
        return [Question("columns", POINT), *(Question(kind, POINT, **of) for kind in ("risk", "stratum", "trend"))]
    asked = [Question("first", POINT), Question("sums", TWO)]
    for columns, nodes in (((0,), 15), ((0, 2), 9), ((0, 1, 2), 3)):
        asked.append(Question("effects", theta(1, columns, family), columns, nodes))
        if family == "gaussian":
            asked.append(Question("restricted", theta(4, columns, family), columns, 3))
    return asked


ASKED = [(family, question) for family in ("gaussian", "bernoulli", "poisson", "cox") for question in questions(family)]


@pytest.mark.parametrize(("family", "question"), ASKED, ids=[f"{f}-{q.kind}{len(q.columns)}" for f, q in ASKED])
def test_an_answer_is_that_of_numpy(family, question):
    """Each number within 1e-12 of the largest one of its kind of sum; TFF adds only numbers of a known shape."""
    rows = rows_of(family)
    expected = answer(rows, family, question)
    found, shape = answer_in_graph(rows, family, question)
    assert found.dtype == np.float64 and shape == [len(expected)] == [answer_length(family, question, SIZE)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13 * np.max(np.abs(expected)))
    assert np.max(np.abs(expected)) > 1


def test_every_kind_of_question_has_a_graph():
    assert set(IN_GRAPHS) == set(KINDS) == {question.kind for _, question in ASKED}


@pytest.mark.parametrize("kind", ["risk", "stratum", "trend"])
def test_a_client_without_events(kind):
    rows = rows_of("cox")
    rows = rows._replace(outcome=rows.outcome * [1, 0])
    question = Question(kind, POINT, centre=np.zeros(SIZE), times=np.array([0.5, 1.0]))
    np.testing.assert_allclose(
        answer_in_graph(rows, "cox", question)[0], answer(rows, "cox", question), rtol=1e-12, atol=1e-13
    )


def test_a_mode_beyond_a_step_is_found_by_halves():
    """The first of Newton's steps for a large variance is far too long: it overshoots with counts."""
    rows = Rows(np.ones((2, 1)), np.array([0.0, 40.0]), np.zeros(2))
    question = Question("effects", np.array([[0.3, 4.0]]), (0,), 15)
    np.testing.assert_allclose(
        answer_in_graph(rows, "poisson", question)[0], answer(rows, "poisson", question), rtol=1e-10
    )


def test_times_of_events_and_their_union():
    (features, outcome), other = survival(count=30), survival(seed=1, count=20)[1]
    rows = Rows(features, outcome, np.zeros(len(features)))
    function = lambda *given: graphs.union(graphs.event_times(Rows(*given[:3])), given[3])
    found, shape = in_graph(function, *rows, other[:, 0], free=(0, 1, 2, 3))
    np.testing.assert_array_equal(found, np.union1d(cox.event_times(rows), other[:, 0]))
    assert shape.rank == 1 and len(found) > 5


def test_numbers_in_fixed_point_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=300) * 10.0 ** np.random.default_rng(1).integers(-25, 25, 300)
    edges = [np.nan, np.inf, -np.inf, -1e20, 1e20, -(2.0**-60), 2.0**-61, 3 * 2.0**-61, -0.0, 2.0**67, -(2.0**67)]
    for numbers in (values, np.array(edges)):
        found, _ = in_graph(graphs.encode, numbers)
        np.testing.assert_array_equal(found, encode(numbers))
        assert found.dtype == np.int64 and len(np.unique(found)) > 5
