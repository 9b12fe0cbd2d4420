"""Stacks of clients' weights [S, D], by setting.

All clients train from the same global weights. These are a run of federated averaging's before a round, with the local
epochs of the base setting: of settings with one alpha and round only the clients' own training differs. Stacks and
global weights that are there are not made again.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.kernel_posterior.config import DATASETS, NORMALITY
from experiments.kernel_posterior.models import NETWORKS
from experiments.kernel_posterior.run import Cell, build, clients_and_test
from tfp_bfl.bench.cells import SUMMARY, check_cells, is_done, run_once
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, ServerMessage, get_weights

STACK, GLOBAL = "stack.npy", "weights.npz"


class Setting(NamedTuple):
    """A setting of the study: the factors that determine a stack of clients."""

    alpha: float
    local_epochs: int
    clients: int
    round: int

    def __str__(self) -> str:
        return f"alpha {self.alpha:g}, {self.local_epochs} epochs, {self.clients} clients, round {self.round}"


def base(size: str) -> Setting:
    """Return the setting that the others differ from."""
    return Setting(**NORMALITY[size]["base"])


def settings(size: str) -> list[Setting]:
    """Return all settings: one factor at a time beside the base, or the grid of them."""
    varied = NORMALITY[size]["varied"]
    if NORMALITY[size]["grid"]:
        return [Setting(*values) for values in itertools.product(*(varied[name] for name in Setting._fields))]
    found = [base(size)._replace(**{name: value}) for name in Setting._fields for value in varied[name]]
    return list(dict.fromkeys([base(size), *found]))


def along(size: str, factor: str) -> list[Setting]:
    """Return the settings that differ from the base in one factor, by its values."""
    return [base(size)._replace(**{factor: value}) for value in sorted(NORMALITY[size]["varied"][factor])]


def cell_of(setting: Setting, size: str, seed: int) -> Cell:
    """Return the run of federated averaging that a setting's clients belong to, as `run.build` takes it."""
    options = NORMALITY[size]
    own = {name: options[name] for name in ("examples", "cohort_size")}
    data = {**DATASETS["mnist"], "dataset": "mnist", "partition": f"lda:{setting.alpha:g}", **own}
    method = {"algorithm": "FedAvg", "server": "sgd 0.5", "local_epochs": base(size).local_epochs}
    return {**data, **method, "clients": options["federation"], "seed": seed, "rounds": setting.round}


def global_folder(output: pathlib.Path, setting: Setting, seed: int) -> pathlib.Path:
    """Return the folder of the global weights of an alpha."""
    return output / "global" / f"alpha={setting.alpha:g},seed={seed}"


def stack_folder(output: pathlib.Path, setting: Setting, seed: int) -> pathlib.Path:
    """Return the folder of the weights of all clients, which settings with fewer clients share."""
    name = f"alpha={setting.alpha:g},epochs={setting.local_epochs},round={setting.round},seed={seed}"
    return output / "stacks" / name


def model_of(cell: Cell) -> tf.keras.Model:
    """Return the network with its initial weights."""
    return NETWORKS[cell["network"]](10, cell["seed"])


def flat(weights: Iterable[Any]) -> np.ndarray:
    """Return all leaves in one vector [D]."""
    return np.concatenate([np.ravel(w) for w in weights])


def unflat(vector: np.ndarray, model: tf.keras.Model) -> ModelWeights:
    """Return a vector [D] as the weights of a model of point weights."""
    shapes = [v.shape for v in model.trainable_variables]
    parts = np.split(vector, np.cumsum([shape.num_elements() for shape in shapes])[:-1])
    point = tuple(tf.constant(part.reshape(shape)) for part, shape in zip(parts, shapes))
    return ModelWeights(MeanField((), ()), point, MeanField((), ()))


def write_global_weights(folder: pathlib.Path, cell: Cell, rounds: Iterable[int], runtime: Any) -> None:
    """Run federated averaging, and keep the weights before each of the rounds and their accuracy on the test set."""
    clients, test = clients_and_test(cell)
    found, accuracy = {}, {}
    for number in sorted(rounds):
        model = model_of(cell)
        if number > 1:
            options = {"checkpoint_dir": folder / "checkpoints", "checkpoint_every": 5, "keep_checkpoints": 1}
            process = build(cell, clients)
            where = {"cohort_size": cell["cohort_size"], "seed": cell["seed"], "runtime": runtime}
            model = bfl.simulate(process, clients, rounds=number - 1, **where, **options).model
        found[str(number)] = flat(get_weights(model).point)
        scored = test.subset(min(2000, test.num_examples), seed=0)
        accuracy[str(number)] = bfl.evaluation.evaluate(model, scored.features, scored.labels).metrics["accuracy"]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / GLOBAL, **found)
    (folder / SUMMARY).write_text(json.dumps({"options": cell, "accuracy": accuracy}))


