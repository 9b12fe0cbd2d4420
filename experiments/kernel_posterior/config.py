"""The settings of the kernel-posterior study: data only.

Johansson & Gullbrandson 2022. A cell is one run: an algorithm with its options on one partition with one seed.
"""

from typing import Any

# Name -> recipe of `tfp_bfl.algorithms` and its options. Shares of the rounds are filled in by size.
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fed_opt", {}),
    "FedProx": ("fed_prox", {"proximal": 0.1}),
    "FedAG": ("fed_ag", {}),
    "FedBE": ("fed_be", {"ensemble": {"num_models": 10, "num_epochs": 2, "batch_size": 32, "learning_rate": 1e-3}}),
    "FedPA": ("fed_pa", {"shrinkage": 0.1, "burn_in_share": 0.5}),
    # The published noise has standard deviation 2 x the clients' rate: sqrt(2 x step_size) here.
    "SGLD": ("fed_sgld", {"step_size": 2e-6, "burn_in_share": 0.5}),
    "FedKP": ("fed_kp", {"start": "mean"}),
    "FedKP, clustered": ("fed_kp", {"start": "clients"}),
    "FedKPPA": ("fed_kppa", {"shrinkage": 0.1, "burn_in_share": 0.5}),
    # What of SGLD's scores is the averaging's: the same rounds predict together, and nothing is added to them.
    "FedAvg, rounds averaged": ("fed_opt", {"averaged_rounds": 20, "burn_in_share": 0.5}),
}

# Of the server's step. The published runs have the second for FedAvg, FedPA and SGLD (Table 4.1: rate 0.5, momentum 0)
# and the third, a step of 1, for FedKP, clustered FedKP and FedKPPA: the constructor of the published kernel servers
# calls its parent's twice, the second time without the optimizer. The first is the published code's as it was after the
# runs; until then its momentum had had no effect.
SERVERS: dict[str, dict[str, Any]] = {
    "sgd 0.5, momentum 0.9": {"name": "sgd", "learning_rate": 0.5, "momentum": 0.9},
    "sgd 0.5": {"name": "sgd", "learning_rate": 0.5},
    "none": {},
}
SGD = next(iter(SERVERS))

# What some tables run on: the first that can be had, unless another is asked for.
CHOICES: dict[str, tuple[str, ...]] = {
    "characters": ("femnist", "mnist_writers"),
    "cifar": ("cifar100", "cifar10"),
}

# Of every cell, by dataset.
DATASETS: dict[str, dict[str, Any]] = {
    "mnist": {"network": "mnist_network", "clients": 100, "batch_size": 16, "learning_rate": 1e-3},
    "femnist": {"network": "character_network", "clients": 3400, "batch_size": 20, "learning_rate": 1e-2},
    "mnist_writers": {"network": "character_network", "clients": 3700, "batch_size": 20, "learning_rate": 1e-2},
    "cifar100": {
        "network": "image_network",
        "clients": 500,
        "batch_size": 20,
        "learning_rate": 1e-2,
        "shrinkage": 0.01,
    },
    "cifar10": {
        "network": "image_network",
        "clients": 500,
        "batch_size": 20,
        "learning_rate": 1e-2,
        "shrinkage": 0.01,
    },
}

