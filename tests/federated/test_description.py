"""What a checkpoint says of the run that it is of, and what another run is refused for."""

import dataclasses
import functools
import logging
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl import federated
from tfp_bfl.contracts import ClientWork
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.description import digest, settings_of

from . import toys


def model_fn():
    return bfl.models.mlp("flipout", (2,), 2, hidden=(), initial_stddev=0.1)


def process(**options):
    return bfl.algorithms.variational(model_fn, "log_linear_pool", **{"local_epochs": 2, "batch_size": 4, **options})


class Plain:
    def __init__(self, rate):
        self.rate = rate


@dataclasses.dataclass
class Data:
    rate: Any


class Named(NamedTuple):
    rate: Any


class Slots:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


HOLDERS = {
    "closure": lambda rate: rate,
    "attribute": Plain,
    "dataclass": Data,
    "named tuple": Named,
    "slots": Slots,
    "NumPy scalar": np.float32,
    "NumPy array": lambda rate: np.array([rate, 1.0]),
    "tensor": tf.constant,
    "list": lambda rate: [0.5, rate],
    "dictionary": lambda rate: {"a": Plain(rate)},
    "partial": lambda rate: functools.partial(lambda x, scale: x * scale, scale=rate),
    "function": lambda rate: lambda: rate,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_user_supplied_functions_are_compared_by_the_values_that_they_hold(kind):
    def made(rate):
        held = HOLDERS[kind](rate)
        return lambda message, examples, seed: (held, examples)

    describe = lambda rate: settings_of(work=ClientWork(made(rate)))
    assert describe(0.1) == describe(0.1) != describe(0.9)


def test_names_of_variables_change_nothing():
    def first(rate, zone):
        def work(message):
            total = rate * message
            inner = lambda other: total + zone + other
            return inner(rate)

        return work

    def second(zeta, a):
        def work(b):
            y = zeta * b
            step = lambda c: y + a + c
            return step(zeta)

        return work

    def other(zeta, a):
        def work(b):
            y = zeta * b
            step = lambda c: y - a + c
            return step(zeta)

        return work

    assert digest(first(0.1, 2)) == digest(second(0.1, 2))
    assert len({digest(second(0.1, 2)), digest(second(0.2, 2)), digest(second(0.1, 3)), digest(other(0.1, 2))}) == 4
    assert digest(lambda x: tf.sin(x)) != digest(lambda x: tf.cos(x))
    assert digest(lambda x: x * RATE) == digest(lambda x: x * SAME) != digest(lambda x: x * OTHER)


RATE, SAME, OTHER = 0.25, 0.25, 0.5


def test_functions_that_hold_themselves_have_a_digest():
    def made(rate):
        def again(x):
            return again(x - rate) if x > 0 else x

        return again

    assert digest(made(0.1)) == digest(made(0.1)) != digest(made(0.2))


def test_parts_state_their_settings():
    work = bfl.clients.variational(model_fn, temperature=0.5, learning_rate=bfl.training.cosine_decay(0.2, 10))
    found = dict(work.settings)
    wanted = {"temperature": 0.5, "inference": "curvature", "optimizer": "momentum", "noise": "shared", "kl": "total"}
    assert {name: found[name] for name in wanted} == wanted
    assert (found["learning_rate"], found["schedule"]) == (0.2, "cosine")
    custom = ClientWork(lambda: None, settings={"strength": 0.3})
    assert settings_of(work=custom)["strength"] == "0.3"
    made = bfl.algorithms.fed_nova(model_fn).settings
    assert (made["temperature"], made["inference"], made["local_epochs"]) == (0.01, "curvature", 5)


def test_of_a_list_each_value_counts_in_its_place():
    found = [settings_of(work={"shares": shares})["shares"] for shares in ([0.5, 1.0, 1.0], [0.5, 0.5, 1.0])]
    assert found == ["0.5, 1.0, 1.0", "0.5, 0.5, 1.0"]


@pytest.mark.parametrize(
    ("option", "before", "after"),
    [
        ("learning_rate", 1e-3, 1e-1),
        ("local_epochs", 2, 9),
        ("batch_size", 4, 5),
        ("temperature", 0.05, 1.0),
        ("kl", "total", "client"),
        ("weighting", "train_size", "equal"),
        ("inference", "curvature", "backprop"),
    ],
)
def test_a_run_does_not_go_on_with_other_options(option, before, after, tmp_path):
    one, other = process(**{option: before}).description, process(**{option: after}).description
    assert one == process(**{option: before}).description
    differ = [name for name in one if one[name] != other.get(name)]
    assert option in differ
    store = federated.Checkpoints(tmp_path, one)
    first = toys.process().local.initialize()
    store.save(first, federated.checkpoints.Record())
    with pytest.raises(InvalidArgument, match=f"differs in {differ[0]}, .*{before}.*; this run has .*{after}"):
        federated.Checkpoints(tmp_path, other).latest(first)


@pytest.mark.parametrize("changed", [{"compressor": "quantiser:4"}, {"variance_bits": 8}])
def test_options_of_work_inside_another_count(changed):
    """A compressed run does not go on with batches of another size."""
    one, other = (process(**changed, batch_size=size).description for size in (4, 5))
    assert {name for name in one if one[name] != other.get(name)} == {"batch_size"}


def test_another_number_of_cores_is_reported(tmp_path, caplog):
    engine = toys.process().local
    run = functools.partial(federated.simulate, toys.process(), toys.CLIENTS, engine="local", checkpoint_dir=tmp_path)
    before, engine.concurrent_calls = engine.concurrent_calls, 2
    try:
        assert not run(1).warnings
        assert not run(2).warnings
        engine.concurrent_calls = 1
        with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
            (told,) = run(3).warnings
        assert "begun with 2 clients computed at once and resumes with 1" in told and told in caplog.messages
        assert not run(4).warnings
    finally:
        engine.concurrent_calls = before


def test_a_client_does_not_count_twice():
    engine = toys.process().local
    datasets = [toys.CLIENTS.dataset(k) for k in (1, 2, 2, 2)]
    with pytest.raises(InvalidArgument, match="Client 2 is 3 times in one round: give each client's dataset once"):
        engine.next(engine.initialize(), datasets)
    assert engine.next(engine.initialize(), datasets[:2]).metrics["num_clients"] == np.int32(2)


def test_weightings_of_all_clients_together_are_told_apart():
    rule = bfl.algorithms.compose
    make = lambda name: rule(
        model_fn, bfl.clients.variational(model_fn), "log_linear_pool", bfl.servers.replace(), weighting=name
    )
    one, other = (make(name).description for name in ("max_discrepancy", "max_discrepancy_farthest"))
    assert one != other


def test_a_start_that_a_resumed_run_does_not_use_is_reported(tmp_path):
    process = toys.process()
    first = process.local.initialize().weights
    other = first._replace(point=tuple(x + 1 for x in first.point))
    run = functools.partial(federated.simulate, process, toys.CLIENTS, engine="local", checkpoint_dir=tmp_path)
    assert not run(1, start=first).warnings and not run(2, start=first).warnings and not run(3).warnings
    (warning,) = run(4, start=other).warnings
    assert warning.startswith("The checkpoints are of a run that started from other weights than the given start")


def test_weights_are_set_before_the_clients_keep_what_follows_from_them():
    process = bfl.algorithms.partitioned_vi(model_fn)
    first = process.local.initialize()
    mean = tuple(x + 1 for x in first.weights.posterior.mean)
    other = first.weights._replace(posterior=first.weights.posterior._replace(mean=mean))
    state = process.with_clients(process.set_model_weights(first, other), range(3), [2, 3, 4])
    np.testing.assert_array_equal(state.weights.posterior.mean[0], mean[0])
    with pytest.raises(InvalidArgument, match="set the weights before with_clients"):
        process.set_model_weights(process.with_clients(first, range(3), [2, 3, 4]), other)


def test_all_options_of_training_are_stated_as_they_are_used():
    given = {"learning_rate": lambda number: 0.1 / (1.0 + number), "proximal": 0.5, "inference": "natural"}
    found = dict(bfl.clients.variational(model_fn, **given).settings)
    assert [found[name] for name in ("proximal", "inference", "noise")] == [0.5, "natural", "shared"]
    assert found["schedule"] == "<lambda>" and "learning_rate" not in found
    assert dict(bfl.algorithms.factors.work.factors(model_fn).settings)["learning_rate"] == 0.005
    assert dict(bfl.algorithms.swag.work.swag(model_fn, momentum=0.9).settings)["momentum"] == 0.9
    meta = dict(bfl.algorithms.personal.work.meta_learning(model_fn, learner="maml").settings)
    assert meta["learner"] == "maml" and meta["schedule"] == "constant"
