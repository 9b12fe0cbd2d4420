"""The settings of the FL-SWAG study: data only.

Makni 2022. A *setting* says on which data and with which model; a *table* says which trainings it needs, each of them a
cell with one seed. All rows of a cell (`methods.py`) come from the same training of the clients.
"""

from typing import Any

# Share: of the training data, taken from all clients alike; validation: of that share, for the best epoch and for the
# choice of hyper-parameters. Seed: the same network for all seeds, None for one each.
PRETRAINING: dict[str, dict[str, Any]] = {
    "lenet": {"share": 0.1, "validation": 0.2, "epochs": 40, "learning_rate": 1e-3, "half_life": 10, "seed": None},
    "resnet20": {"share": 0.2, "validation": 0.1, "epochs": 24, "learning_rate": 2e-3, "half_life": 6, "seed": 0},
    "lenet_small": {"share": 0.3, "validation": 0.2, "epochs": 30, "learning_rate": 3e-3, "half_life": 10, "seed": 0},
}

# The clients' data that they go without where hyper-parameters are chosen and the server has no share.
HOLDOUT = 0.1

_CONVEX = {"model": "logistic_regression", "server": None, "start": "initial", "last_layer": False}

# Setting -> model and what of it the clients train. Server: of `PRETRAINING`. Alike: clients of one distribution.
SETTINGS: dict[str, dict[str, Any]] = {
    "logistic_regression": _CONVEX,
    "shared_features": {"model": "lenet", "server": "lenet", "start": "pretrained", "last_layer": True},
    "whole_model": {"model": "lenet", "server": "lenet", "start": "pretrained", "last_layer": False},
    "whole_model_from_scratch": {"model": "lenet", "server": "lenet", "start": "initial", "last_layer": False},
    "own_starts": {"model": "lenet", "server": "lenet", "start": "initial", "last_layer": False, "own_starts": True},
    "alike": {**_CONVEX, "alike": True},
}

# Of all cells.
COMMON: dict[str, Any] = {
    "clients": 10,
    "other_interest": 0.25,
    "min_examples": 200,
    "batch_size": 32,
    "max_columns": 20,
    "num_samples": 30,
    "limit": None,
    "alike": False,
    "shuffled": False,
    "own_starts": False,
    "holdout": False,
    "alone": True,
}

CORRECTED = "FL-SWAG, corrected"
DEFAULT_FLOOR = 1e-6
FLOORS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def _training(epochs: int, burn_in: int, rate: float, *floors: float) -> dict[str, Any]:
    return {"local_epochs": epochs, "burn_in_epochs": burn_in, "learning_rate": rate, "floors": floors}


