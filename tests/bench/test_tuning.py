"""Trials: the same number for each method, repeatable, resumed after an interruption, and never of a failed one."""

import math

import pytest

from tests.kit import fails, interrupted, lines_of, refuses
from tfp_bfl.app.one_run.pipeline import Finished
from tfp_bfl.bench import cells, tuning
from tfp_bfl.bench.plan import Plan
from tfp_bfl.bench.sweep import Space
from tfp_bfl.errors import Error

SPACE = {"rate": Space(1e-3, 1.0, True), "kind": Space(values=("a", "b"))}


@pytest.fixture(autouse=True)
def kept_garbage(monkeypatch):
    """To collect that of all tests before would take most of the time."""
    monkeypatch.setattr(cells, "forget_models", lambda: None)


def trial(**scores):
    return Finished({}, {}, scores, {"seconds": 1.0})


def loss(values):
    """Least at rate .1 and kind b; without values, the defaults, 3."""
    return math.log10(values["rate"] / 0.1) ** 2 + (values["kind"] == "a") if values else 3.0


def bowl(values):
    return trial(test_nll=loss(values))


def tune(folder, attempt=bowl, trials=12, seed=3, score="nll", space=SPACE):
    plan = Plan(settings={}, methods={}, trials=trials, trial_seed=seed, score=score)
    return tuning.tune(folder, plan, space, attempt)


def test_the_best_trial_is_chosen(tmp_path):
    tried = []
    found = tune(tmp_path / "t", lambda values: tried.append(dict(values)) or bowl(values))
    assert tried[0] == {} and len(tried) == 12 == found.trials and found.seconds == 12
    assert found.values == min(tried[1:], key=loss) and found.score == loss(found.values)
    assert all(1e-3 <= each["rate"] <= 1 and each["kind"] in "ab" for each in tried[1:])
    accurate = tune(tmp_path / "accurate", lambda values: trial(accuracy=-loss(values)), score="accuracy")
    assert accurate.values == found.values
    default = tune(tmp_path / "default", lambda values: trial(test_nll=1.0 if values else 0.0))
    assert default.values == {} and default.score == 0


def test_trials_follow_from_the_seed(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        tune(tmp_path / name, seed=seed)
    rows = {name: (tmp_path / name / tuning.TRIALS).read_text() for name in "abc"}
    assert rows["a"] == rows["b"] != rows["c"]


def test_resumed_trials_are_those_of_an_uninterrupted_run(tmp_path):
    whole = tune(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path / "cut", interrupted(bowl, 8))
    path = tmp_path / "cut" / tuning.TRIALS
    path.write_text(path.read_text() + '{"values": {"ra')  # The line that was being written.
    later = []
    found = tune(tmp_path / "cut", lambda values: later.append(values) or bowl(values))
    assert found == whole and len(later) == 12 - 7
    assert path.read_text() == (tmp_path / "whole" / tuning.TRIALS).read_text()
    assert tune(tmp_path / "cut", interrupted(bowl, 1)) == whole  # Nothing is run again.


def test_failed_trials_are_never_chosen(tmp_path):
    def attempt(values):
        if not values:
            raise Error("The training diverged.")
        if values["kind"] == "b":
            return trial(test_nll=math.nan)
        return bowl(values)

    found = tune(tmp_path / "t", attempt)
    rows = lines_of(tmp_path / "t" / tuning.TRIALS)
    assert found.values["kind"] == "a" and rows[0]["failed"] == "The training diverged."


def test_every_trial_fails(tmp_path):
    def attempt(values):
        raise ValueError("no\nmore")

    for _ in range(2):  # The second time from the record.
        fails(r"first of them with: ValueError: no$", tune, tmp_path / "t", attempt)


def test_nothing_to_tune(tmp_path):
    assert tune(tmp_path / "t", space={}) == tuning.Chosen({}, None, 0, 0.0) and not (tmp_path / "t").exists()


def test_another_space_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path / "t", interrupted(bowl, 2))
    (tmp_path / "t" / tuning.TRIALS).write_text('{"values": {}}\n{"values": {"x": 1}}\n')
    refuses("holds trials of another search space", tune, tmp_path / "t")
