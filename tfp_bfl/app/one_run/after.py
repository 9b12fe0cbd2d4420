"""Results of a complete run without training: a posterior at its weights, other clients, the model of a client."""

from __future__ import annotations

import datetime
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import backbone, build, datasets
from tfp_bfl.app.one_run.job import Job, prepare
from tfp_bfl.app.one_run.records import MOST_SUMMARY_BYTES, config_with_code, in_columns, read_json
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.afterwards import After
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.own_model import NO_CODE
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.faces import keras, tf
from tfp_bfl.files import Path, name
from tfp_bfl.files.writing import begun
from tfp_bfl.options.fits import check_exact as check_exact
from tfp_bfl.options.fits import check_one_network as check_one_network
from tfp_bfl.options.fits import check_start
from tfp_bfl.options.methods import ALGORITHMS, PERSONAL, in_words

_ROUNDS, _ROUNDS_OF_SOFTMAX = 10, 21
# Posterior temperatures among which held-out rows choose.
GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# How errors name the posterior of an algorithm.
_WHAT = {"laplace": "Laplace's approximation", "last_layer": "The posterior of the last layer", "head": "A head"}


def find_posterior(run: Path, output: Path, options: Any, code: Mapping[str, str] = {}) -> dict[str, Any]:
    """Write a run with a posterior at its last weights to a new folder, and return its summary.

    Each of the run's clients sends its sums at these weights (`algorithms.laplace`, `algorithms.last_layer`). The
    folder holds config.yaml, clients.npz, saved_model/ and summary.json; `tfp-bfl clients` adds and removes clients.

    Options are an `After`; a temperature that is None is that of `choose_temperature`. The summary has the scores on
    the test set (for the structure "diagonal" also linearised_*), prior_stddev (one a layer), noise_stddev (of an exact
    regression), log_marginal_likelihood, effective_parameters, distance (to the mode, or of the last Newton step),
    temperature and temperature_by, clients and warnings.
    """
    folder, source, what = new_folder(output), pathlib.Path(run), _WHAT[options.algorithm]
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
    # Whatever trained it, the sums need no workers.
    job = prepare(config.model_copy(update={"engine": None}), data, NO_CODE)
    check_start(config, what, name(run), job.process)
    weights = final_weights(job.process, config, source)
    if tf.nest.flatten(weights.posterior):
        raise InvalidArgument(f"{config.algorithm} has found a posterior already: give a run of fed_opt.")
    result, state = fit(job, weights, options)
    more: dict[str, Any] = {"warnings": list(result.warnings)}
    if options.algorithm == "head":
        return write(folder, config, data, state, **more, rounds=len(result.rounds))
    value, origin = choose_temperature(options.temperature, job, state)
    more["temperature_by"] = origin
    if options.algorithm == "last_layer":
        more["rounds"] = len(result.rounds)
    elif options.structure == "diagonal" and job.train.target is None:
        score = build.scorer(config, job.test)
        scores = score(model_at(value, job, state), job.test.features, job.test.labels, linearised=True)
        more |= {f"linearised_{x}": scores.metrics[x] for x in ("accuracy", "test_nll", "ece")}
    return write(folder, config, data, at(value, state), **more)


