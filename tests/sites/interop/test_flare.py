"""The recipe for NVIDIA FLARE (`nox -s test-deployment`), and what it refuses, for which FLARE is not needed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import refuses
from tests.sites.interop.kill import kill_when
from tfp_bfl.errors import MissingDependency

EXAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/flare"
PLAN = {"num_rounds": 2, "min_clients": 1}
HAS_FLARE = importlib.util.find_spec("nvflare") is not None
needs_flare = pytest.mark.skipif(not HAS_FLARE, reason="NVIDIA FLARE is not installed")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"server": bfl.interop.Server({"w": np.zeros(2)}, 1.0)}, "give server='FILE.py:FUNCTION'"),
        ({"server": "nowhere.py:make"}, "There is no file nowhere.py: give server='FILE.py:FUNCTION'"),
        ({"server": f"{EXAMPLE / 'server.py'}:make"}, "make_server"),
        ({"train_script": "nowhere.py"}, "There is no file nowhere.py: give the program of the clients."),
        ({"num_rounds": 0}, "num_rounds"),
        ({"min_clients": 1.5}, "min_clients"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_bad_input_is_one_sentence(options, error):
    given = {"server": f"{EXAMPLE / 'server.py'}:make_server", "train_script": str(EXAMPLE / "client.py")}
    refuses(error, bfl.interop.flare_recipe, **{**given, **PLAN, **options})


@pytest.mark.skipif(HAS_FLARE, reason="NVIDIA FLARE is installed")
def test_without_flare_the_sentence_says_what_to_install():
    with pytest.raises(MissingDependency, match="pip install 'nvflare"):
        bfl.interop.flare_recipe(f"{EXAMPLE / 'server.py'}:make_server", str(EXAMPLE / "client.py"), **PLAN)


@needs_flare
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def make(): return 3", "'make' returns 3, but must return an interop.Server"),
        ("def make(): return 1 / 0", "'make' fails: ZeroDivisionError: division by zero"),
        ("def make(x): return x", "'make' requires x, which has no default"),
        ("1 / 0", "The code of server.py fails"),
    ],
)
def test_a_function_that_makes_no_server_is_one_sentence(tmp_path, monkeypatch, code, error):
    from tfp_bfl.sites.interop.bayesian_recipe import made

    monkeypatch.chdir(tmp_path)
    Path("server.py").write_text(code)
    refuses(error, made, "server.py:make")


@needs_flare
def test_answers_without_whole_arrays_or_a_number_are_left_out(tmp_path):
    """Means 1 and 4 of equal precisions: only the first states its number of examples and sends whole arrays."""
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from tfp_bfl.sites.interop.bayesian_recipe import BayesianController

    def answer(name, mean, kind=ParamsType.FULL, **meta):
        arrays = {"mean/w": np.full(2, mean), "variance/w": np.full(2, 0.5)}
        return FLModel(params=arrays, params_type=kind, meta={"client_name": name, **meta})

    controller, server = BayesianController("server.py:make", 2, 1), bfl.interop.Server({"w": np.zeros(2)}, 1.0)
    logged = []
    controller.warning = controller.info = logged.append
    answers = [
        answer("a", 1.0, num_examples=10),
        answer("b", 4.0),
        answer("c", 4.0, ParamsType.DIFF, num_examples=10),
        FLModel(metrics={"loss": 0.1}, meta={"client_name": "d", "num_examples": 10}),
    ]
    controller.send_model_and_wait = lambda **options: answers
    controller._round(server)
    np.testing.assert_allclose(server.arrays["mean/w"], np.full(2, 1.0))
    text = "\n".join(logged)
    assert "client b is left out: num_examples is -1" in text
    assert all(f"client {name} is left out: it must hold whole arrays" in text for name in "cd")
    controller.min_clients, answers = 2, [answer("a", 4.0, num_examples=10)]
    controller._round(server)
    assert server.round == 1 and logged[-1] == "A round needs 2 answers, but this one has 1: it is left out."
    controller.min_clients, answers = 1, [answer("b", 4.0)]
    controller._round(server)
    assert server.round == 1 and "No client has a valid answer in round 2" in logged[-1]


def command(folder, rounds):
    return [sys.executable, str(EXAMPLE / "job.py"), str(folder), str(rounds)]


def program(folder, rounds):
    """The output of the program of the page."""
    done = subprocess.run(command(folder, rounds), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@needs_flare
@pytest.mark.deep(after="tests/sites/interop/test_server.py")
def test_the_program_of_the_page_is_the_server_over_its_clients_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setenv("ROUNDS", str(tmp_path / "direct"))
    import client
    import server

    program(tmp_path / "run", 3)
    direct, parts = server.make_server(), [client.rows(number) for number in range(client.NUM_CLIENTS)]
    for _ in range(3):
        sent = [(f"site-{k + 1}", len(y), client.train(direct.arrays, x, y)) for k, (x, y) in enumerate(parts)]
        direct.next([bfl.interop.Answer(*x) for x in sent])
    (written,) = (tmp_path / "run").rglob("posterior.npz")
    with np.load(written) as arrays:
        assert sorted(arrays) == sorted(direct.predictive)
        for name, value in direct.predictive.items():
            np.testing.assert_array_equal(arrays[name], value)


@needs_flare
@pytest.mark.deep(after="tests/sites/interop/test_server.py")
def test_the_program_goes_on_after_a_kill_to_the_same_bits(tmp_path):
    whole = program(tmp_path / "whole", 4)
    kill_when(tmp_path / "killed/rounds/round_2.npz", command(tmp_path / "killed", 4))
    assert "Rounds 1 to 4." in whole
    ended = program(tmp_path / "killed", 4)
    assert "Rounds 1 to" not in ended and "posterior: accuracy 0." in ended
    first, other = (np.load(tmp_path / folder / "rounds/round_4.npz") for folder in ("whole", "killed"))
    assert sorted(first) == sorted(other)
    for name in first:
        np.testing.assert_array_equal(first[name], other[name])
