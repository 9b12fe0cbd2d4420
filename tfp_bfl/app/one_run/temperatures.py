"""The posterior temperature after training, by held-out rows or by the default of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build
from tfp_bfl.errors import check_number

if TYPE_CHECKING:
    from tfp_bfl.app.one_run.after import FinishedRun

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


class ChosenTemperature(NamedTuple):
    """A posterior temperature.

    Fields:
      value: T.
      by: the origin of T, in words.
    """

    value: float
    by: str


def choose(given: float | None, finished: FinishedRun, state: Any) -> ChosenTemperature:
    """Choose the posterior temperature T: as given, else by held-out rows, else the default of the library.

    With held-out rows, T is the value of `GRID` with the smallest negative log likelihood, a sum over these rows, which
    no client trained on; test rows are not used. Otherwise, and for regression, T is the default of
    `algorithms.laplace`.

    Args:
      given: T; None to choose it.
      finished: the run.
      state: the clients' sums, a `algorithms.held.Held`, with the default temperature where none is given.

    Raises:
      InvalidArgument: T is not above 0.
    """
    if given is not None:
        return ChosenTemperature(check_number(given, "temperature"), "given")
    if finished.data.train.target is not None:
        return ChosenTemperature(state.settings.temperature, "the default for regression")
    if finished.held_out is None:
        return ChosenTemperature(state.settings.temperature, "the default: the run has no held-out rows (--hold-out)")
    _, features, labels = finished.held_out.examples(0)
    score = build.scorer(finished.config, finished.data.test)
    nll = {T: score(model_at(T, finished, state), features, labels).metrics["test_nll"] for T in GRID}
    best = min(nll, key=lambda T: nll[T])
    return ChosenTemperature(best, f"the smallest NLL of {len(labels):,} held-out rows, of {GRID[0]:g} to {GRID[-1]:g}")


def at(temperature: float, state: Any) -> Any:
    """Return clients' sums with another posterior temperature."""
    return state._replace(settings=state.settings.at(temperature))


def model_at(temperature: float, finished: FinishedRun, state: Any) -> Callable:
    """Return the model that predicts by the posterior of a temperature."""
    return bfl.weights.predictive_model(finished.model_fn(), at(temperature, state).pool())