# By dataset or choice of them.
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    # Minutes for the whole of a table of tests.
    "tiny": {
        "mnist": {"rounds": 4, "cohort_size": 4, "examples": 32, "local_epochs": 2, "unlabelled": 64, "seeds": [0]},
        "characters": {
            "rounds": 3,
            "cohort_size": 4,
            "clients": 20,
            "examples": 20,
            "local_epochs": 2,
            "unlabelled": 64,
            "seeds": [0],
        },
        "cifar": {
            "rounds": 2,
            "cohort_size": 2,
            "clients": 20,
            "examples": 20,
            "local_epochs": 2,
            "unlabelled": 32,
            "seeds": [0],
        },
    },
    "small": {
        "mnist": {
            "rounds": 25,
            "cohort_size": 10,
            "examples": 180,
            "local_epochs": 5,
            "unlabelled": 500,
            "seeds": [0, 1, 2],
        },
        "characters": {
            "rounds": 40,
            "cohort_size": 20,
            "examples": 60,
            "local_epochs": 2,
            "unlabelled": 500,
            "seeds": [0],
        },
        # The least training of ResNet-20 that may show differences between methods: 6,000 sequential steps.
        "cifar": {
            "rounds": 60,
            "cohort_size": 10,
            "examples": 100,
            "local_epochs": 20,
            "unlabelled": 200,
            "seeds": [0],
        },
    },
    "full": {
        "mnist": {
            "rounds": 50,
            "cohort_size": 20,
            "examples": 540,
            "local_epochs": 5,
            "unlabelled": 1000,
            "seeds": [0, 1, 2],
        },
        "characters": {
            "rounds": 1000,
            "cohort_size": 100,
            "examples": 480,
            "local_epochs": 5,
            "unlabelled": 1000,
            "seeds": [0, 1, 2],
        },
        "cifar": {
            "rounds": 800,
            "cohort_size": 20,
            "examples": 100,
            "local_epochs": 20,
            "unlabelled": 1000,
            "seeds": [0, 1, 2],
        },
    },
}

# A client's rate that trials choose: the one with the lowest NLL on held-out training images, of the same algorithm and
# server's step, on the partition that stands for the cell's.
CHOSEN = "chosen"
TRIED_ON = {"lda:0.01": "lda:0.1", "lda:0.1": "lda:0.1", "lda:1": "lda:1"}
TUNED = ("FedAvg", "FedKP, clustered")

AVERAGED = "FedAvg, rounds averaged"
MAIN = tuple(name for name in ALGORITHMS if name != AVERAGED)
FEW = ("FedAvg", "FedPA", "FedKP", "FedKP, clustered", "FedKPPA")
BARS = {"dataset": "mnist", "partitions": ["lda:0.1"]}

# Table -> dataset or choice of them, partitions, and the cells' algorithms with the options that vary. Cohorts are
# shares of the size's own.
TABLES: dict[str, dict[str, Any]] = {
    "alphas": {
        "dataset": "mnist",
        "partitions": ["lda:0.01", "lda:0.1", "lda:1", "lda:10"],
        "cells": [{"algorithm": name, "server": SGD} for name in MAIN]
        + [{"algorithm": name, "server": "none"} for name in ("FedAvg", "FedKP", "FedKP, clustered")],
    },
    # FedAvg and clustered FedKP each with its own and with the other's published step; the others with their own.
    "server_steps": {
        "dataset": "mnist",
        "partitions": ["lda:0.01", "lda:0.1", "lda:1"],
        "cells": [
            {"algorithm": name, "server": server}
            for server in ("sgd 0.5", "none")
            for name in ("FedAvg", "FedKP, clustered")
        ]
        + [
            {"algorithm": name, "server": server, "seeds": [0, 1, 2]}
            for name, server in (
                (AVERAGED, "sgd 0.5"),
                ("SGLD", "sgd 0.5"),
                ("FedPA", "sgd 0.5"),
                ("FedKP", "none"),
                ("FedKPPA", "none"),
            )
        ],
        "seeds": [0, 1, 2, 3, 4],
    },
    # FedAvg by SGD with momentum at the best of five rates, and clustered FedKP alike. 15 % of the clients' images are
    # held out from the trials, which have as many besides.
    "rate_trials": {
        "dataset": "mnist",
        "partitions": ["lda:0.1", "lda:1"],
        "cells": [
            {"algorithm": name, "server": "none", "learning_rate": rate, "hold_out": 0.15}
            for name in TUNED
            for rate in (1e-3, 3e-3, 1e-2, 2e-2, 5e-2)
        ],
        "seeds": [100],
    },
    "chosen_rates": {
        "dataset": "mnist",
        "partitions": [*TRIED_ON],
        "cells": [{"algorithm": name, "server": "none", "learning_rate": CHOSEN} for name in TUNED],
        "seeds": [0, 1, 2],
    },
    "local_epochs": {
        **BARS,
        "cells": [{"algorithm": name, "server": SGD, "local_epochs": epochs} for epochs in (1, 5, 10) for name in FEW],
    },
    "clients_per_round": {
        **BARS,
        "cells": [{"algorithm": name, "server": SGD, "cohort_share": x} for x in (0.5, 1, 2) for name in FEW],
    },
    "popularity": {
        **BARS,
        "cells": [
            {"algorithm": name, "server": SGD, "popularity": alpha}
            for alpha in (None, 1.0, 0.1)
            for name in ("FedAvg", "FedKP, clustered")
        ],
    },
    "writers": {
        "dataset": "characters",
        "partitions": ["writers"],
        "cells": [{"algorithm": name, "server": SGD} for name in FEW],
    },
    # The axis of Table 5.1, with the published steps, and FedAvg with FedKP's; a small network, for many cells.
    "popularity_of_writers": {
        "dataset": "characters",
        "partitions": ["writers"],
        "cells": [
            {"algorithm": name, "server": server, "popularity": alpha, "network": "mnist_network", **own}
            for alpha in (0.01, 0.1, 1.0, 10.0)
            for name, server, own in (
                ("FedAvg", "sgd 0.5", {}),
                ("FedKP, clustered", "none", {}),
                ("FedAvg", "none", {}),
                ("FedPA", "sgd 0.5", {"seeds": [0, 1]}),
            )
        ],
        "seeds": [0, 1, 2, 3, 4],
    },
    "pachinko": {
        "dataset": "cifar",
        "partitions": ["pachinko:0.1"],
        "cells": [{"algorithm": name, "server": SGD} for name in FEW],
    },
}

