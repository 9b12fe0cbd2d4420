"""Runs that go on where they stopped."""

import functools
import logging
import os
import subprocess

import numpy as np
import pytest

from tests.algorithms.cases import assert_identical
from tests.kit import refuses, without_times
from tfp_bfl import algorithms, federated, models, rules
from tfp_bfl.data import Clients, load
from tfp_bfl.federated.checkpoints import Checkpoints, Record
from tfp_bfl.weights import get_weights

CLIENTS = Clients(load("breast_cancer"), [np.arange(10 * k, 10 * k + 10) for k in range(5)])


@functools.cache
def build(rule="naive_weighted_average", hidden=(), learning_rate=0.01, **options):
    model_fn = lambda: models.mlp("flipout", hidden=hidden, initial_stddev=0.1, **options)
    training = {"local_epochs": 1, "batch_size": 8, "learning_rate": learning_rate}
    return algorithms.variational(model_fn, rules.parse_rule(rule), **training)


@pytest.fixture
def simulate(runtime):
    return functools.partial(federated.simulate, build(), CLIENTS, cohort_size=3, seed=6, runtime=runtime)


@pytest.fixture
def state(runtime):
    return build().initialize()


RECORD = Record(rows=[{"round": 3, "nll": 0.1 + 0.2, "none": None, "faulty_clients": {"1": "x"}}], first_stddev=0.1)


