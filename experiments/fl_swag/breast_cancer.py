"""SWAG and FL-SWAG beside Hamiltonian Monte Carlo, on Breast Cancer.

    python -m experiments.fl_swag.breast_cancer --output runs/fl_swag/breast_cancer

Every posterior is a folder under OUTPUT; what is there is not sampled again. Table and figures are written each time.
"""

from __future__ import annotations

import functools
import json
import pathlib
import time
from typing import Any, NamedTuple

import click
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import tfp_bfl as bfl
from experiments.fl_swag import hmc, surface
from experiments.fl_swag.geometry import flat
from experiments.fl_swag.methods import posteriors_of
from experiments.fl_swag.surface_figures import contour_figure, scatter_figure, surface_figure
from experiments.tables import write
from tfp_bfl.bench.cells import SUMMARY, check_cells, run_once
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import LowRank, gaussian_product

CHAINS: dict[str, Any] = {"num_chains": 4, "num_results": 500, "num_burnin": 100, "seed": 0}

TRAINING: dict[str, Any] = {"batch_size": 32, "learning_rate": 0.2, "max_columns": 20, "min_variance": 1e-6}
CENTRAL: dict[str, Any] = {"local_epochs": 400, "burn_in_epochs": 200}
# A client has about a fifth of the data, and its epochs have a fifth of the steps.
FEDERATED: dict[str, Any] = {"local_epochs": 2000, "burn_in_epochs": 1000}
CLIENTS: dict[str, Any] = {"num_clients": 5, "other_interest": 0.25, "min_examples": 30}
STARTS = 4

GRID = 61
DPI = 110
SCORES = {
    "accuracy": bfl.evaluation.accuracy,
    "nll": bfl.evaluation.negative_log_likelihood,
    "ece": bfl.evaluation.expected_calibration_error,
    "brier": bfl.evaluation.brier_score,
}
# What the plane is drawn through, and what is shown on it.
OF_PLANE = ("HMC", "SWAG")
SHOWN = ("HMC", "SWAG", "FL-SWAG", "FL-SWAG, diagonal")
DIGITS = {"median sd of a weight": 5, "norm of a draw": 1, "train nll": 1, "negative log posterior": 0, "seconds": 0}


class Sizes(NamedTuple):
    """Sizes of the experiment, smaller in tests."""

    chains: dict[str, Any] = CHAINS
    central: dict[str, Any] = CENTRAL
    federated: dict[str, Any] = FEDERATED
    grid: int = GRID

    @property
    def options(self) -> dict[str, Any]:
        """The options that determine the posteriors."""
        own = {"chains": self.chains, "central": self.central, "federated": self.federated}
        return {**own, "training": TRAINING, "clients": CLIENTS}

    @property
    def num_draws(self) -> int:
        return self.chains["num_chains"] * self.chains["num_results"]


class Posterior(NamedTuple):
    """A method's draws, and its seconds."""

    draws: np.ndarray
    seconds: float


def weight_decay(num_examples: int) -> float:
    """Return the weight decay of a mean loss over N examples: the prior N(0, t^2), with gradient of ||w||^2 / (2 N
    t^2).

    With the N of all clients' examples it gives client k the prior to the power of N_k / N, and their product one.
    """
    return 1 / (num_examples * hmc.PRIOR_STDDEV**2)


def train(partition: Any, epochs: dict[str, Any], prior: bool, seed: int, runtime: Any) -> tuple[list[LowRank], float]:
    """Return the clients' SWAG posteriors over all weights, and the seconds of the round; with or without the prior."""
    source = bfl.data.load(hmc.DATASET, split="train")
    clients = source.partition(partition, seed=0)
    process = bfl.algorithms.fl_swag(
        functools.partial(hmc.model, seed),
        curvature=False,
        min_examples=1,
        element_spec=clients.element_spec,
        weight_decay=weight_decay(len(source.labels)) if prior else 0.0,
        **TRAINING,
        **epochs,
    )
    result = bfl.simulate(process, clients, rounds=1, seed=seed, runtime=runtime)
    return posteriors_of(result.state.step), result.rounds[0]["train_seconds"]


def draws_of(q: LowRank, number: int, seed: int = 0) -> np.ndarray:
    """Return draws from a posterior, as vectors: [S, D]."""
    leaves = bfl.posterior.sample(q, tf.constant([seed, 1]), number)
    return np.concatenate([np.asarray(x).reshape(number, -1) for x in leaves], 1).astype(np.float32)