# One round from global weights of the normality study: which of its sizes has the stacks, how many clients are pooled,
# and the scales of Silverman's bandwidth.
BANDWIDTH_STUDY: dict[str, dict[str, Any]] = {
    "tiny": {"clients_of": "tiny", "alphas": [0.1], "clients": 6, "round": 2, "seeds": [0], "scales": [1.0, 100.0]},
    "small": {
        "clients_of": "small",
        "alphas": [0.01, 0.1, 1.0, 10.0],
        "clients": 20,
        "round": 10,
        "seeds": [0],
        "scales": [0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
    },
    "full": {
        "clients_of": "full",
        "alphas": [0.01, 0.1, 1.0, 10.0],
        "clients": 20,
        "round": 10,
        "seeds": [0, 1, 2],
        "scales": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
    },
}

# Whether clients' weights look Gaussian: each factor varies with the others at the base, or all of them on a grid.
# `clients` are those looked at together, of the federation's; `round` the one that they start from.
NORMALITY: dict[str, dict[str, Any]] = {
    "tiny": {
        "federation": 12,
        "examples": 32,
        "cohort_size": 4,
        "seeds": [0],
        "grid": False,
        "base": {"alpha": 0.1, "local_epochs": 2, "clients": 12, "round": 2},
        "varied": {"alpha": [0.1, 10.0], "local_epochs": [2], "clients": [6, 12], "round": [1, 2]},
    },
    "small": {
        "federation": 100,
        "examples": 180,
        "cohort_size": 10,
        "seeds": [0],
        "grid": False,
        "base": {"alpha": 0.1, "local_epochs": 5, "clients": 100, "round": 10},
        "varied": {
            "alpha": [0.01, 0.1, 1.0, 10.0],
            "local_epochs": [1, 5, 10],
            "clients": [10, 20, 50, 100],
            "round": [1, 10, 25],
        },
    },
    "full": {
        "federation": 100,
        "examples": 540,
        "cohort_size": 20,
        "seeds": [0, 1, 2],
        "grid": True,
        "base": {"alpha": 0.1, "local_epochs": 5, "clients": 100, "round": 10},
        "varied": {
            "alpha": [0.01, 0.1, 1.0, 10.0],
            "local_epochs": [1, 5, 10],
            "clients": [10, 20, 50, 100],
            "round": [1, 10, 25],
        },
    },
}