# Rates of the grid, in which the floor is chosen too; epochs are not searched: half of them are burn-in.
CONVEX_GRID = [_training(40, 20, rate, *FLOORS) for rate in (0.02, 0.1, 0.5, 1.0)]
GRID = [_training(40, 20, rate, *FLOORS) for rate in (0.02, 0.1, 0.5)]
SHORT_GRID = [_training(20, 10, rate, *FLOORS) for rate in (0.02, 0.1, 0.5)]
# What shows where the product lies without a burn-in.
BURN_IN = [
    _training(20, 0, 0.05, *FLOORS[:-1]),
    _training(20, 10, 0.05, *FLOORS[:-1]),
    _training(60, 40, 0.1, *FLOORS[:-1]),
]
WHOLE = [_training(8, 4, 0.05, *FLOORS[:-1])]
OWN_STARTS = [_training(8, 4, 0.05, DEFAULT_FLOOR, 0.1)]
# How far clients drift in a round.
DRIFT = [_training(epochs, epochs // 2, 0.1, DEFAULT_FLOOR, 0.1) for epochs in (4, 10, 40, 100)]
# Controls for the information in standard deviations: a number of examples in all, and random labels.
EXAMPLES = [
    {**_training(40, 20, 0.1, DEFAULT_FLOOR, 0.1), **own}
    for own in ({"limit": 600}, {"limit": 6000}, {"limit": None}, {"limit": 6000, "shuffled": True})
]
SMALL = [_training(6, 3, 0.1, DEFAULT_FLOOR, 1e-3)]

# What the grid chose for each dataset of a setting, by the NLL of FL-SWAG on held-out training data.
CHOSEN = {
    ("logistic_regression", "mnist"): [_training(40, 20, 0.5, DEFAULT_FLOOR, 0.1)],
    ("logistic_regression", "fashion_mnist"): [_training(40, 20, 0.1, DEFAULT_FLOOR, 0.1)],
    ("shared_features", "mnist"): [_training(40, 20, 0.1, DEFAULT_FLOOR, 0.1)],
    ("shared_features", "fashion_mnist"): [_training(40, 20, 0.1, DEFAULT_FLOOR, 0.1)],
    ("shared_features", "cifar10"): [_training(20, 10, 0.1, DEFAULT_FLOOR, 0.1)],
}

# By the NLL of FedAvg, where that is another rate.
CHOSEN_FEDAVG = {
    ("logistic_regression", "mnist"): [_training(40, 20, 0.1, DEFAULT_FLOOR, 0.1)],
    ("shared_features", "mnist"): [_training(40, 20, 0.02, DEFAULT_FLOOR, 0.1)],
    ("shared_features", "fashion_mnist"): [_training(40, 20, 0.02, DEFAULT_FLOOR, 0.1)],
}


# FedAvg by SGD with momentum on the clients. Its rates are a tenth of FL-SWAG's, for the momentum of 0.9, and as
# many as each grid has; the best one has the lowest NLL on the held-out training data of `momentum_choice`.
BASELINE, CHOSEN_RATE = "FedAvg, momentum", "chosen"


def _momentum(epochs: int, rate: Any) -> dict[str, Any]:
    return {**_training(epochs, 0, rate), "baseline": BASELINE}


def _rates(grid: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_momentum(training["local_epochs"], training["learning_rate"] / 10) for training in grid]


# Chains over all data in one place: passes as the clients', the second half of them gives so many draws.
def _chain(sampler: str, step_size: float, epochs: int = 40) -> dict[str, Any]:
    own = {"sampler": sampler, "step_size": step_size, "prior_stddev": 1.0, "draws": 100, "learning_rate": None}
    return {**own, "local_epochs": epochs, "burn_in_epochs": epochs // 2, "floors": ()}


CHAINS = [
    *(_chain("sgld", step) for step in (1e-7, 1e-6, 1e-5)),
    *(_chain("psgld", step) for step in (1e-9, 1e-8, 1e-7)),
]
# Chosen likewise, by the NLL of the chain itself, on MNIST.
CHOSEN_CHAINS: dict[Any, list[dict[str, Any]]] = {None: [_chain("sgld", 1e-6), _chain("psgld", 1e-8)]}
# The truth: two No-U-Turn chains. Its "epochs" are their steps, of some passes each.
NUTS = _chain("nuts", 0.1, 400)
SMALL_CHAINS = [_chain("sgld", 1e-4, 4), _chain("psgld", 1e-5, 4)]

# Table -> settings, which trainings of the size, and further options of its cells. Where hyper-parameters are chosen
# or examined, clients are not scored alone.
TABLES: dict[str, dict[str, Any]] = {
    "logistic_regression": {
        "settings": ("logistic_regression",),
        "trainings": "chosen",
        "chains": "chosen_chains",
        "options": {},
    },
    "shared_features": {
        "settings": ("shared_features",),
        "trainings": "chosen",
        "chains": "shared_chains",
        "options": {},
    },
    "drift": {
        "settings": ("logistic_regression", "shared_features"),
        "trainings": "drift",
        "options": {"alone": False},
    },
    "examples": {"settings": ("alike",), "trainings": "examples", "options": {"alone": False}},
    "own_starts": {"settings": ("own_starts",), "trainings": "own_starts", "options": {}},
    "whole_model": {
        "settings": ("whole_model", "whole_model_from_scratch"),
        "trainings": "whole",
        "chains": "whole_chains",
        "options": {},
    },
    "burn_in": {"settings": ("logistic_regression",), "trainings": "burn_in", "options": {"alone": False}},
    "fedavg": {
        "settings": ("logistic_regression", "shared_features"),
        "trainings": "chosen_fedavg",
        "options": {"alone": False},
    },
    # Beside the rows of `logistic_regression` and `shared_features`.
    "momentum": {
        "settings": ("logistic_regression", "shared_features"),
        "trainings": "chosen",
        "baselines": "chosen_momentum",
        "options": {},
    },
    "momentum_choice": {
        "settings": ("logistic_regression", "shared_features"),
        "trainings": "momentum_grid",
        "options": {"alone": False, "holdout": True, "num_samples": 10},
    },
    "central_choice": {
        "settings": ("logistic_regression",),
        "trainings": "chains",
        "options": {"holdout": True},
    },
    "choice": {
        "settings": ("logistic_regression", "shared_features"),
        "trainings": "grid",
        "options": {"alone": False, "holdout": True, "num_samples": 10},
    },
}

# Size -> datasets of each setting, options and trainings by setting and dataset (None: any other), seeds of each table.
SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "datasets": {
            "logistic_regression": ("mnist", "fashion_mnist"),
            "shared_features": ("mnist", "fashion_mnist", "cifar10"),
            "whole_model": ("mnist", "fashion_mnist"),
            "whole_model_from_scratch": ("mnist",),
            "own_starts": ("mnist",),
            "alike": ("mnist",),
        },
        "options": {("shared_features", "cifar10"): {"model": "resnet20", "server": "resnet20"}},
        "trainings": {
            "chosen": CHOSEN,
            "chosen_fedavg": CHOSEN_FEDAVG,
            "chosen_chains": CHOSEN_CHAINS,
            "chains": {("logistic_regression", "mnist"): CHAINS},
            "shared_chains": {
                ("shared_features", "cifar10"): [_chain("sgld", 1e-6, 20), _chain("psgld", 1e-8, 20)],
                None: [_chain("sgld", 1e-6), _chain("psgld", 1e-8), NUTS],
            },
            "whole_chains": {
                ("whole_model_from_scratch", "mnist"): [_chain("sgld", 1e-6), _chain("psgld", 1e-8)],
                ("whole_model", "fashion_mnist"): [_chain("sgld", 1e-6), _chain("psgld", 1e-8)],
            },
            "drift": {("logistic_regression", "mnist"): DRIFT, ("shared_features", "mnist"): DRIFT},
            "examples": {None: EXAMPLES},
            "own_starts": {None: OWN_STARTS},
            "whole": {None: WHOLE},
            "burn_in": {("logistic_regression", "mnist"): BURN_IN},
            "momentum_grid": {
                ("logistic_regression", "mnist"): _rates(CONVEX_GRID),
                ("logistic_regression", "fashion_mnist"): _rates(CONVEX_GRID),
                ("shared_features", "cifar10"): _rates(SHORT_GRID),
                None: _rates(GRID),
            },
            "chosen_momentum": {
                ("shared_features", "cifar10"): [_momentum(20, CHOSEN_RATE)],
                None: [_momentum(40, CHOSEN_RATE)],
            },
            "grid": {
                ("logistic_regression", "mnist"): CONVEX_GRID,
                ("logistic_regression", "fashion_mnist"): CONVEX_GRID,
                ("shared_features", "cifar10"): SHORT_GRID,
                None: GRID,
            },
        },
        "seeds": {
            "logistic_regression": (0, 1, 2),
            "shared_features": (0, 1, 2),
            "fedavg": (0, 1, 2),
            "whole_model": (0, 1, 2),
            "drift": (0, 1, 2),
            "examples": (0, 1, 2),
            "own_starts": (0, 1, 2),
            "burn_in": (0,),
            "chains": (0,),
            "choice": (0,),
            "momentum": (0, 1, 2),
            "momentum_choice": (0,),
        },
    },
    # For tests: a minute or two.
    "small": {
        "datasets": dict.fromkeys(SETTINGS, ("digits",)),
        "options": {
            (setting, "digits"): {
                "clients": 4,
                "min_examples": 40,
                "num_samples": 5,
                "server": "lenet_small" if SETTINGS[setting]["server"] else None,
            }
            for setting in SETTINGS
        },
        "trainings": {
            "chosen": {None: SMALL},
            "chosen_fedavg": {None: SMALL},
            "chosen_chains": {None: SMALL_CHAINS},
            "chains": {None: SMALL_CHAINS},
            "shared_chains": {None: [*SMALL_CHAINS, _chain("nuts", 0.1, 40)]},
            "whole_chains": {None: SMALL_CHAINS},
            "drift": {None: SMALL},
            "examples": {None: [{**SMALL[0], "limit": 400}, {**SMALL[0], "limit": 400, "shuffled": True}]},
            "own_starts": {None: SMALL},
            "whole": {None: SMALL},
            "burn_in": {None: [_training(6, 0, 0.1, DEFAULT_FLOOR, 1e-3), *SMALL]},
            "grid": {None: SMALL},
            "momentum_grid": {None: _rates(SMALL)},
            "chosen_momentum": {None: [_momentum(6, CHOSEN_RATE)]},
        },
        "seeds": dict.fromkeys((*TABLES, "chains"), (0,)),
    },
}

# Makni 2022: accuracy in %; for the deep networks also ECE x 100, Brier x 10 and NLL x 10.
# Method -> accuracy in per cent, where its variances have the source's floor, or none.
PUBLISHED = {
    ("logistic_regression", "mnist"): {
        "FL-SWAG, diagonal without halves": "90.96",
        "mean of SWAG means": "91.58",
        "BayAvg": "91.65",
        "wBayAvg": "91.98",
        "client, lowest": "84.07",
        "client, highest": "90.80",
    },
    ("logistic_regression", "fashion_mnist"): {
        "FL-SWAG, diagonal without halves": "81.32",
        "mean of SWAG means": "83.0",
        "BayAvg": "83.05",
        "wBayAvg": "83.61",
        "client, lowest": "75.72",
        "client, highest": "83.10",
    },
    ("shared_features", "mnist"): {
        "FL-SWAG, diagonal without halves": "97.41",
        "mean of SWAG means": "97.64",
        "BayAvg": "98.57",
        "wBayAvg": "98.55",
        "client, lowest": "97.44",
        "client, highest": "98.18",
    },
    ("shared_features", "fashion_mnist"): {
        "FL-SWAG, diagonal without halves": "87.57",
        "mean of SWAG means": "87.6",
        "BayAvg": "87.58",
        "wBayAvg": "87.49",
        "client, lowest": "85.53",
        "client, highest": "87.36",
    },
    ("shared_features", "cifar10"): {
        "FL-SWAG, diagonal without halves": "70.35",
        "mean of SWAG means": "70.26",
        "BayAvg": "70.32",
        "wBayAvg": "70.45",
        "client, lowest": "69.60",
        "client, highest": "70.46",
    },
}
PUBLISHED_CALIBRATION = {
    "mnist": {"ece x 100": 0.77, "brier x 10": 0.41, "nll x 10": 0.86},
    "fashion_mnist": {"ece x 100": 6.92, "brier x 10": 3.18, "nll x 10": 4.69},
    "cifar10": {"ece x 100": 7.82, "brier x 10": 4.18, "nll x 10": 9.18},
}
