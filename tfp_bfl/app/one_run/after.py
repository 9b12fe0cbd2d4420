"""A complete run with a posterior at its weights: by one more round over its clients, or several, without training."""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, datasets
from tfp_bfl.app.one_run.client_model import final_weights
from tfp_bfl.app.one_run.records import config_with_code
from tfp_bfl.app.one_run.revise import CLIENTS, new_folder, write
from tfp_bfl.app.options.afterwards import After
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.faces import Later
from tfp_bfl.files import name
from tfp_bfl.options.fits import check_exact as check_exact
from tfp_bfl.options.fits import check_one_network as check_one_network
from tfp_bfl.options.fits import check_start

if TYPE_CHECKING:
    import tensorflow as tf

    from tfp_bfl import keras
else:
    tf = Later("tensorflow")

_ROUNDS = 10
# Posterior temperatures among which held-out rows choose.
GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# How errors name the posterior of an algorithm.
_WHAT = {"laplace": "Laplace's approximation", "last_layer": "The posterior of the last layer"}


def find_posterior(
    run: str | pathlib.Path, output: str | pathlib.Path, options: Any, code: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Write a run with a posterior at its last weights to a new folder, and return its summary.

    Each of the run's clients sends its sums at these weights (`algorithms.laplace`, `algorithms.last_layer`). The
    folder holds config.yaml, clients.npz, saved_model/ and summary.json; `tfp-bfl clients` adds and removes clients.

    Args:
      options: an `After`. A temperature that is None is chosen by held-out rows,
        else it is the default of the algorithm (`choose_temperature`).

    Returns:
      The scores on the test set (for the structure "diagonal" also linearised_*), prior_stddev (one a layer),
      noise_stddev (of an exact regression), log_marginal_likelihood, effective_parameters, distance (to the mode, or of
      the last Newton step), temperature and temperature_by, clients and warnings.

    Raises:
      InvalidArgument: `run` is no such folder or its model has a posterior, `output` exists, or an option does not fit.
        Then nothing is written.
    """
    finished = finished_run(run, output, code, _WHAT[options.algorithm])
    config, data = finished.config, finished.data
    result, state = fit(finished, options)
    value, origin = choose_temperature(options.temperature, finished, state)
    more: dict[str, Any] = {"temperature_by": origin, "warnings": list(result.warnings)}
    if options.algorithm == "last_layer":
        more["rounds"] = len(result.rounds)
    elif options.structure == "diagonal" and data.train.target is None:
        given: dict[str, Any] = {"num_samples": config.num_samples, "seed": config.seed, "linearised": True}
        model = model_at(value, finished, state)
        scores = bfl.evaluation.evaluate(model, data.test.features, data.test.labels, **given).metrics
        more |= {f"linearised_{x}": scores[x] for x in ("accuracy", "test_nll", "ece")}
    return write(finished.folder, config, data, at(value, state), **more)


def free_folder(run: str | pathlib.Path, algorithm: str) -> str:
    """Return the path of a new folder under runs/ for a posterior at the weights of a run."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return str(pathlib.Path("runs") / f"{pathlib.Path(run).resolve().name}-{algorithm}-{now}")


class FinishedRun(NamedTuple):
    """A finished run without a posterior.

    Fields:
      folder: the new folder, which does not exist.
      weights: after the last round.
      held_out: rows on which no client trained, as one client; None without hold_out.
    """

    folder: pathlib.Path
    config: RunConfig
    data: bfl.data.OwnData
    clients: bfl.data.Clients
    model_fn: Callable[[], keras.Model]
    weights: bfl.weights.ModelWeights
    held_out: bfl.data.Clients | None = None


def fit(finished: FinishedRun, options: After) -> tuple[bfl.federated.SimulationResult, Any]:
    """Return the rounds of sums at a run's last weights, whose model predicts, and the `algorithms.held.Held` sums."""
    make = _last_layer if options.algorithm == "last_layer" else _laplace
    process, rounds, held = make(finished, options)
    seed = finished.config.seed
    result = bfl.simulate(process, finished.clients, rounds, start=finished.weights, seed=seed, engine="local")
    return result, held(result.state, process.settings["temperature"])


def _laplace(finished: FinishedRun, options: Any) -> tuple[bfl.federated.BayesianProcess, int, Callable]:
    likelihood: dict[str, Any] = {} if finished.data.train.target is None else {"likelihood": build.LIKELIHOOD}
    spec = finished.data.train.element_spec
    process = bfl.algorithms.laplace(finished.model_fn, element_spec=spec, **options.model_dump(), **likelihood)

    def held(state: Any, temperature: float) -> Any:
        from tfp_bfl.algorithms.laplace.pool import Curvatures
        from tfp_bfl.algorithms.laplace.work import layers_of

        groups = layers_of(finished.model_fn(), options.structure) if options.prior_by_layer else ()
        settings = Curvatures(options.prior_stddev, temperature, groups)
        return bfl.algorithms.held.Held.of_stack(state.step, state.weights, settings)

    return process, 1, held


def _last_layer(finished: FinishedRun, options: Any) -> tuple[bfl.federated.BayesianProcess, int, Callable]:
    target, noise = finished.data.train.target, options.noise_stddev
    if target is None and noise is not None:
        raise InvalidArgument("noise_stddev is of regression, and the run is of classes: leave it out.")
    noise = None if target is None or noise is None else noise / target.scale
    process = bfl.algorithms.last_layer(
        finished.model_fn,
        likelihood="categorical" if target is None else "gaussian",
        element_spec=finished.data.train.element_spec,
        prior_stddev=options.prior_stddev,
        noise_stddev=noise,
        temperature=options.temperature,
    )

    def held(state: Any, temperature: float) -> Any:
        from tfp_bfl.algorithms.laplace.posterior import Head
        from tfp_bfl.algorithms.laplace.step import held_sums

        head = Head(target is not None, options.prior_stddev, noise, temperature)
        return held_sums(state.step, state.weights, head)

    return process, options.rounds or (_ROUNDS if target is None else 1), held


def finished_run(
    run: str | pathlib.Path, output: str | pathlib.Path, code: Mapping[str, str], what: str
) -> FinishedRun:
    """Read a run that ended with point weights; `what` names the posterior."""
    folder, source = new_folder(output), pathlib.Path(run)
    if not (source / "config.yaml").is_file() or not (source / "summary.json").is_file():
        raise InvalidArgument(f"{name(run)} is not the folder of a complete run: give one that `tfp-bfl run` wrote.")
    config = config_with_code(source, code)
    if (source / CLIENTS).is_file():
        raise InvalidArgument(
            f"{name(run)} has a posterior already: give a run of fed_opt, or the one that it was made of."
        )
    check_start(config, what, name(run))
    data = datasets.load(config)
    config = datasets.with_clients(config, data)
    shares = datasets.shares(config, data.train, data.clients)
    trained = build.process(config, data.train, lambda: shares.unlabelled, clients=lambda: shares.clients)
    check_start(config, what, name(run), trained)
    weights = final_weights(trained, config, source)
    if tf.nest.flatten(weights.posterior):
        raise InvalidArgument(f"{config.algorithm} has found a posterior already: give a run of fed_opt.")
    return FinishedRun(folder, config, data, shares.clients, trained.model_fn, weights, shares.calibration)


def choose_temperature(given: float | None, finished: FinishedRun, state: Any) -> tuple[float, str]:
    """Choose the posterior temperature T, and state its origin: as given, by held-out rows, or the library's default.

    With held-out rows, T is the value of `GRID` with the smallest negative log likelihood, a sum over these rows, which
    no client trained on; test rows are not used. Otherwise, and for regression, T is the default of
    `algorithms.laplace`.

    Args:
      state: the clients' sums, a `algorithms.held.Held`, with the default temperature where none is given.
    """
    if given is not None:
        return check_number(given, "temperature"), "given"
    if finished.data.train.target is not None:
        return state.settings.temperature, "the default for regression"
    if finished.held_out is None:
        return state.settings.temperature, "the default: the run has no held-out rows (--hold-out)"
    _, features, labels = finished.held_out.examples(0)
    score = build.scorer(finished.config, finished.data.test)
    nll = {T: score(model_at(T, finished, state), features, labels).metrics["test_nll"] for T in GRID}
    best = min(nll, key=lambda T: nll[T])
    return best, f"the smallest NLL of {len(labels):,} held-out rows, of {GRID[0]:g} to {GRID[-1]:g}"


def at(temperature: float, state: Any) -> Any:
    """Return clients' sums with another posterior temperature."""
    return state._replace(settings=state.settings.at(temperature))


def model_at(temperature: float, finished: FinishedRun, state: Any) -> Callable:
    """Return the model that predicts by the posterior of a temperature."""
    return bfl.weights.predictive_model(finished.model_fn(), at(temperature, state).pool())