def files(*rounds):
    return sorted(f"round_{n}{end}" for n in rounds for end in (".data-00000-of-00001", ".index", ".json", ".sha256"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def saved(folder, state, *rounds, description=None):
    checkpoints = Checkpoints(folder, description or {"rule": "conflation"})
    for number in rounds:
        checkpoints.save(state._replace(round=np.int32(number)), RECORD)
    return checkpoints


def test_states_come_back_as_they_were(tmp_path, state):
    assert Checkpoints(tmp_path / "states", {}).latest(state) is None
    later = state._replace(round=np.int32(3))
    saved(tmp_path / "states", state, 3)
    found = Checkpoints(tmp_path / "states", {"rule": "conflation"}).latest(state)
    assert type(found.state) is type(state)
    assert_identical(found.state, later)
    assert found.record == RECORD


def test_sums_are_those_of_sha256sum(tmp_path, state):
    saved(tmp_path, state, 1)
    subprocess.run(
        ["sha256sum", "--check", "--strict", "round_1.sha256"], cwd=tmp_path, check=True, capture_output=True
    )


@pytest.mark.parametrize("part", [".data-00000-of-00001", ".index", ".json", ".sha256"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path, state, caplog, part, damage):
    checkpoints = saved(tmp_path, state, 9, 10)
    path = tmp_path / f"round_10{part}"
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"truncated": content[:middle], "flipped": flipped, "emptied": b"", "gone": b""}[damage])
    if damage == "gone":
        path.unlink()
    assert checkpoints.latest(state).state.round == 9
    told = [record.getMessage() for record in caplog.records]
    if (part, damage) == (".sha256", "gone"):  # As after a kill in the middle of writing.
        assert told == []
    else:
        assert len(told) == 1 and "round_10 is damaged (" in told[0]


def test_all_damaged_is_an_error(tmp_path, state):
    checkpoints = saved(tmp_path, state, 1, 2)
    before = names(tmp_path)
    for path in tmp_path.glob("*.index"):
        path.write_bytes(b"no index")
    refuses(r"Every checkpoint in .* is damaged", checkpoints.latest, state)
    assert names(tmp_path) == before


def test_what_a_killed_writer_leaves_is_overwritten(tmp_path, state):
    checkpoints = saved(tmp_path, state, 1)
    (tmp_path / "round_2.data-00000-of-00001").write_bytes(b"half")
    (tmp_path / "round_2.sha256.draft").write_bytes(b"half")
    (tmp_path / "round_7.data-00000-of-00001.tempstate12").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    assert checkpoints.latest(state).state.round == 1
    checkpoints.save(state._replace(round=np.int32(2)), RECORD)
    assert checkpoints.latest(state).state.round == 2
    assert names(tmp_path) == sorted([*files(1, 2), "notes.txt"])


@pytest.mark.parametrize("name", ["library", "model", "rule", "clients"])
def test_checkpoints_of_another_run_are_refused_unchanged(tmp_path, state, name):
    words = {"library": "tfp_bfl 1", "model": "lenet", "rule": "conflation", "clients": "10"}
    saved(tmp_path, state, 1, description=words)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = Checkpoints(tmp_path, {**words, name: "another"})
    refuses(f"differs in {name}, '{words[name]}'; this run has another", other.latest, state)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_goes_on_as_if_it_had_never_stopped(simulate, tmp_path):
    whole = simulate(4)
    simulate(2, checkpoint_dir=tmp_path)
    seen = []
    rest = simulate(4, checkpoint_dir=tmp_path, on_round=seen.append)
    assert_identical(rest.state, whole.state)
    assert [row["round"] for row in seen] == [3, 4]
    assert without_times(rest.rounds) == without_times(whole.rounds)
    assert_identical(get_weights(rest.model), get_weights(whole.model))


def test_metrics_come_back_bit_for_bit(simulate, tmp_path):
    """Among them NumPy's numbers and what JSON has no words for."""
    values = iter([np.float32(0.1), float("nan"), 1 / 3])
    first = simulate(3, checkpoint_dir=tmp_path, evaluate=lambda model: {"score": next(values)}).rounds
    again = simulate(3, checkpoint_dir=tmp_path).rounds
    np.testing.assert_array_equal([row.pop("score") for row in again], [row.pop("score") for row in first])
    assert again == first


def test_each_round_is_saved_and_the_last_few_stay(simulate, tmp_path):
    folder = tmp_path / "a" / "b"
    numbers = []
    count = lambda row: numbers.append(len([*folder.glob("*.sha256")]))
    result = simulate(5, checkpoint_dir=folder, on_round=count, keep_checkpoints=2)
    assert numbers == [1, 2, 2, 2, 2]
    assert names(folder) == files(4, 5)
    assert simulate(5, checkpoint_dir=folder).rounds == result.rounds


def test_rounds_between_checkpoints(simulate, tmp_path):
    simulate(5, checkpoint_dir=tmp_path, checkpoint_every=2)
    assert names(tmp_path) == files(2, 4, 5)


def test_a_finished_run_runs_no_round(simulate, tmp_path):
    first = simulate(2, checkpoint_dir=tmp_path)
    again = simulate(2, checkpoint_dir=tmp_path, on_round=lambda row: pytest.fail("a round"))
    assert again.rounds == first.rounds
    assert_identical(again.state, first.state)
    assert_identical(get_weights(again.model), get_weights(first.model))


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("differs in model", {"hidden": (4,)}),
        ("differs in model", {"prior_stddev": 0.5}),
        ("differs in rule", {"rule": "conflation"}),
        ("differs in clients", {"clients": Clients(CLIENTS.source, CLIENTS.indices[:4])}),
        ("differs in sampling", {"cohort_size": 2}),
        ("differs in learning_rate", {"learning_rate": 0.02}),
        ("of seed 6, and this run's is 7", {"seed": 7}),
        ("holds a run of 2 rounds", {"rounds": 1}),
    ],
)
def test_another_run_is_refused(simulate, runtime, tmp_path, what, options):
    simulate(2, checkpoint_dir=tmp_path)
    run = {"cohort_size": 3, "seed": 6, "rounds": 3, "clients": CLIENTS}
    process = build(**{name: x for name, x in options.items() if name not in run})
    run |= {name: x for name, x in options.items() if name in run}
    refuses(what, federated.simulate, process, **run, runtime=runtime, checkpoint_dir=tmp_path)
    assert names(tmp_path) == files(1, 2)


def test_the_same_model_built_again_has_the_same_words():
    assert build.__wrapped__().description == build().description


def test_without_a_directory_nothing_is_written(simulate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    simulate(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep(after="tests/federated/test_simulation.py")
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
    told = [record.getMessage() for record in caplog.records]
    assert told.count(federated.collapse_warning(4)) == 1


@pytest.mark.parametrize(("noise", "mode"), [((), 0o644), (np.array([7, 8], np.int32), 0o600)], ids=["open", "private"])
def test_only_its_owner_reads_the_secret_of_a_private_run(tmp_path, state, noise, mode):
    """Whoever knows the seed of the noise can subtract it."""
    folder, umask = tmp_path / "saved", os.umask(0o022)
    try:
        Checkpoints(folder, {}).save(state._replace(noise=noise), Record())
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.data*")} == {mode}
    assert (folder.stat().st_mode & 0o077 == 0) == (mode == 0o600)
