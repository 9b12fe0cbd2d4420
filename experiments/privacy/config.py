"""The cells of the study of what hiding costs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Options = dict[str, Any]
COMMON = {
    **{"dataset": "mnist", "pooled_to": 7, "examples_per_client": 60, "hidden": 16, "initial_stddev": 0.02},
    **{"rounds": 40, "local_epochs": 5, "batch_size": 16, "learning_rate": 5e-3, "delta": 1e-5},
}
# How many clients there are, and how many a round has in expectation.
MANY = "1,000 clients, 50 a round"
FEDERATIONS = {MANY: (1000, 50), "100 clients, 10 a round": (100, 10)}
# Rule, kind of model, and the clipping norms: in the posterior's standard deviations, in the weights' own unit.
METHODS = {
    "naive_weighted_average": {"kind": "flipout", "clip_norm": 60.0},
    "log_linear_pool": {"kind": "flipout", "clip_norm": 60.0},
    "FedAvg": {"kind": "deterministic", "clip_norm": 1.0},
}
# Few sites, all in every round, each with differential privacy of its examples.
PARTIES = "5 parties, examples"
FEW: Options = {
    **COMMON,
    **{"federation": PARTIES, "clients": 5, "cohort_size": None, "examples_per_client": 1200, "clip_norm": 1.0},
    **{"rounds": 20, "local_epochs": 2, "batch_size": 128},
}
# None for no privacy at all, 0 for clipping alone.
NOISES = (None, 0.0, 0.5, 1.0, 2.0, 4.0)
SEEDS = range(3)
COLUMNS = {"accuracy": "accuracy", "NLL": "test_nll", "ECE": "ece", "epistemic": "epistemic"}


class Sent(NamedTuple):
    """The form of a message: integers for secure aggregation, compressed, or plain in fewer rounds."""

    secure_sums: float | None = None
    compressor: str | None = None
    error_memory: bool = False
    share_of_rounds: float = 1.0


# The last two are controls: what about the bytes that a compressor saves cost if rounds are left out instead. It leaves
# a posterior the half, as standard deviations go whole, and point weights a twentieth.
HALF, TWENTIETH = "half the rounds", "a twentieth of the rounds"
SENT = {
    "secure sums": Sent(secure_sums=1.0),
    "quantiser:16": Sent(compressor="quantiser:16"),
    "largest:0.01, error memory": Sent(compressor="largest:0.01", error_memory=True),
    HALF: Sent(share_of_rounds=0.5),
    TWENTIETH: Sent(share_of_rounds=0.05),
}


def cells() -> Iterator[Options]:
    """Return the options of each cell."""
    yield from noise_cells()
    for plain, sent in itertools.product(noise_cells(), SENT):
        control = HALF if plain["kind"] == "deterministic" else TWENTIETH  # That of the other kind.
        if plain["noise"] is None and plain["federation"] in (MANY, PARTIES) and sent != control:
            yield {**plain, "sent": sent}


def noise_cells() -> Iterator[Options]:
    """Return the cells with plain messages."""
    for federation, (method, own), noise, seed in itertools.product(FEDERATIONS, METHODS.items(), NOISES, SEEDS):
        clients, cohort_size = FEDERATIONS[federation]
        sizes = {"clients": clients, "cohort_size": cohort_size, "seed": seed}
        yield {**COMMON, "federation": federation, "method": method, "noise": noise, **own, **sizes}
    for (method, own), noise, seed in itertools.product(METHODS.items(), NOISES, SEEDS):
        yield {**FEW, "method": method, "noise": noise, "kind": own["kind"], "seed": seed}


def cell_name(options: Options) -> str:
    how = f"noise={'none' if options['noise'] is None else format(options['noise'], 'g')}"
    # Names are folders'.
    sent = re.sub("[:, ]+", "_", options["sent"]) if "sent" in options else ""
    return ",".join([str(options["clients"]), options["method"], how, *[sent] * bool(sent), f"seed={options['seed']}"])