def free_folder(run: Path, algorithm: str) -> str:
    """Return the path of a new folder under runs/ for a posterior at the weights of a run."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return str(pathlib.Path("runs") / f"{pathlib.Path(run).resolve().name}-{algorithm}-{now}")


def fit(job: Job, weights: bfl.weights.ModelWeights, options: After) -> tuple[bfl.federated.SimulationResult, Any]:
    """Return the rounds of sums at trained weights, whose model predicts, and the `algorithms.held.Held` sums."""
    make = {"laplace": _laplace, "last_layer": _last_layer, "head": _head}[options.algorithm]
    process, rounds, held = make(job, options)
    result = bfl.simulate(process, job.clients, rounds, start=weights, seed=job.config.seed, engine="local")
    return result, held(result.state, process.settings.get("temperature"))


def _laplace(job: Job, options: Any) -> tuple[bfl.federated.BayesianProcess, int, Callable]:
    likelihood: dict[str, Any] = {} if job.train.target is None else {"likelihood": build.LIKELIHOOD}
    model_fn, spec = job.process.model_fn, job.train.element_spec
    process = bfl.algorithms.laplace(model_fn, element_spec=spec, **options.model_dump(), **likelihood)
    return process, 1, functools.partial(_held, process, options, {})


def _held(process: bfl.federated.BayesianProcess, options: Any, exact: dict[str, Any], state: Any, heat: float) -> Any:
    """Return the clients' sums in the last state of `laplace`, or with settings of an `exact` last layer."""
    from tfp_bfl.algorithms.laplace.pool import Curvatures
    from tfp_bfl.algorithms.laplace.posterior import Head
    from tfp_bfl.algorithms.laplace.step import held_sums
    from tfp_bfl.algorithms.laplace.work import layers_of

    by_layer = not exact and options.prior_by_layer
    groups = layers_of(process.model_fn(), options.structure) if by_layer else ()
    head = Head(prior_stddev=options.prior_stddev, temperature=heat, **exact)
    return held_sums(state.step, state.weights, Curvatures(head, bool(exact), groups))


def _last_layer(job: Job, options: Any) -> tuple[bfl.federated.BayesianProcess, int, Callable]:
    target, noise = job.train.target, options.noise_stddev
    if target is None and noise is not None:
        raise InvalidArgument("noise_stddev is of regression, and the run is of classes: leave it out.")
    exact = {"gaussian": target is not None, "noise_stddev": noise and target and noise / target.scale}
    process = bfl.algorithms.last_layer(
        job.process.model_fn,
        likelihood="categorical" if target is None else "gaussian",
        element_spec=job.train.element_spec,
        noise_stddev=exact["noise_stddev"],
        **options.model_dump(include={"prior_stddev", "structure", "temperature"}),
    )
    of_classes = _ROUNDS_OF_SOFTMAX if options.structure == "kronecker" else _ROUNDS
    rounds = options.rounds or (of_classes if target is None else 1)
    return process, rounds, functools.partial(_held, process, options, exact)


def _head(job: Job, options: Any) -> tuple[bfl.federated.BayesianProcess, int, Callable]:
    if job.train.target is not None:
        raise InvalidArgument("A head is of classes, and the run is of regression: use last_layer.")
    given = options.model_dump()
    process = bfl.algorithms.head(job.process.model_fn, element_spec=job.train.element_spec, **given)

    def held(state: Any, temperature: None) -> Any:
        del temperature
        from tfp_bfl.algorithms.heads.kept import rows_of_clients, settings_of
        from tfp_bfl.algorithms.heads.posterior import HeadSettings

        settings = settings_of(state.step, HeadSettings(options.head, None, options.softmax_temperature))
        weights = tf.nest.map_structure(np.asarray, state.weights)
        return bfl.algorithms.held.Held(rows_of_clients(process, state.weights, job.clients), weights, settings)

    return process, _ROUNDS_OF_SOFTMAX if options.head == "softmax" else 2, held


def choose_temperature(given: float | None, job: Job, state: Any) -> tuple[float, str]:
    """Choose the posterior temperature T, and state its origin: as given, by held-out rows, or the library's default.

    With held-out rows, T is the value of `GRID` with the smallest negative log likelihood, a sum over these rows, which
    no client trained on; test rows are not used. Otherwise, and for regression, T is the default of
    the algorithm, which the sums `state` have.
    """
    if given is not None:
        return check_number(given, "temperature"), "given"
    if job.train.target is not None:
        return state.settings.head.temperature, "the default for regression"
    if job.shares.calibration is None:
        return state.settings.head.temperature, "the default: the run has no held-out rows (--hold-out)"
    _, features, labels = job.shares.calibration.examples(0)
    score = build.scorer(job.config, job.test)
    nll = {T: score(model_at(T, job, state), features, labels).metrics["test_nll"] for T in GRID}
    best = min(nll, key=lambda T: nll[T])
    return best, f"the smallest NLL of {len(labels):,} held-out rows, of {GRID[0]:g} to {GRID[-1]:g}"


