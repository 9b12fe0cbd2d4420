"""Every option of the commands on trained models and of linear models: another value changes the answer.

The options come from the commands themselves, so that a new one without a value here, or without effect, fails.
"""

import numpy as np
import pytest

from tfp_bfl.app.cli import run_command_line

# Command -> option -> the flags that give it another value, and those that it requires; None for one that another
# file tests.
OPTIONS = {
    "glm": {
        "outcome": (["--outcome", "age"],),
        "family": (["--family", "bernoulli"],),
        "event": (["--event", "events"],),
        "event_value": (["--event-value", "1"], ["--family", "bernoulli"]),
        "exposure": (["--exposure", "time"], ["--family", "poisson", "--outcome", "count"]),
        "only": (["--only", "age"],),
        "drop": (["--drop", "age"],),
        "categorical": (["--categorical", "events"],),
        "date_unit": (["--date-unit", "years"],),
        "missing": (["--missing", "indicate"],),
        "random": (["--random", "(intercept)"],),
        "prior_stddev": (["--prior-stddev", "0.1"],),
        "intercept_stddev": (["--intercept-stddev", "0.1"],),
        "stratified": (["--stratified"],),
        "second_order": (["--second-order"],),
        "level": (["--level", "0.5"],),
    },
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of five clients with numbers, counts, dates and an empty cell."""
    path, rng = tmp_path_factory.mktemp("table") / "table.csv", np.random.default_rng(0)
    lines = ["site,age,events,count,time,seen,outcome"]
    for i in range(120):
        age, site = rng.normal(50, 9), i % 5
        seen = f"20{10 + i % 9}-0{1 + i % 8}-11"
        outcome = 0.1 * age + site + rng.normal()
        age_or_none = "" if i == 7 else f"{age:.3f}"
        lines.append(
            f"s{site},{age_or_none},{rng.integers(2)},{rng.poisson(2)},{1 + rng.random():.3f},{seen},{outcome:.3f}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def answer(command, capsys):
    """Return exit status and output of a command."""
    code = run_command_line([str(x) for x in command])
    return code, capsys.readouterr().out


def test_every_option_of_a_linear_model_has_a_value_here():
    from tfp_bfl.glm.options import model_options

    @model_options
    def command():
        pass

    assert {x.name for x in command.__click_params__} == set(OPTIONS["glm"])


@pytest.mark.parametrize("name", OPTIONS["glm"])
def test_an_option_of_a_linear_model_changes_the_answer_or_is_refused(table, name, capsys):
    flags, needs = (*OPTIONS["glm"][name], [])[:2]
    start = ["glm", table, "--client-column", "site"]
    outcome = [] if "--outcome" in [*flags, *needs] else ["--outcome", "outcome"]
    before = answer([*start, *needs, *(outcome or (["--outcome", "outcome"] if name == "outcome" else []))], capsys)
    after = answer([*start, *needs, *outcome, *flags], capsys)
    assert after[0] == 2 or after != before
