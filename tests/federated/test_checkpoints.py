"""Runs that go on where they stopped."""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import algorithms, federated, models, rules
from tfp_bfl.data import Clients, load
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.checkpoints import Checkpoints

pytest.importorskip("tensorflow_federated")

CLIENTS = Clients(load("breast_cancer"), [np.arange(10 * k, 10 * k + 10) for k in range(5)])


@functools.cache
def build(rule="naive_weighted_average"):
    model_fn = lambda: models.mlp("flipout", hidden=(3,), initial_stddev=0.1)
    return algorithms.variational(model_fn, rules.RULES[rule](), batch_size=8, learning_rate=0.01)


@pytest.fixture
def simulate(runtime):
    return functools.partial(federated.simulate, build(), CLIENTS, cohort_size=3, seed=6, runtime=runtime)


@pytest.fixture
def state(runtime):
    return build().initialize()


def assert_identical(a, b):
    for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert np.asarray(x).dtype == np.asarray(y).dtype


def without_times(rows):
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


def test_states_come_back_as_they_were(tmp_path, state):
    checkpoints = Checkpoints(tmp_path / "states")
    assert checkpoints.latest(state) is None
    later = state._replace(round=np.int32(3))
    checkpoints.save(later)
    found = Checkpoints(tmp_path / "states").latest(state)
    assert type(found) is type(state)
    tf.nest.assert_same_structure(found, state)
    assert_identical(found, later)


def test_the_last_states_are_kept(tmp_path, state):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for number in (1, 2, 9, 10):
        checkpoints.save(state._replace(round=np.int32(number)))
        assert checkpoints.latest(state).round == number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round_10", "round_9"]


def test_a_run_goes_on_as_if_it_had_never_stopped(simulate, tmp_path):
    whole = simulate(4)
    simulate(2, checkpoint_dir=tmp_path)
    rest = simulate(4, checkpoint_dir=tmp_path)
    assert_identical(rest.state, whole.state)
    assert [row["round"] for row in rest.rounds] == [3, 4]
    assert without_times(rest.rounds) == without_times(whole.rounds[2:])
    assert_identical(models.get_weights(rest.model), models.get_weights(whole.model))


def test_each_round_is_saved_and_the_last_few_stay(simulate, tmp_path):
    folders = []
    result = simulate(
        5,
        checkpoint_dir=tmp_path / "a" / "b",
        on_round=lambda row: folders.append(len([*(tmp_path / "a" / "b").iterdir()])),
    )
    assert folders == [1, 2, 3, 3, 3]
    names = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert names == ["round_3", "round_4", "round_5"]
    assert_identical(Checkpoints(tmp_path / "a" / "b").latest(result.state), result.state)


def test_a_run_that_broke_off_goes_on(simulate, tmp_path):
    def fail_in_round_3(row):
        if row["round"] == 3:
            raise RuntimeError("this is expected")

    with pytest.raises(RuntimeError, match="this is expected"):
        simulate(4, checkpoint_dir=tmp_path, on_round=fail_in_round_3)
    rest = simulate(4, checkpoint_dir=tmp_path)
    assert [row["round"] for row in rest.rounds] == [4]
    assert_identical(rest.state, simulate(4).state)


def test_a_finished_run_runs_no_round(simulate, tmp_path):
    first = simulate(2, checkpoint_dir=tmp_path)
    again = simulate(2, checkpoint_dir=tmp_path)
    assert again.rounds == []
    assert_identical(again.state, first.state)
    assert_identical(models.get_weights(again.model), models.get_weights(first.model))


def test_another_seed_does_not_mix_with_the_old_one(simulate, tmp_path):
    """Cohorts of one seed with noise of another would be a run that no seed repeats."""
    simulate(1, checkpoint_dir=tmp_path)
    with pytest.raises(InvalidArgument, match="of a run with another seed or model"):
        simulate(2, checkpoint_dir=tmp_path, seed=7)


def test_another_model_is_refused(simulate, runtime, tmp_path):
    simulate(1, checkpoint_dir=tmp_path)
    other = algorithms.variational(lambda: models.mlp("flipout", hidden=(4,)), rules.conflation())
    with pytest.raises(InvalidArgument, match="of a run with another seed or model"):
        federated.simulate(other, CLIENTS, 2, cohort_size=3, seed=6, runtime=runtime, checkpoint_dir=tmp_path)


def test_without_a_directory_nothing_is_written(simulate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    simulate(1)
    assert list(tmp_path.iterdir()) == []


def test_collapse_is_seen_across_a_stop(runtime, tmp_path, caplog):
    """Conflation divides the variance by K = 5: sd is below 5 % of the first in round 4, whether or not it stops."""
    run = functools.partial(federated.simulate, build("conflation"), CLIENTS, runtime=runtime)
    whole = run(6)
    assert whole.collapsed == 4
    run(3, checkpoint_dir=tmp_path)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        rest = run(6, checkpoint_dir=tmp_path)
    assert_identical(rest.state, whole.state)
    assert rest.collapsed == whole.collapsed
    assert [record.getMessage() for record in caplog.records] == [federated.collapse_warning(4)]


def test_fewer_rounds_than_are_saved_is_refused(simulate, tmp_path):
    simulate(2, checkpoint_dir=tmp_path)
    with pytest.raises(InvalidArgument, match="holds a run of 2 rounds"):
        simulate(1, checkpoint_dir=tmp_path)