def at(temperature: float, state: Any) -> Any:
    """Return clients' sums with another posterior temperature."""
    return state._replace(settings=state.settings.at(temperature))


def model_at(temperature: float, job: Job, state: Any) -> Callable:
    """Return the model that predicts by the posterior of a temperature."""
    return bfl.weights.predictive_model(_model_fn(job.config, job.test, state)(), at(temperature, state).pool())


def _model_fn(config: RunConfig, source: bfl.data.Source, state: Any) -> Callable[[], keras.Model]:
    """Return the function that builds the model that predicts; with sums of Laplace or a last layer without dropout."""
    from tfp_bfl.algorithms.heads.kept import Heads
    from tfp_bfl.algorithms.laplace.pool import Curvatures
    from tfp_bfl.algorithms.laplace.work import network_of

    model_fn = build.model_fn(config, source)
    return network_of(model_fn) if isinstance(state.settings, (Curvatures, Heads)) else model_fn


CLIENTS = "clients.npz"
Change = Callable[[Any], Any]
# Entries of a summary that hold for the run with other clients too.
_KEPT = ("trained", "temperature_by", "rounds")


def read_state(run: Path) -> Any:
    """Return the clients that a run's folder holds, a `algorithms.held.Held`."""
    path = pathlib.Path(run) / CLIENTS
    if not path.is_file():
        raise InvalidArgument(
            f"{run} holds no clients: it must be the folder of a complete run of the algorithm fl_swag or "
            f"partitioned_vi, or of `tfp-bfl laplace`, `last-layer` or head with --start, with {CLIENTS}."
        )
    return bfl.algorithms.held.Held.load(path)


def add(other: Path, names: object, replace: bool) -> Change:
    """Return the change that takes clients of another run, all of them or those named."""
    taken = read_state(other)
    return lambda state: state.join(taken, names or None, replace)


def remove(names: Any) -> Change:
    """Return the change that leaves clients out, as if they had never taken part."""
    return lambda state: state.remove(*names)


def describe(state: Any) -> str:
    """Return a table of the clients: their examples and how much each one contributes, or how sure it is."""
    heading, numbers = state.settings.measured(state.rows)
    rows = [("client", "examples", heading)]
    rows += [(name, str(int(row.num_examples)), f"{x:.2g}") for (name, row), x in zip(state.rows.items(), numbers)]
    return in_columns(rows, str.rjust)


def revise(run: Path, change: Change, output: Path, code: Mapping[str, str] = {}) -> dict[str, Any]:
    """Write a run with other clients to a new folder, and return its summary; the old one stays as it is.

    The folder holds config.yaml, clients.npz, saved_model/ and summary.json, and can be revised again. `change` is of
    `add` or `remove`.
    """
    folder = new_folder(output)
    state = change(read_state(run))
    config = config_with_code(run, code)
    data = datasets.load(config)
    (summary,) = read_json(pathlib.Path(run) / "summary.json", "summary", MOST_SUMMARY_BYTES)
    return write(folder, config, data, state, **{name: summary[name] for name in _KEPT if summary.get(name)})


def new_folder(output: Path) -> pathlib.Path:
    """Return the path of a folder that is still to be made."""
    folder = pathlib.Path(output)
    if os.path.lexists(folder):
        raise InvalidArgument(f"{folder} exists already: give --output a new folder, nothing is overwritten.")
    return folder


