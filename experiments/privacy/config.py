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
# Rule, kind of model, and the clipping norms: in the posterior's standard deviations, in the weights' own unit.
METHODS = {
    "naive_weighted_average": {"kind": "flipout", "clip_norm": 60.0},
    "log_linear_pool": {"kind": "flipout", "clip_norm": 60.0},
    "FedAvg": {"kind": "deterministic", "clip_norm": 1.0},
}
# Clients with differential privacy of clients; few sites, all in every round, with that of their examples.
MANY, PARTIES = "1,000 clients, 50 a round", "5 parties, examples"
FEDERATIONS: dict[str, Options] = {
    MANY: {"clients": 1000, "cohort_size": 50},
    PARTIES: {
        **{"clients": 5, "cohort_size": None, "examples_per_client": 1200, "clip_norm": 1.0},
        **{"rounds": 20, "local_epochs": 2, "batch_size": 128},
    },
}
# None for no privacy at all.
NOISES = {MANY: (None, 0.5, 1.0), PARTIES: (None, 1.0)}
SEEDS = range(3)
COLUMNS = {"accuracy": "accuracy", "NLL": "test_nll", "ECE": "ece", "epistemic": "epistemic"}


class Sent(NamedTuple):
    """The form of a message: integers for secure aggregation, compressed, or plain in fewer rounds."""

    secure_sums: float | None = None
    compressor: str | None = None
    error_memory: bool = False
    share_of_rounds: float = 1.0


# Controls by kind of model: what about the bytes that a compressor saves cost if rounds are left out instead. It leaves
# a posterior the half, as standard deviations go whole, and point weights a twentieth.
FEWER_ROUNDS = {"flipout": "half the rounds", "deterministic": "a twentieth of the rounds"}
SENT = {
    "secure sums": Sent(secure_sums=1.0),
    "quantiser:16": Sent(compressor="quantiser:16"),
    "largest:0.01, error memory": Sent(compressor="largest:0.01", error_memory=True),
    FEWER_ROUNDS["flipout"]: Sent(share_of_rounds=0.5),
    FEWER_ROUNDS["deterministic"]: Sent(share_of_rounds=0.05),
}


def cells() -> Iterator[Options]:
    """Return the options of each cell."""
    for (federation, sizes), (method, own), seed in itertools.product(FEDERATIONS.items(), METHODS.items(), SEEDS):
        plain = {**COMMON, **own, **sizes, "federation": federation, "method": method, "seed": seed}
        controls = {FEWER_ROUNDS[own["kind"]]} if federation == MANY else set()
        yield from ({**plain, "noise": noise} for noise in NOISES[federation])
        yield from (
            {**plain, "noise": None, "sent": s} for s in SENT if s in controls or s not in FEWER_ROUNDS.values()
        )


def cell_name(options: Options) -> str:
    how = f"noise={'none' if options['noise'] is None else format(options['noise'], 'g')}"
    # Names are folders'.
    sent = re.sub("[:, ]+", "_", options["sent"]) if "sent" in options else ""
    return ",".join([str(options["clients"]), options["method"], how, *[sent] * bool(sent), f"seed={options['seed']}"])