def save(folder: pathlib.Path, draws: np.ndarray, seconds: float, options: dict[str, Any], **facts: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "draws.npy", draws)
    summary = {"options": options, "seconds": seconds, **facts}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1, default=lambda x: np.asarray(x).tolist()))


def load(folder: pathlib.Path) -> Posterior:
    return Posterior(np.load(folder / "draws.npy"), json.loads((folder / SUMMARY).read_text())["seconds"])


def sample_chains(folder: pathlib.Path, sizes: Sizes) -> None:
    result = hmc.run(**sizes.chains)
    number = bfl.posterior.samples.num_draws(result.samples)
    draws = np.concatenate([np.asarray(x).reshape(number, -1) for x in result.samples.values], 1)
    effective = np.quantile(result.effective_sample_size, [0, 0.5, 1])
    agreement = {
        "effective_sample_size": effective,
        "potential_scale_reduction": result.potential_scale_reduction.max(),
    }
    save(folder, draws, result.seconds, sizes.options, acceptance_rate=result.acceptance_rate, **agreement)


def sample_swag(folder: pathlib.Path, sizes: Sizes, prior: bool, seed: int, runtime: Any) -> None:
    (q,), seconds = train(bfl.data.iid(1), sizes.central, prior, seed, runtime)
    save(folder, draws_of(q, sizes.num_draws), seconds, sizes.options)


def say_of_users(clients: list[LowRank], number: int = 200) -> float:
    """Return the median share of the product's precision that a weight has from the client in which it is largest.

    Over the weights that are largest in any client; 1 / K if all clients were as sure of them. Correlations do not
    count.
    """
    spread = [bfl.posterior.marginals(q) for q in clients]
    means, precisions = np.abs([flat(q.mean) for q in spread]), 1 / np.stack([flat(q.variance) for q in spread])
    weights = np.argsort(-means.max(0))[:number]
    shares = precisions / precisions.sum(0)
    return float(np.median(shares[means.argmax(0), np.arange(shares.shape[1])][weights]))


def sample_product(folder: pathlib.Path, sizes: Sizes, prior: bool, runtime: Any) -> None:
    """Write samples of both products of one training of the clients, and the mean of their means, one point."""
    clients, seconds = train(bfl.data.noniid_datasets(**CLIENTS), sizes.federated, prior, 0, runtime)
    means = np.stack([flat(q.mean) for q in clients]).astype(np.float32)
    save(folder / "average", means.mean(0, keepdims=True), seconds, sizes.options)
    for name, diagonal_only in (("diagonal", True), ("exact", False)):
        began = time.perf_counter()
        q = gaussian_product(clients, diagonal_only=diagonal_only)
        save(folder / name, draws_of(q, sizes.num_draws), seconds + time.perf_counter() - began, sizes.options)
    directions = means / np.linalg.norm(means, axis=1, keepdims=True)
    facts: dict[str, Any] = {
        "options": sizes.options,
        "say_of_users": say_of_users(clients),
        "norms": np.linalg.norm(means, axis=1),
        "cosines": directions @ directions.T,
    }
    (folder / SUMMARY).write_text(json.dumps(facts, indent=1, default=lambda x: x.tolist()))


def sample_all(output: pathlib.Path, sizes: Sizes) -> None:
    """Fill the folders of all posteriors that are not there yet.

    Raises:
      InvalidArgument: one that is there is of other options.
    """
    check_cells({path.parent.name: sizes.options for path in output.glob(f"*/{SUMMARY}")}, output)
    run_once(output / "hmc", lambda: sample_chains(output / "hmc", sizes))
    with bfl.engines.tff.local_workers() as runtime:
        for prior, starts in ((True, STARTS), (False, 1)):
            for seed in range(starts):
                folder = output / f"swag,prior={prior},seed={seed}"
                run_once(folder, functools.partial(sample_swag, folder, sizes, prior, seed, runtime))
            folder = output / f"fl_swag,prior={prior}"
            run_once(folder, functools.partial(sample_product, folder, sizes, prior, runtime))