def write(folder: pathlib.Path, config: RunConfig, data: bfl.data.OwnData, state: Any, **more: Any) -> dict[str, Any]:
    """Write the folder of a server's clients: config.yaml, clients.npz, saved_model/ and summary.json.

    `more` are entries of the summary besides the scores on the test set, the clients' names and what the state states.
    """
    train, test = data.train, data.test
    make = _model_fn(config, test, state)
    server = datasets.shares(config, train, data.clients).server if config.algorithm == "fl_swag" else None
    model = bfl.weights.predictive_model(make(), state.pool(), build.batch_norm_examples(config, server))
    scores = build.scorer(config, test)(model, test.features, test.labels).metrics
    names, trained = list(state.rows), more.get("trained") or {}
    weights = resolve.weights_of(build.model_fn(config, test)())
    found = state.settings.found(state.rows, state.weights)
    head = found.get("head")
    if "noise_stddev" in found and train.target is not None:  # In the units of the label.
        found["noise_stddev"] *= train.target.scale
    own = {name: x for name, x in {**found, **more}.items() if name in ("temperature", "temperature_by")}
    if head:
        own["weights"] = f"point weights with the exact head {head!r}"
    elif own:
        exact = "noise_stddev" in found
        weights_are = "with the exact posterior of the last layer" if exact else "with Laplace's posterior"
        own["weights"] = f"point weights {weights_are}{', without dropout' * (weights == resolve.DROPOUT)}"
    settings = {**resolve.stated(config, weights, trained), **own}
    summary = {**scores, **found, **more, "method": resolve.method(settings), "clients": names}
    info = build.export_info(config, train, scores, weights, trained, own)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} can't be made ({error.strerror}): give --output another folder.") from None
    with begun(folder, remove=True):
        (folder / "config.yaml").write_text(config.record(), encoding="utf-8")
        state.save(folder / CLIENTS)
        # Who left has left the card too.
        info = info._replace(data={**(info.data or {}), "clients": names})
        network = backbone.model_of(config, train.image_shape)
        bfl.export.save(model, folder / "saved_model", info, backbone=network)
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def client_model(run: Path, client: int, code: Mapping[str, str] = {}) -> tuple[keras.Model, bfl.export.Info]:
    """Return the model that predicts for a client, from 0, after a run's last round, with scores on the whole test set.

    A client with a number beyond the run's clients was never in training, and gets what the algorithm has for
    such; meta_vd the variances of the mean embedding.
    """
    folder = pathlib.Path(run)
    info = bfl.export.read_info(bfl.export.find(run))
    if not (folder / "config.yaml").is_file():
        raise InvalidArgument(f"{name(run)} is a model, not the folder of a run, which holds those of the clients.")
    config = config_with_code(folder, code)
    if not config.is_personal:
        personal = in_words(algorithm for algorithm, method in ALGORITHMS.items() if PERSONAL in method.gives)
        raise InvalidArgument(
            f"{config.algorithm} makes one model for all clients, and only {personal} one for each: leave --client out."
        )
    test = datasets.load(config).test
    process = build.process(config, test, lambda: None)
    weights = process.personal_weights(_last_checkpoint(process, config, folder).state, client)
    model = bfl.weights.predictive_model(process.model_fn(), weights)
    scores = build.scorer(config, test)(model, test.features, test.labels).metrics
    of_client = {"client": client, "client_in_training": client < config.clients}
    return model, info._replace(metrics=scores, data={**(info.data or {}), **of_client})


def final_weights(
    process: bfl.federated.BayesianProcess, config: RunConfig, folder: pathlib.Path
) -> bfl.weights.ModelWeights:
    """Read the weights with which a run's model predicts, of its last round or averaged over several."""
    state, record = _last_checkpoint(process, config, folder)
    weights = process.predictive_weights(state)
    number, done = config.average_rounds or 1, int(state.round)
    if number == 1:
        return weights
    average = bfl.federated.averaging.average_of(process, number, done, weights)
    average.restore(done, record.average_from, record.sums)
    return average.weights()


def _last_checkpoint(process: bfl.federated.BayesianProcess, config: RunConfig, folder: pathlib.Path) -> Any:
    first = process.local.initialize()._replace(seed=np.int32(config.seed))
    checkpoints = bfl.federated.Checkpoints(folder / "checkpoints", process.description)
    checkpoint = checkpoints.latest(first, process.state_spec)
    if checkpoint is None:
        raise InvalidArgument(f"The run in {name(folder)} has no checkpoints any more, which hold its weights.")
    return checkpoint
