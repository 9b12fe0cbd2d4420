"""The settings of the kernel-posterior study: data only.

Johansson & Gullbrandson 2022. A cell is one run: an algorithm with its options on one partition with one seed.
"""

from typing import Any

# Name -> recipe of `tfp_bfl.algorithms` and its options. Shares of the rounds are filled in by size.
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fed_opt", {}),
    "FedProx": ("fed_prox", {"proximal": 0.01}),
    "FedAG": ("fed_ag", {}),
    "FedBE": ("fed_be", {"ensemble": {"num_models": 10, "num_epochs": 2, "batch_size": 32, "learning_rate": 1e-3}}),
    "FedPA": ("fed_pa", {"shrinkage": 0.1, "burn_in_share": 0.5}),
    "SGLD": ("fed_sgld", {"step_size": 1e-7, "burn_in_share": 0.5}),
    "FedKP": ("fed_kp", {"start": "mean"}),
    "FedKP, clustered": ("fed_kp", {"start": "clients"}),
    "FedKPPA": ("fed_kppa", {"shrinkage": 0.1, "burn_in_share": 0.5}),
}

# Of the server's step: SGD of this rate, which FedAvg got in the published runs; 1 is none, which FedKP got.
SERVERS: dict[str, dict[str, Any]] = {
    "sgd 0.5": {"name": "sgd", "learning_rate": 0.5},
    "none": {},
}

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
    "cifar100": {"network": "image_network", "clients": 500, "batch_size": 20, "learning_rate": 1e-2},
    "cifar10": {"network": "image_network", "clients": 500, "batch_size": 20, "learning_rate": 1e-2},
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
        "cifar": {
            "rounds": 10,
            "cohort_size": 10,
            "examples": 100,
            "local_epochs": 2,
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

BANDWIDTHS = ("silverman", "silverman_wide", "scott", "plug_in", "cross_validated", "adaptive")
MAIN = tuple(ALGORITHMS)
FEW = ("FedAvg", "FedPA", "FedKP", "FedKP, clustered", "FedKPPA")

# Table -> dataset or choice of them, partitions, and the cells' algorithms with the options that vary.
TABLES: dict[str, dict[str, Any]] = {
    "alphas": {
        "dataset": "mnist",
        "partitions": ["lda:0.01", "lda:0.1", "lda:1", "lda:10"],
        "cells": [{"algorithm": name, "server": "sgd 0.5"} for name in MAIN]
        + [{"algorithm": name, "server": "none"} for name in ("FedAvg", "FedKP", "FedKP, clustered")],
    },
    "local_epochs": {
        "dataset": "mnist",
        "partitions": ["lda:0.1"],
        "cells": [
            {"algorithm": name, "server": "sgd 0.5", "local_epochs": epochs} for epochs in (1, 5, 10) for name in FEW
        ],
    },
    "clients_per_round": {
        "dataset": "mnist",
        "partitions": ["lda:0.1"],
        "cells": [
            {"algorithm": name, "server": "sgd 0.5", "cohort_size": size} for size in (5, 20, 50) for name in FEW
        ],
    },
    "bandwidths": {
        "dataset": "mnist",
        "partitions": ["lda:0.1"],
        "cells": [
            {"algorithm": "FedKP, clustered", "server": "sgd 0.5", "kernel_options": options}
            for options in [
                *({"bandwidth": name} for name in BANDWIDTHS),
                *({"bandwidth": "silverman", "scale": scale} for scale in (0.1, 10.0, 1000.0)),
                {"bandwidth": "silverman", "kernel": "gaussian"},
            ]
        ],
    },
    "popularity": {
        "dataset": "mnist",
        "partitions": ["lda:0.1"],
        "cells": [
            {"algorithm": name, "server": "sgd 0.5", "popularity": alpha} for alpha in (None, 1.0, 0.1) for name in FEW
        ],
    },
    "writers": {
        "dataset": "characters",
        "partitions": ["writers"],
        "cells": [{"algorithm": name, "server": "sgd 0.5"} for name in FEW],
    },
    "pachinko": {
        "dataset": "cifar",
        "partitions": ["pachinko:0.1"],
        "cells": [{"algorithm": name, "server": "sgd 0.5"} for name in FEW],
    },
}
