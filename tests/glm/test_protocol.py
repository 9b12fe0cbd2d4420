"""Rules of clients of linear models: honest fits run as without them, and other questions are refused."""

import dataclasses

import numpy as np
import pytest

from tests.glm.guarded import Guarded, clients_of
from tests.kit import refuses
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.federation import InProcess, Question
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.protocol import broken_bound, count_numbers
from tfp_bfl.glm.rows import DesignRows, Rows

FITS = [
    ("gaussian", {}),
    ("gaussian", {"random": ["(intercept)", "x0"], "columns": 2, "sizes": [40] * 6, "between": 1.0}),
    ("gaussian", {"random": ["(intercept)"], "second_order": True, "columns": 2, "sizes": [40] * 8, "between": 1.0}),
    ("bernoulli", {}),
    ("bernoulli", {"prior_stddev": 2.5, "steepness": 4.0}),
    ("bernoulli", {"second_order": True, "columns": 3, "sizes": [300] * 3}),
    ("bernoulli", {"random": ["(intercept)"], "columns": 2, "sizes": [100] * 8, "between": 0.7}),
    ("poisson", {}),
    ("poisson", {"random": ["(intercept)", "x0"], "columns": 2, "sizes": [200] * 6, "between": 0.7}),
    ("cox", {"columns": 4}),
    ("cox", {"stratified": True, "columns": 4}),
    ("cox", {"stratified": True, "second_order": True, "columns": 3, "prior_stddev": 1.0}),
]


def case(family, of, seed=0):
    shape = {name: of[name] for name in ("columns", "sizes", "steepness", "between") if name in of}
    return clients_of(family, seed, **shape), {name: x for name, x in of.items() if name not in shape}


@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize(("family", "of"), FITS)
def test_honest_fits_are_those_without_rules(family, of, is_secure):
    if is_secure and family == "cox" and not of.get("stratified"):
        return
    clients, options = case(family, of)
    guarded = Guarded(clients, family, is_secure, **options)
    fit, found = guarded._fit, guarded.fit()
    exact = fit(InProcess(DesignRows(clients, guarded.names), family, is_secure))
    if isinstance(found, Hierarchical):
        found, exact = found.posterior, exact.posterior
    for field in dataclasses.fields(found):
        assert repr(getattr(found, field.name)) == repr(getattr(exact, field.name)), field.name
    assert all(0 < one.numbers < one.most_numbers for one in guarded.answers)


def test_a_fit_of_separated_rows_ends_as_without_rules():
    clients = [Rows(x.design, (x.design[:, 1] > 0).astype(float), x.offset) for x in clients_of("bernoulli", columns=2)]
    refuses("column 'x0' predicts the outcome of some rows without error", Guarded(clients, "bernoulli").fit)


def after(family, number, **options):
    """A federation that has answered some questions of its fit, and the next one."""
    federation = Guarded(clients_of(family, **options.pop("of", {})), family, **options)
    asked, total = [], federation.total

    class Enough(Exception):
        pass

    def ask(question):
        if len(asked) == number:
            raise Enough(question)
        asked.append(question)
        return total(question)

    federation.total = ask
    with pytest.raises(Enough) as caught:
        federation.fit()
    federation.total = total
    return federation, caught.value.args[0]


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("change", [1e-4, -1.0])
def test_a_point_that_does_not_follow_from_the_totals_is_refused(number, change):
    federation, question = after("bernoulli", number)
    other = question._replace(points=np.atleast_2d(question.points) + change * np.eye(10)[3])
    refuses("does not follow from the totals of the earlier ones", federation.answers[0].answer, other, federation.last)
    # The totals stay those of the refused question, and rounding is no refusal.
    right = question._replace(points=np.atleast_2d(question.points) * (1 + 1e-12))
    assert np.all(np.isfinite(federation.answers[0].answer(right, 2 * federation.last)))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "first"},
        {"columns": (1,)},
        {"nodes": 14},
        {"points": np.zeros((2, 4))},
    ],
)
def test_other_questions_of_random_effects_are_refused(change):
    federation, question = after("bernoulli", 8, random=["(intercept)"], of={"columns": 2, "sizes": [100] * 6})
    assert question.kind == "effects"
    refuses("does not follow from the totals", federation.total, question._replace(**change))


def test_a_centre_that_is_not_the_mean_is_refused():
    federation, question = after("cox", 1, stratified=True)
    with pytest.raises(InvalidArgument, match=r"\(stratum\) does not follow from the totals"):
        federation.total(question._replace(centre=question.centre + 1.0))


def test_no_question_after_the_fit():
    federation = Guarded(clients_of("bernoulli"), "bernoulli")
    posterior = federation.fit()
    refuses("no question after the fit", federation.total, Question("sums", posterior.mean))


def test_totals_that_do_not_hold_the_own_sums_are_refused():
    for lie in (
        lambda x: np.concatenate([[50.0], x[1:]]),
        lambda x: np.concatenate([x[:1], [0.0], x[2:]]),
        lambda x: np.concatenate([x[:13], x[13:] / 10]),
    ):
        federation, question = after("bernoulli", 2)
        federation.last = lie(federation.last)
        refuses("can't hold the sums of this site", federation.total, question)


def test_numbers_in_all_stay_below_those_of_the_table():
    federation = Guarded(clients_of("bernoulli", sizes=(24, 24)), "bernoulli")
    refuses(r"would hold 264 numbers, and its table has 240", federation.fit)
    # With secure sums the rows of all clients hide each other.
    Guarded(clients_of("bernoulli", sizes=(40, 40), columns=5), "bernoulli", is_secure=True).fit()
    assert count_numbers("bernoulli", Question("sums", np.zeros((2, 10))), 10) == 2 * 66
    assert count_numbers("gaussian", Question("restricted", np.zeros((7, 13))), 10) == 0
    assert count_numbers("cox", Question("trend", np.zeros((1, 4))), 4) == 45


def test_questions_of_a_fit_are_bounded():
    federation, question = after("bernoulli", 3)
    for one in federation.answers:
        one._most = 3
    refuses("at most 3 questions in a fit", federation.total, question)


def test_bounds_of_the_linear_predictor_and_of_one_row():
    rows = clients_of("poisson", sizes=(50,), columns=1)[0]
    ask = lambda *point: broken_bound(rows, "poisson", Question("sums", np.array([point])))
    assert ask(0.0, 1.0) == "" and ask(29.0, 0.0) == ""
    assert "A linear predictor is" in ask(31.0, 0.0)
    assert "One row has more than 80% of the weights" in ask(-2.0, 9.0)
    few = Rows(rows.design[:4], rows.outcome[:4], rows.offset[:4])
    assert broken_bound(few, "poisson", Question("sums", np.array([[-2.0, 9.0]]))) == ""
    assert broken_bound(rows, "gaussian", Question("sums", np.array([[1e6, 0.0]]))) == ""
    effects = lambda size: Question("effects", np.array([[0.0, 0.1, size]]), (0,), 15)
    assert broken_bound(rows, "poisson", effects(0.5)) == ""
    assert "A linear predictor is" in broken_bound(rows, "poisson", effects(31.0))
