"""What a checkpoint says of the run that it is of, and what another run is refused for."""

import functools
import logging

import numpy as np
import pytest

import tfp_bfl as bfl
from tfp_bfl import federated
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.description import settings_of

from . import toys


def model_fn():
    return bfl.models.mlp("flipout", (2,), 2, hidden=(), initial_stddev=0.1)


def process(**options):
    return bfl.algorithms.variational(model_fn, "log_linear_pool", **{"local_epochs": 2, "batch_size": 4, **options})


def test_settings_are_what_functions_hold():
    class Unknown:
        pass

    def outer(rate, decay, things, model_fn):
        inner = functools.partial(lambda x, scale: rate * x * scale, scale=0.25)
        return lambda x: inner(x) * decay(x) + len(things) + 0.125 + len(model_fn())

    made = outer(0.1, lambda r: 0.9**r, {"a": 3, "b": Unknown()}, lambda: 17)
    found = settings_of(work=made)
    assert found["rate"] == "0.1" and found["scale"] == "0.25" and found["a"] == "3" and "b" not in found
    assert {"0.125", "0.9"} <= set(found["constant"].split(", ")) and "17" not in str(found)
    assert settings_of(work=outer(0.1, lambda r: 0.9**r, {"a": 3, "b": Unknown()}, lambda: 18)) == found


def test_of_a_list_each_value_counts_in_its_place():
    def made(shares):
        return lambda client: shares[client]

    found = [settings_of(work=made(shares))["shares"] for shares in ([0.5, 1.0, 1.0], [0.5, 0.5, 1.0], [1.0, 1.0])]
    assert found == ["0.5, 1.0, 1.0", "0.5, 0.5, 1.0", "1.0"]


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
    with pytest.raises(
        InvalidArgument, match=f"are of a run that differs in {differ[0]}, .*{before}.*; this run has .*{after}"
    ):
        federated.Checkpoints(tmp_path, other).latest(first)


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