def train_clients(cell: Cell, start: np.ndarray, local_epochs: int, round_number: int) -> np.ndarray:
    """Return the weights of all clients after their training from `start` [D]: [S, D]."""
    clients, _ = clients_and_test(cell)
    model_fn = functools.partial(model_of, cell)
    work = bfl.clients.variational(
        model_fn,
        local_epochs=local_epochs,
        batch_size=cell["batch_size"],
        learning_rate=cell["learning_rate"],
        optimizer_fn=lambda: tf.keras.optimizers.SGD(momentum=0.9),
    )()
    message = ServerMessage(unflat(start, model_fn()), tf.constant(round_number - 1))
    seed = tf.constant([cell["seed"], round_number])

    @functools.partial(tf.function, input_signature=clients.element_spec, autograph=False)
    def of_client(*examples: tf.Tensor) -> tf.Tensor:
        examples = type(clients.element_spec)(*examples)
        own = tf.random.experimental.stateless_fold_in(seed, examples.client[0])
        return tf.concat([tf.reshape(w, [-1]) for w in work(message, examples, own).weights.point], 0)

    return np.stack([of_client(*clients.examples(k)).numpy() for k in range(clients.num_clients)])


def write_stack(folder: pathlib.Path, setting: Setting, cell: Cell, start: np.ndarray) -> None:
    """Train all clients and keep their weights."""
    started = time.perf_counter()
    stack = train_clients(cell, start, setting.local_epochs, setting.round)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / STACK, stack)
    options = stack_of(cell, setting)
    (folder / SUMMARY).write_text(json.dumps({"options": options, "seconds": time.perf_counter() - started}))


def stack_of(cell: Cell, setting: Setting) -> Cell:
    """Return the options of a stack of the clients of a run."""
    return {**cell, "local_epochs": setting.local_epochs, "round": setting.round}


def check(size: str, output: pathlib.Path, seeds: Iterable[int]) -> None:
    """Check that the existing files belong to this study.

    Raises:
      InvalidArgument: a folder holds weights of other options.
    """
    wanted = settings(size)
    first = {s.alpha: s for s in reversed(wanted)}
    for seed in seeds:
        starts = {global_folder(output, s, seed).name: cell_of(s, size, seed) for s in first.values()}
        check_cells(starts, output / "global")
        stacks = {stack_folder(output, s, seed).name: stack_of(cell_of(s, size, seed), s) for s in wanted}
        check_cells(stacks, output / "stacks")


def collect(size: str, output: pathlib.Path, seeds: Iterable[int]) -> None:
    """Make what is missing: global weights first, then stacks.

    Raises:
      InvalidArgument: as `check`.
    """
    wanted, seeds = settings(size), tuple(seeds)
    check(size, output, seeds)
    missing = [s for s in wanted for seed in seeds if not is_done(global_folder(output, s, seed))]
    if missing:
        with bfl.engines.tff.local_workers() as runtime:
            for alpha, seed in itertools.product(dict.fromkeys(s.alpha for s in missing), seeds):
                same = [s for s in wanted if s.alpha == alpha]
                rounds = {s.round for s in same}
                folder, cell = global_folder(output, same[0], seed), cell_of(same[0], size, seed)
                run_once(folder, functools.partial(write_global_weights, folder, cell, rounds, runtime))
                click.echo(f"global weights, alpha {alpha:g}, seed {seed}: {_summary(folder)['accuracy']}")
    for setting, seed in itertools.product(wanted, seeds):
        folder = stack_folder(output, setting, seed)
        if not is_done(folder):
            start = global_weights(setting, output, seed)
            cell = cell_of(setting, size, seed)
            run_once(folder, functools.partial(write_stack, folder, setting, cell, start))
            click.echo(f"{folder.name}: {_summary(folder)['seconds']:.0f} s")


def leaves(model: tf.keras.Model) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the shape of each of the model's weight tensors, in the order of `flat`."""
    found, kinds = [], collections.Counter[str]()
    for layer in model.layers:
        if layer.weights:
            kind = type(layer).__name__.lower()
            kinds[kind] += 1
            place = f"{kind} {kinds[kind]}"
            found += [(f"{place} {v.name.split('/')[-1].split(':')[0]}", tuple(v.shape)) for v in layer.weights]
    return found


def groups(setting: Setting, output: pathlib.Path, seeds: Iterable[int]) -> Iterator[np.ndarray]:
    """Return stacks [S, D] of a setting: of each seed all disjoint groups of so many clients."""
    for seed in seeds:
        stack = np.load(stack_folder(output, setting, seed) / STACK)
        for first in range(0, len(stack) - setting.clients + 1, setting.clients):
            yield stack[first : first + setting.clients]


def global_weights(setting: Setting, output: pathlib.Path, seed: int) -> np.ndarray:
    """Return the weights [D] that a setting's clients start from."""
    with np.load(global_folder(output, setting, seed) / GLOBAL) as found:
        return found[str(setting.round)]


def start_accuracy(setting: Setting, output: pathlib.Path, seeds: Iterable[int]) -> list[float]:
    """Return the accuracy of the weights that a setting's clients start from, one a seed."""
    return [_summary(global_folder(output, setting, seed))["accuracy"][str(setting.round)] for seed in seeds]


def _summary(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / SUMMARY).read_text())
