"""`tfp-bfl run --algorithm partitioned_vi`, and `tfp-bfl clients` on its run: sites divided out and multiplied in."""

import numpy as np
import pytest

from tests.algorithms.cases import state_of
from tests.app.test_revise import contents, run
from tests.kit import call, refusal, summary_of
from tfp_bfl.algorithms.held import Held

pytestmark = [pytest.mark.deep(after="tests/algorithms/factors/test_factor_pool.py"), pytest.mark.cpu_seconds(60)]

RUN = "run --algorithm partitioned_vi --dataset breast_cancer --model mlp --partition iid --num-samples 3 --clients 3"
SMALL = [*RUN.split(), "--rounds", "2", "--local-epochs", "1", "--examples-per-client", "40", "--engine", "local"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(SMALL, tmp_path_factory.mktemp("runs") / "whole")


def test_the_run_says_whether_its_spread_means_anything(whole):
    summary = summary_of(whole)
    assert {"stddev_log_ratio", "permuted_test_nll", "permuted_ece", "permuted_accuracy"} <= set(summary)
    assert "standard deviations permuted" in (whole / "report.html").read_text()


def test_clients_are_listed_with_their_share(whole, capsys):
    assert call("clients", "show", whole) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["client", "examples", "share", "of", "the", "precision"]
    assert [line.split()[:2] for line in lines[1:]] == [[str(k), "40"] for k in range(3)]


def test_a_client_leaves_and_comes_back(whole, tmp_path, capsys):
    before, without, again = contents(whole), tmp_path / "without", tmp_path / "again"
    assert call("clients", "remove", whole, "1", "--output", without) == 0
    assert "2 clients" in capsys.readouterr().out
    assert call("clients", "add", without, whole, "1", "--output", again) == 0
    assert contents(whole) == before
    own, left, back = (Held.load(folder / "clients.npz") for folder in (whole, without, again))
    assert list(left.rows) == ["0", "2"] and set(back.rows) == {"0", "1", "2"}
    for a, b in zip(own.pool().posterior.variance, back.pool().posterior.variance, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_refusals(whole, tmp_path, capsys):
    output = ["--output", str(tmp_path / "new")]
    assert "There is no client '7'" in refusal(capsys, "clients", "remove", whole, "7", *output)
    other = tmp_path / "other"
    other.mkdir()
    state_of(5, 6).save(other / "clients.npz")
    assert "of another algorithm" in refusal(capsys, "clients", "add", whole, other, *output)
    assert not (tmp_path / "new").exists()
