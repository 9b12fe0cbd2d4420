"""A finished run with a posterior: Laplace's approximation at its weights, by one more round over its clients."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, datasets, temperatures
from tfp_bfl.app.one_run.client_model import final_weights
from tfp_bfl.app.one_run.records import config_with_code, is_private
from tfp_bfl.app.one_run.revise import CURVATURES, new_folder, write
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.faces import Later
from tfp_bfl.files import name
from tfp_bfl.options import fits

if TYPE_CHECKING:
    import tensorflow as tf

    from tfp_bfl import keras
    from tfp_bfl.servers import curvatures
else:
    tf, curvatures = Later("tensorflow"), Later("tfp_bfl.servers.curvatures")


def laplace(
    run: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    structure: str = "last_layer",
    prior_stddev: float | None = None,
    prior_by_layer: bool = False,
    temperature: float | None = None,
    code: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Write a run with Laplace's posterior at its last weights to a new folder, and return its summary.

    Each of the run's clients sends its sums at these weights (`algorithms.laplace`). The folder holds config.yaml,
    curvatures.npz, saved_model/ and summary.json; `tfp-bfl clients` adds and removes clients of it.

    Args:
      run: the folder of a complete run of federated averaging, or of another algorithm that trains point weights.
      output: a new folder.
      structure, prior_stddev, prior_by_layer: of `algorithms.laplace`.
      temperature: T; None to choose it by held-out rows, else 0.01, for regression 1 (`temperatures.choose`).
      code: FILE.py:FUNCTION of a run that names code, by option, named again as the code is run.

    Returns:
      The scores on the test set (for the structure "diagonal" also linearised_*), prior_stddev (one a layer),
      log_marginal_likelihood, effective_parameters, distance to the mode, clients and warnings.

    Raises:
      InvalidArgument: `run` is no such folder or its model has a posterior, `output` exists, or an option is out of its
        range. Then nothing is written.
    """
    finished = finished_run(run, output, code, "Laplace's approximation")
    settings: dict[str, Any] = {"prior_stddev": prior_stddev, "prior_by_layer": prior_by_layer}
    if temperature is not None:
        check_number(temperature, "temperature")
    result, state = approximated(finished, structure=structure, **settings)
    chosen = temperatures.choose(temperature, finished, state)
    state = temperatures.at(chosen.value, state)
    approximation = curvatures.approximate(state)
    more: dict[str, Any] = {
        "prior_stddev": approximation.prior_stddev.tolist(),
        **{x: getattr(approximation, x) for x in ("log_marginal_likelihood", "effective_parameters", "distance")},
        "structure": structure,
        "temperature": chosen.value,
        "temperature_by": chosen.by,
        "warnings": list(result.warnings),
    }
    config, data = finished.config, finished.data
    if structure == "diagonal" and data.train.target is None:
        options: dict[str, Any] = {"num_samples": config.num_samples, "seed": config.seed, "linearised": True}
        model = temperatures.model_at(chosen.value, finished, state)
        scores = bfl.evaluation.evaluate(model, data.test.features, data.test.labels, **options).metrics
        more |= {f"linearised_{x}": scores[x] for x in ("accuracy", "test_nll", "ece")}
    return write(finished.folder, config, data, CURVATURES, state, curvatures.pool(state), **more)


def approximated(
    finished: FinishedRun,
    *,
    structure: str = "last_layer",
    prior_stddev: float | None = None,
    prior_by_layer: bool = False,
    temperature: float | None = None,
) -> tuple[bfl.federated.SimulationResult, Any]:
    """Return the round of clients' sums at a run's last weights, whose model predicts, and the sums at the server.

    Args:
      finished: the run.
      structure, prior_stddev, prior_by_layer, temperature: of `algorithms.laplace`.

    Raises:
      InvalidArgument: an option is out of its range.
    """
    config, data = finished.config, finished.data
    process = bfl.algorithms.laplace(
        finished.model_fn,
        structure=structure,
        prior_stddev=prior_stddev,
        prior_by_layer=prior_by_layer,
        temperature=temperature,
        element_spec=data.train.element_spec,
        likelihood="categorical" if data.train.target is None else build.LIKELIHOOD,
    )
    result = bfl.simulate(process, finished.clients, rounds=1, start=finished.weights, seed=config.seed, engine="local")
    groups = bfl.clients.layers_of(finished.model_fn(), structure) if prior_by_layer else ()
    settings = curvatures.Settings(prior_stddev, process.settings["temperature"], groups)
    return result, curvatures.from_stack(result.state.step, result.state.weights, settings)


