"""Cost of secure aggregation of a site's message: by the masks of this library, and by homomorphic encryption.

    python benchmarks/masks.py           # masks alone
    python benchmarks/masks.py --ckks    # TenSEAL besides, in an environment that it makes

The setting is three sites, LeNet on 8 x 8 digits and the log-linear pool: 43 thousand numbers each. Masking rounds the
numbers to integers, and adds a pairwise mask for each other site and a self mask; unmasking subtracts the self masks
and converts the sum to floats. Encryption and decryption take their place for homomorphic encryption. Times are the
minimum over repetitions, since other processes can only add to them; the error is the largest of a number of the sum,
in the rule's units. The results are merged into benchmarks/results/masks.json.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
import tensorflow as tf
from kept import machine, merge
from sides import SIDES
from table import HERE, RESULTS, interpreter

import tfp_bfl as bfl
from tfp_bfl.sites.masks import KEY_BYTES, add_mask, seed_of

PARTIES, EXAMPLES, RULE = 3, 64, "log_linear_pool"
BOUND, BITS = 1024.0, 40  # Of `rules.quantised`, its own.
SIDE = SIDES["curvature-adam-local"]
KEPT = RESULTS / "masks.json"


def timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    seconds, found = [], None
    for _ in range(repeats):
        started = time.perf_counter()
        found = function()
        seconds.append(time.perf_counter() - started)
    return min(seconds), found


def trained() -> tuple[bfl.weights.ModelWeights, list[bfl.weights.ModelWeights]]:
    """Return the server's weights, and the weights of three sites after a round of training."""
    source = bfl.data.load("digits")
    parts = [source.subset(EXAMPLES, seed=k) for k in range(PARTIES)]
    found = []
    for part in parts:
        process = bfl.algorithms.variational(
            lambda: bfl.models.lenet(SIDE.kind, source.element_shape, source.num_classes, seed=0),
            RULE,
            local_epochs=1,
            element_spec=source.element_spec,
            **SIDE.training(),
        )
        result = bfl.simulate(process, part.partition(bfl.data.iid(1), seed=0), rounds=1, engine=SIDE.engine)
        found.append(tf.nest.map_structure(tf.constant, result.state.weights))
    return process.round.initialize().weights, found


def flat(leaves: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in tf.nest.flatten(leaves)])


def masks(repeats: int) -> tuple[dict[str, float], np.ndarray]:
    """Return the cost of masks, and the masked numbers in the rule's units: float64 [K, N]."""
    anchor, weights = trained()
    clear, whole = bfl.rules.whole_model(RULE), bfl.rules.quantised(RULE, bound=BOUND, bits=BITS)
    one, context = tf.ones([]), b"the first round"
    keys = {pair: bytes([1, *pair]).ljust(KEY_BYTES) for pair in itertools.combinations(range(PARTIES), 2)}
    own = [bytes([0, k]).ljust(KEY_BYTES) for k in range(PARTIES)]
    summarise = lambda local: whole.summarise(local, anchor, one)
    traced = tf.function(summarise, autograph=False)

    def hide(k: int, summarise: Callable[..., Any]) -> list[np.ndarray]:
        leaves = [np.array(x) for x in tf.nest.flatten(summarise(weights[k]).sums)]
        for (i, j), key in keys.items():
            if k in (i, j):
                add_mask(leaves, seed_of(key, context), 1 if k == i else -1)
        add_mask(leaves, seed_of(own[k], context), 1)
        return leaves

    def read(total: Sequence[np.ndarray]) -> np.ndarray:
        leaves = [np.array(x) for x in total]
        for key in own:
            add_mask(leaves, seed_of(key, context), -1)
        return flat(leaves) * BOUND / 2.0**BITS

    hiding = min(timed(lambda k=k: hide(k, traced), repeats)[0] for k in range(PARTIES))
    # As the clear sum is made, so that the difference is that of whole numbers.
    hidden = [hide(k, summarise) for k in range(PARTIES)]
    adding, total = timed(lambda: [sum(leaves) for leaves in zip(*hidden)], repeats)
    reading, found = timed(lambda: read(total), repeats)
    ratio = lambda x, unit: tf.cast(x, tf.float64) / tf.cast(unit, tf.float64)
    z = [tf.nest.map_structure(ratio, clear.summarise(local, anchor, one), clear.units(anchor)) for local in weights]
    numbers = np.stack([flat(structure) for structure in z])
    seconds = {"hide_seconds": hiding, "add_seconds": adding, "read_seconds": reading}
    size = sum(leaf.nbytes for leaf in hidden[0])
    return {"bytes": size, **seconds, "error": float(np.abs(found - numbers.sum(0)).max())}, numbers


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--ckks", is_flag=True, help="Measure TenSEAL too.")
@click.option("--repeats", type=click.IntRange(min=1), default=50, show_default=True)
def main(ckks: bool, repeats: int) -> None:
    where, found = machine(), {}
    found["masks"], z = masks(repeats)
    if ckks:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.npy"
            np.save(path, z)
            program = [interpreter("ckks"), str(HERE / "peers" / "ckks_sum.py"), str(path), str(repeats)]
            told = subprocess.run(program, check=True, capture_output=True, text=True).stdout
            found["ckks"] = json.loads(told.splitlines()[-1])  # TenSEAL warns before.
    for name, one in found.items():
        one["numbers"] = z.shape[1]
        click.echo(f"{name}: {json.dumps(one)}")
    merge(KEPT, found, where)


if __name__ == "__main__":
    main()
