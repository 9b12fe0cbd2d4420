"""A site that bounds the epsilon of an example over all runs."""

import concurrent.futures
import functools
import json
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import fails, json_of, refuses, summary_of
from tests.sites.channel import add_line
from tests.sites.test_deployment import Channel, run
from tfp_bfl.errors import Error, InvalidArgument, MissingDependency
from tfp_bfl.files.arrays import stored_arrays
from tfp_bfl.privacy import Steps, composed_epsilon, example_steps
from tfp_bfl.sites.arrays import to_arrays
from tfp_bfl.sites.deployment.channel import BEGIN, ROUND
from tfp_bfl.sites.deployment.member import Ledger
from tfp_bfl.sites.deployment.site import Site
from tfp_bfl.sites.party import Party

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.cpu_seconds(60)

OPTIONS = {"model": "mlp", "rounds": 2, "local_epochs": 2, "example_clip_norm": 1.0, "example_noise": 2.0}
TOLD = Steps(2.0, 0.25, 8)
MESSAGE = {"round": np.int32(0), "x": np.ones(3, np.float32)}
JOB = "ab" * 32


def ledger(folder, run="first", told=TOLD, rounds=2, limit=9.0, job=JOB):
    return Ledger(folder, run, job, told, rounds, limit, 1e-5)


def test_runs_add_up_until_the_limit(tmp_path):
    one = composed_epsilon([TOLD._replace(number=16)])
    ledger(tmp_path, limit=1.2 * one)
    refuses(rf"allows epsilon .* which would be .* after {one:.3g}", ledger, tmp_path, "second", limit=1.2 * one)
    assert [path.name for path in tmp_path.glob("*.json")] == ["first.json"]
    # The same run, begun again, tells nothing more.
    ledger(tmp_path, limit=1.2 * one)
    ledger(tmp_path, "second", limit=2 * one)


OTHER_RUN = "It has taken part in another run of the name first"


def test_a_run_of_the_same_name_is_the_same_run_and_begins_again_only_with_a_job(tmp_path):
    ledger(tmp_path)
    for change in ({"rounds": 1}, {"job": "cd" * 32}):
        refuses(OTHER_RUN, ledger, tmp_path, **change)
    ledger(tmp_path)
    path = tmp_path / "first.json"
    path.write_text(json.dumps({name: x for name, x in json_of(path).items() if name != "job"}))
    refuses(OTHER_RUN, ledger, tmp_path)
    refuses("allows epsilon", ledger, tmp_path, "second", limit=1.2 * composed_epsilon([TOLD._replace(number=16)]))


def at_once(number, call):
    """Return the result or the refusal of each thread; each opens the lock for itself, as processes do."""
    gate = threading.Barrier(number)

    def one(i):
        gate.wait()
        try:
            return call(i)
        except InvalidArgument as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


def test_of_concurrent_runs_only_those_pass_that_the_limit_holds(tmp_path, monkeypatch):
    """Between reading what is spent and writing the charge the others have time to come."""
    one = composed_epsilon([TOLD._replace(number=16)])
    patient = lambda told, delta: time.sleep(0.02) or composed_epsilon(told, delta)
    monkeypatch.setattr(bfl.privacy, "composed_epsilon", patient)
    found = at_once(6, lambda i: ledger(tmp_path, f"run{i}", limit=1.2 * one))
    assert sum(isinstance(x, Ledger) for x in found) == 1
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_two_processes_of_one_run_answer_a_round_to_one_message(tmp_path):
    ledgers = [ledger(tmp_path) for _ in range(6)]
    found = at_once(6, lambda i: ledgers[i].charge({**MESSAGE, "x": np.full(3, i, np.float32)}))
    assert sum(x is None for x in found) == 1
    assert "another message of round 1" in str(next(x for x in found if x is not None))


def test_a_round_has_one_message(tmp_path):
    found = ledger(tmp_path)
    found.charge(MESSAGE)
    ledger(tmp_path).charge(MESSAGE)
    refuses("answered another message of round 1", ledger(tmp_path).charge, {**MESSAGE, "x": np.zeros(3, np.float32)})


def test_without_noise_there_is_no_bound(tmp_path):
    refuses("would be without a bound with this one", ledger, tmp_path, told=TOLD._replace(noise_multiplier=0.0))


@pytest.mark.parametrize("text", ["", "[]", '{"told": [1, 2]}', '{"told": [1, 0.5, 3], "rounds": "x", "messages": {}}'])
def test_a_ledger_that_cant_be_read_ends_it(tmp_path, text):
    (tmp_path / "old.json").write_text(text)
    refuses(r"old\.json of its ledger can't be read", ledger, tmp_path)


SOURCE = bfl.data.Source("rows", "train", np.zeros([4, 3], np.float32), np.zeros(4, np.int32))