def posteriors(output: pathlib.Path) -> dict[str, Posterior]:
    """Return all that is there, by name; of several starts, a part of each one's draws."""
    chains = load(output / "hmc")
    one, share = len(chains.draws) // CHAINS["num_chains"], chains.seconds / CHAINS["num_chains"]
    starts = [load(output / f"swag,prior=True,seed={seed}") for seed in range(STARTS)]
    mixed = np.concatenate([start.draws[k :: len(starts)] for k, start in enumerate(starts)])
    found = {
        "HMC": chains,
        "HMC, one chain": Posterior(chains.draws[:one], share),
        "SWAG": starts[0],
        f"SWAG, {STARTS} starts": Posterior(mixed, sum(start.seconds for start in starts)),
        "SWAG, no prior": load(output / "swag,prior=False,seed=0"),
    }
    names = {"exact": "FL-SWAG", "diagonal": "FL-SWAG, diagonal", "average": "mean of the clients' means"}
    for prior in (True, False):
        for part, name in names.items():
            found[name + ("" if prior else ", no prior")] = load(output / f"fl_swag,prior={prior}" / part)
    return found


def table(found: dict[str, Posterior], weights: bfl.clients.Potential) -> list[list[str]]:
    """Return a row for each posterior; the first is what others' predictions are compared with.

    Distance to HMC: mean_n 1/2 sum_c |p_nc - h_nc| of the mean predictions on the test split.
    """
    train_split, test = (bfl.data.load(hmc.DATASET, split=split) for split in ("train", "test"))
    reference, rows = None, []
    for name, posterior in found.items():
        draws = tf.constant(posterior.draws)
        probabilities = surface.probabilities_of(weights, draws, tf.constant(test.features))
        mean = tf.reduce_mean(probabilities, 0).numpy()
        reference = mean if reference is None else reference
        nll, squares = (
            surface.losses_of(weights, draws, tf.constant(train_split.features), tf.constant(train_split.labels))
            .numpy()
            .T
        )
        traces = bfl.evaluation.scalars(bfl.evaluation.decompose(probabilities))
        epistemic, aleatoric = np.mean(traces.epistemic_trace), np.mean(traces.aleatoric_trace)
        row = {key: float(score(mean, test.labels)) for key, score in SCORES.items()}
        row |= {
            "epistemic share": epistemic / (epistemic + aleatoric),
            "distance to HMC": np.abs(mean - reference).sum(-1).mean() / 2,
            "median sd of a weight": np.median(posterior.draws.std(0)),
            "norm of a draw": np.sqrt(squares).mean(),
            "train nll": nll.mean(),
            "negative log posterior": (nll + squares / (2 * hmc.PRIOR_STDDEV**2)).mean(),
            "seconds": posterior.seconds,
        }
        rows.append([name, *(f"{value:.{DIGITS.get(key, 4)}f}" for key, value in row.items())])
    return [["method", *row], *rows]


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("runs/fl_swag/breast_cancer"),
    show_default=True,
)
def main(output: pathlib.Path) -> None:
    """Sample what is not there, and write the table and the figures."""
    try:
        run(output, Sizes())
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None


def run(output: pathlib.Path, sizes: Sizes) -> None:
    sample_all(output, sizes)
    found = posteriors(output)
    weights = bfl.clients.Potential(hmc.model())
    write(table(found, weights), output / "breast_cancer")
    draws = {name: found[name].draws for name in SHOWN}
    for name, figure in figures(weights, draws, sizes.grid).items():
        (output / "figures").mkdir(exist_ok=True)
        figure.savefig(output / "figures" / f"breast_cancer-{name}.png", dpi=DPI)


def figures(weights: bfl.clients.Potential, draws: dict[str, np.ndarray], num_points: int) -> dict[str, Figure]:
    """Draw the samples and the loss on their principal plane, and the loss on a plane on which draws of HMC do lie."""
    train_split = bfl.data.load(hmc.DATASET, split="train")

    def on(plane: surface.Plane, draws: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], surface.Surface]:
        points = {name: surface.project(plane, rows) for name, rows in draws.items()}
        axes = surface.around(np.concatenate(list(points.values())), num_points)
        examples = train_split.features, train_split.labels
        return points, surface.loss_surface(weights, plane, *axes, *examples, hmc.PRIOR_STDDEV)

    plane = surface.principal_plane([draws[name] for name in OF_PLANE])
    points, loss = on(plane, draws)
    # The last draws of the first and of the last chain.
    two = draws["HMC"][[len(draws["HMC"]) // CHAINS["num_chains"] - 1, -1]]
    through = surface.plane_through(np.stack([draws["SWAG"].mean(0), *two]))
    on_it, loss_through = on(through, {"HMC, two draws": two, "SWAG": draws["SWAG"]})
    return {
        "samples": scatter_figure(points, plane),
        "loss_contours": contour_figure(points, plane, loss),
        "loss_surface": surface_figure(points, plane, loss),
        "loss_between_draws": contour_figure(on_it, through, loss_through),
    }


if __name__ == "__main__":
    main()
