"""A new rule passes the contract by its entry in `RULES`, its line in `CONTRACT` and its equation in `REFERENCE`."""

import inspect
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import rules
from tfp_bfl.named import WithArgument
from tfp_bfl.posterior import MeanField

from . import test_contract
from .forms import CONTRACT, Contract
from .reference import REFERENCE


def powered(exponent=0.5):
    """The average by powers of the clients' weights."""
    average = rules.naive_weighted_average()
    summarise = lambda local, anchor, weight: average.summarise(local, anchor, weight**exponent)
    return average._replace(summarise=summarise, name="powered", units=None)


def krum(hostile=1):
    """The client whose nearest neighbours are nearest (Blanchard et al. 2017): K - hostile - 2 of them."""

    def pool(stacked, importance, anchor):
        rows = tf.concat([tf.reshape(x, [tf.shape(x)[0], -1]) for x in tf.nest.flatten(stacked.mean)], 1)
        squares = tf.sort(tf.reduce_sum((rows[:, tf.newaxis] - rows) ** 2, -1), 1)
        scores = tf.reduce_sum(squares[:, 1 : 1 + tf.maximum(tf.shape(rows)[0] - hostile - 2, 1)], 1)
        return rules.Pooled(tf.nest.map_structure(lambda x: x[tf.argmin(scores)], stacked))

    return rules.GatherRule(pool, "krum")


def powered_by_hand(m, v, w, m0, v0, exponent=0.5):
    return REFERENCE["naive_weighted_average"](m, v, w**exponent, m0, v0)


def krum_by_hand(m, v, w, m0, v0, hostile=1):
    squares = np.sort(((m[:, None] - m) ** 2).sum(-1), 1)
    best = squares[:, 1 : 1 + max(len(m) - int(hostile) - 2, 1)].sum(1).argmin()
    return m[best], v[best]


RULES = {"powered": (powered, powered_by_hand, Contract()), "krum": (krum, krum_by_hand, Contract(False, linear=False))}
FORMS = {"powered": "powered:0.3", "krum": "krum:2"}
PARAMETERS = {"powered": ("exponent", float), "krum": ("hostile", int)}


def cases(test):
    """Return the arguments of each run of a parametrised test, besides its rule."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize" and mark.args[0] != "name"]
    parts = []
    for mark in marks:
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        parts.append([dict(zip(names, x if len(names) > 1 else [x])) for x in mark.args[1]])
    return [{name: x for part in chosen for name, x in part.items()} for chosen in itertools.product(*parts)]


@pytest.mark.parametrize("with_number", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_the_contract_holds_for_a_new_rule(monkeypatch, name, with_number):
    make, by_hand, contract = RULES[name]
    form = FORMS[name] if with_number else name
    monkeypatch.setitem(rules.RULES, name, WithArgument(make, *PARAMETERS[name]) if with_number else make)
    monkeypatch.setitem(CONTRACT, form, contract)
    monkeypatch.setitem(REFERENCE, name, by_hand)
    monkeypatch.setattr(rules, name, make, raising=False)
    tests = [x for key, x in vars(test_contract).items() if key.startswith("test_")]
    of_rules = [test for test in tests if "name" in inspect.signature(test).parameters]
    for test in of_rules:
        for given in cases(test):
            test(form, **given)
    test_contract.test_every_rule_is_in_the_tables()
    assert len(of_rules) > 15


def test_the_contract_fails_for_a_rule_that_breaks_it(monkeypatch):
    """Krum that follows the order of the clients: another one is chosen where they come in another order."""
    first = rules.GatherRule(lambda stacked, importance, anchor: rules.Pooled(MeanField(*(x[0] for x in stacked))))
    monkeypatch.setitem(rules.RULES, "first", lambda: first)
    with pytest.raises(AssertionError):
        test_contract.test_order_of_clients_does_not_matter("first")