def small_process(**options):
    build = functools.partial(bfl.models.mlp, "deterministic", (3,), 2, hidden=(2,), seed=0)
    return bfl.algorithms.variational(build, local_epochs=1, element_spec=SOURCE.element_spec, **options)


def test_noise_that_hides_examples_is_of_the_job_and_of_the_message():
    """Two answers with one noise: their difference has none."""
    hidden = {"example_privacy": bfl.training.ExamplePrivacy(1.0, 1.0)}
    for options, differ in ((hidden, True), ({}, False)):
        process = small_process(**options)
        first = process.round.initialize()
        first = first._replace(noise=tf.constant([1, 2])) if differ else first
        message = to_arrays(process.round.broadcast(first).message)
        moved = {name: x + np.asarray(x.dtype.kind == "f", x.dtype) for name, x in message.items()}
        secret = lambda job, process=process: Party(process, SOURCE, 0, b"secret", "first", job=job)
        one, other = secret(bytes(32)), secret(bytes([1] * 32))
        keys = [tuple(one._key(0, message)), tuple(one._key(0, moved)), tuple(other._key(0, message))]
        assert len(set(keys)) == (3 if differ else 1)
        assert tuple(secret(bytes(32))._key(0, message)) == keys[0]


def bound(folder, more=""):
    """Bound the epsilon of a site, and return its file."""
    return add_line(folder / "west" / "local", f"max_example_epsilon: 3.0\n{more}")


def test_a_site_with_a_bound_takes_part_in_runs_within_it(hospitals):
    bound(hospitals)
    with pytest.raises(Error, match=r"quorum is 3 .*west: Its file allows only runs with differential privacy of exam"):
        run(hospitals, Channel(hospitals), "open", {"model": "mlp", "rounds": 1}, quorum=3)
    channel = Channel(hospitals)
    done = run(hospitals, channel, "first", OPTIONS, quorum=3)
    summary = summary_of(done)
    assert summary["num_clients"] == 3
    sizes = [told["num_examples"] for told in json_of(done / "parties.json").values()]
    worst = max(composed_epsilon([example_steps(2.0, size, batch_size=32, epochs=4)]) for size in sizes)
    assert summary["example_epsilon"] == worst and summary["delta"] == 1e-5
    assert bfl.export.read_info(done / "saved_model").metrics["example_epsilon"] == summary["example_epsilon"]
    assert len(json_of(hospitals / "west" / "local" / "ledger" / "first.json")["messages"]) == 2
    # A second message of a round is refused, also after a restart of the site.
    told = {task: content for task, name, content in channel.sent if name == "west"}
    site = Site(hospitals / "west" / "local")
    site.begin(told[BEGIN].decode())
    message = stored_arrays(told[ROUND], "message", 2**30)
    site.answer(message)
    other = {name: np.asarray(x + 1e-3, x.dtype) if x.dtype == np.float32 else x for name, x in message.items()}
    refuses("It has answered another message of round 2", site.answer, other)
    # Other columns or options with the same noise: the answers' difference would have none.
    for part, name, value in (("schema", "columns", None), ("options", "learning_rate", 0.5), ("options", "seed", 7)):
        job = json.loads(told[BEGIN].decode())
        value = [[c[0], c[1], 2 * c[2]] for c in job[part][name]] if value is None else value
        job[part] = {**job[part], name: value}
        refuses(OTHER_RUN, Site(hospitals / "west" / "local").begin, json.dumps(job))
    fails(r"west: .*epsilon 3", run, hospitals, Channel(hospitals), "second", {**OPTIONS, "rounds": 9}, quorum=3)


def test_what_a_site_refuses_costs_it_nothing(hospitals):
    file = bound(hospitals)
    plain = file.read_text()
    file.write_text(plain + "rules: [log_linear_pool]\n")
    run(hospitals, Channel(hospitals), "first", OPTIONS, quorum=2)
    assert not [*(hospitals / "west" / "local" / "ledger").glob("*.json")]
    file.write_text(plain)
    done = run(hospitals, Channel(hospitals), "second", OPTIONS, quorum=3)
    assert summary_of(done)["num_clients"] == 3


def test_a_site_answers_no_more_rounds_than_it_agreed_to():
    process = small_process()
    party = Party(process, SOURCE, 0, b"secret", rounds=2)
    first = process.round.initialize()
    message = lambda number: to_arrays(process.round.broadcast(first._replace(round=tf.constant(number))).message)
    assert party.answer(message(1))
    for number in (2, -1):
        refuses(f"agreed to 2 rounds, which do not include round {number + 1}", party.answer, message(number))


def test_a_missing_accountant_is_reported_when_the_site_starts_and_not_in_a_round(hospitals, monkeypatch):
    bound(hospitals, "delta: 1.0e-7\n")
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingDependency, match="dp-accounting, which is not installed"):
        Site(hospitals / "west" / "local")
