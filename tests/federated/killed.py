"""A program that runs a simulation whole, and again with a SIGKILL at each of many moments, resumed after each.

    python killed.py FOLDER KILLS SEED

Every life of the run is a fork of this process, which has imported everything and run nothing: half a second instead of
ten. Prints as JSON when each kill came. test_kills.py runs it and compares what the two runs leave.
"""

import json
import os
import pathlib
import random
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from tfp_bfl import algorithms, federated, models, rules
from tfp_bfl.data import Clients, load

ROUNDS = 30
# A life is killed within its first seconds, after its first checkpoint, or while it writes one.
MOMENTS = ("start", "round", "writing")


def simulate(folder):
    """Half a million weights, so that writing a checkpoint takes a while."""
    clients = Clients(load("breast_cancer"), [np.arange(10 * k, 10 * k + 10) for k in range(6)])
    model_fn = lambda: models.mlp("flipout", hidden=(1000, 500), initial_stddev=0.1)
    process = algorithms.variational(model_fn, rules.naive_weighted_average(), local_epochs=1, batch_size=8)
    options = {"cohort_size": 4, "seed": 3, "dropout": 0.2, "checkpoint_dir": folder / "states"}
    result = federated.simulate(process, clients, ROUNDS, evaluate=lambda model: {"score": norm(model)}, **options)
    np.savez(folder / "weights.npz", *tf.nest.flatten(result.state))
    rows = [{name: x for name, x in row.items() if "seconds" not in name} for row in result.rounds]
    (folder / "rows.json").write_text(json.dumps(rows))


def norm(model):
    return float(tf.linalg.global_norm(model.trainable_variables))


def fork(folder):
    folder.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    try:
        simulate(folder)
        os._exit(0)
    finally:
        os._exit(1)


def ended(pid):
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def saved(states):
    return len([*states.glob("*.sha256")]) and max(int(path.stem[6:]) for path in states.glob("*.sha256"))


def half_written(states):
    names = os.listdir(states) if states.exists() else []
    return {name for name in names if ".tempstate" in name or name.endswith(".draft")}


def wait_for(moment, states, pid, rng):
    """Returns once the moment to kill has come, or the run has ended."""
    before, started, old = saved(states), time.monotonic(), half_written(states)
    late = rng.random()
    while not ended(pid):
        if moment == "start" and time.monotonic() - started > 4 * late:
            return True
        if moment == "round" and saved(states) > before:
            time.sleep(0.1 * late)
            return True
        if moment == "writing" and half_written(states) - old:
            return True
        time.sleep(0.0002 if moment == "writing" else 0.005)
    return False


def main(folder, kills, seed):
    rng = random.Random(seed)
    _, status = os.waitpid(fork(folder / "whole"), 0)
    assert status == 0
    told, states = [], folder / "killed" / "states"
    for number in range(kills):
        moment = MOMENTS[number % len(MOMENTS)]
        pid = fork(folder / "killed")
        if not wait_for(moment, states, pid, rng):
            break
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told.append({"moment": moment, "round": saved(states), "half_written": len(half_written(states))})
    _, status = os.waitpid(fork(folder / "killed"), 0)
    print(json.dumps({"kills": told, "status": status}))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
