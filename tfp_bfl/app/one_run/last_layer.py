"""A finished run with the exact posterior of its last layer, from sums of its clients."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import temperatures
from tfp_bfl.app.one_run.laplace import FinishedRun, finished_run
from tfp_bfl.app.one_run.revise import CURVATURES, write
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.faces import Later

if TYPE_CHECKING:
    from tfp_bfl.servers import curvatures
else:
    curvatures = Later("tfp_bfl.servers.curvatures")

ROUNDS = 10


def last_layer(
    run: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    prior_stddev: float | None = None,
    noise_stddev: float | None = None,
    temperature: float | None = None,
    rounds: int | None = None,
    code: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Write a run with the posterior of its last layer to a new folder, and return its summary.

    Each of the run's clients sends its sums at the run's weights (`algorithms.last_layer`), in one round for
    regression, in several for classes. The folder is as that of `laplace`.

    Args:
      run: the folder of a complete run of federated averaging, or of another algorithm that trains point weights.
      output: a new folder.
      prior_stddev: of `algorithms.last_layer`.
      temperature: T; None to choose it by held-out rows, else 0.01, for regression 1 (`temperatures.choose`).
      noise_stddev: the same, in the units of the label.
      rounds: number of messages from each client; None for 1 for regression and 10 for classes.
      code: FILE.py:FUNCTION of a run that names code, by option, named again as the code is run.

    Returns:
      The scores on the test set, prior_stddev, noise_stddev (regression), log_marginal_likelihood,
      effective_parameters, distance (of the last Newton step), rounds, clients and warnings.

    Raises:
      InvalidArgument: as `laplace`. Then nothing is written.
    """
    finished = finished_run(run, output, code, "The posterior of the last layer")
    target = finished.data.train.target
    if target is None and noise_stddev is not None:
        raise InvalidArgument(f"noise_stddev is of regression, and {run} is of classes: leave it out.")
    scale = 1.0 if target is None else target.scale
    rounds = rounds or (ROUNDS if target is None else 1)
    noise_stddev = None if noise_stddev is None else noise_stddev / scale
    if temperature is not None:
        check_number(temperature, "temperature")
    result, state = fitted_head(finished, rounds, prior_stddev, noise_stddev)
    chosen = temperatures.choose(temperature, finished, state)
    state = temperatures.at(chosen.value, state)
    approximation = curvatures.approximate(state)
    noise = {} if approximation.noise_stddev is None else {"noise_stddev": approximation.noise_stddev * scale}
    more: dict[str, Any] = {
        "prior_stddev": approximation.prior_stddev.tolist(),
        **{x: getattr(approximation, x) for x in ("log_marginal_likelihood", "effective_parameters", "distance")},
        **noise,
        "structure": "last_layer",
        "temperature": chosen.value,
        "temperature_by": chosen.by,
        "rounds": rounds,
        "warnings": list(result.warnings),
    }
    return write(finished.folder, finished.config, finished.data, CURVATURES, state, curvatures.pool(state), **more)


def fitted_head(
    finished: FinishedRun,
    rounds: int,
    prior_stddev: float | None = None,
    noise_stddev: float | None = None,
    temperature: float | None = None,
) -> tuple[bfl.federated.SimulationResult, Any]:
    """Return the rounds of clients' sums at a run's last weights, whose model predicts, and the sums at the server.

    Args:
      finished: the run.
      rounds: number of messages from each client.
      prior_stddev, temperature: of `algorithms.last_layer`.
      noise_stddev: the same, in standard deviations of the label.
    """
    target = finished.data.train.target
    settings: dict[str, Any] = {"prior_stddev": prior_stddev, "temperature": temperature, "noise_stddev": noise_stddev}
    process = bfl.algorithms.last_layer(
        finished.model_fn,
        likelihood="categorical" if target is None else "gaussian",
        element_spec=finished.data.train.element_spec,
        **settings,
    )
    seed = finished.config.seed
    result = bfl.simulate(process, finished.clients, rounds, start=finished.weights, seed=seed, engine="local")
    settings["temperature"] = process.settings["temperature"]
    head = bfl.posterior.Head(target is not None, **settings)
    return result, bfl.servers.held_sums(result.state.step, result.state.weights, head)