class FinishedRun(NamedTuple):
    """A finished run without a posterior.

    Fields:
      folder: the new folder, which does not exist.
      config: of the run.
      data: of the run.
      clients: of the training.
      model_fn: builds the model.
      weights: after the last round.
      held_out: rows on which no client trained, as one client; None without hold_out.
    """

    folder: pathlib.Path
    config: RunConfig
    data: bfl.data.OwnData
    clients: bfl.data.Clients
    model_fn: Callable[[], keras.Model]
    weights: bfl.models.ModelWeights
    held_out: bfl.data.Clients | None = None


def finished_run(
    run: str | pathlib.Path, output: str | pathlib.Path, code: Mapping[str, str], what: str
) -> FinishedRun:
    """Read a run that ended with point weights.

    Args:
      run, output, code: as of `laplace`.
      what: the posterior, as an error names it.

    Raises:
      InvalidArgument: as `laplace`.
    """
    folder, source = new_folder(output), pathlib.Path(run)
    if not (source / "config.yaml").is_file() or not (source / "summary.json").is_file():
        raise InvalidArgument(f"{name(run)} is not the folder of a complete run: give one that `tfp-bfl run` wrote.")
    config = config_with_code(source, code)
    if (source / CURVATURES).is_file():
        raise InvalidArgument(f"{name(run)} has Laplace's posterior already: give the run that it was made of.")
    check_exact(config, what, name(run))
    if config.kind != "deterministic":
        raise InvalidArgument(
            f"{what} is a posterior over point weights, and {name(run)} is a run of kind {config.kind!r}: run it with "
            "--algorithm fed_opt --kind deterministic."
        )
    check_one_network(config, what)
    if config.class_weight is not None:
        raise InvalidArgument(
            f"{name(run)} was trained with class weights, and {what} is of the likelihood without them: run it again "
            "without class_weight."
        )
    data = datasets.load(config)
    config = datasets.with_clients(config, data)
    shares = datasets.shares(config, data.train, data.clients)
    trained = build.process(config, data.train, lambda: shares.unlabelled, clients=lambda: shares.clients)
    check_one_network(config, what, trained)
    check_exact(config, what, name(run), trained)
    weights = final_weights(trained, config, source)
    if tf.nest.flatten(weights.posterior):
        raise InvalidArgument(f"{config.algorithm} has found a posterior already: give a run of fed_opt.")
    return FinishedRun(folder, config, data, shares.clients, trained.model_fn, weights, shares.calibration)


def check_exact(config: RunConfig, what: str, run: str, process: bfl.federated.BayesianProcess | None = None) -> None:
    """Raise InvalidArgument for a run with differential privacy, of which no exact sums may be computed."""
    if is_private(config, process):
        raise InvalidArgument(
            f"{run} is a run with differential privacy, and {what} is computed from exact sums over its examples, "
            "which epsilon does not cover: give a run without it."
        )


def check_one_network(config: RunConfig, what: str, process: bfl.federated.BayesianProcess | None = None) -> None:
    """Check that a training ends with the weights of one network.

    Args:
      config: of the run.
      what: the posterior at these weights, as an error names it.
      process: of the run, which shows it for a user's algorithm too; None before it is built.

    Raises:
      InvalidArgument: it ends with an ensemble, a chain or personal models.
    """
    many = not fits.ends_with_one_network(config)
    if process is not None:
        many = many or process.is_personal or process.thinning is not None
    if many:
        source = "An ensemble" if config.ensemble is not None else config.algorithm
        raise InvalidArgument(
            f"{source} ends with more than one network, and {what} is at the weights of one: use fed_opt without "
            "ensemble."
        )
