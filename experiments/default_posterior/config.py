"""The settings of the study of the default posterior: data only.

A *method* is a training; it gives several *rows*: the last round, the average of the last rounds, and each of them with
a softmax temperature fitted on images of the server. `TRIALS` are the values among which held-out training images
chose; `CHOSEN` what they chose.
"""

from typing import Any

COMMON = {"clients": 10, "local_epochs": 1, "batch_size": 32}

# The client step and the rule of `variational`, with what rows of this study have besides: 80 rounds of one local
# epoch, the last 20 averaged. One setting serves every partition.
VARIATIONAL = {
    "kind": "flipout",
    "inference": "curvature",
    "optimizer": "momentum",
    "rate": 0.03,
    "schedule": "inverse",
    "temperature": 0.01,
    "rule": "mean_precision_average",
}
_MOMENTUM = {"kind": "deterministic", "optimizer": "momentum", "rate": 0.03, "schedule": "cosine"}
METHODS = {
    # What `tfp-bfl run` computes with no option but its data: nothing is given, and the last round is the model.
    "default": {},
    "variational_inverse": VARIATIONAL,
    # Where the number of rounds is fixed.
    "variational_cosine": {**VARIATIONAL, "schedule": "cosine"},
    "fed_avg_momentum": _MOMENTUM,
    "fed_avg_adam": {"kind": "deterministic", "optimizer": "adam", "rate": 0.01, "schedule": "cosine"},
    "mc_dropout": {**_MOMENTUM, "kind": "mc_dropout", "dropout_rate": 0.1},
    # Five networks as fed_avg_momentum, with other initial weights: five times the cost.
    "ensemble_5": {**_MOMENTUM, "members": 5},
    # The same in a fifth of the rounds: at the cost of one network.
    "ensemble_5_equal_cost": {**_MOMENTUM, "members": 5, "share_of_rounds": 0.2},
    "variational_adam_pool": {
        **{"kind": "flipout", "inference": "curvature", "optimizer": "adam", "rate": 0.001, "schedule": "constant"},
        **{"temperature": 0.05, "rule": "log_linear_pool"},
    },
}
# Baselines have the best trial of each kind of partition, which the variational rows have not.
MILD, STRONG = ("iid", "dirichlet:0.5"), ("label_skew:2", "dirichlet:0.1")
BY_SKEW: dict[str, dict[str, dict[str, float]]] = {
    "fed_avg_momentum": {"mild": {"rate": 0.05}, "strong": {"rate": 0.02}},
    "fed_avg_adam": {"mild": {"rate": 0.003}, "strong": {"rate": 0.01}},
    "mc_dropout": {"mild": {"rate": 0.05}, "strong": {"rate": 0.03}},
    "ensemble_5": {"mild": {"rate": 0.05}, "strong": {"rate": 0.02}},
    "ensemble_5_equal_cost": {"mild": {"rate": 0.05}, "strong": {"rate": 0.02}},
}
# Methods that do not run by every seed, for their cost.
SEEDS_OF = {"ensemble_5": (0, 1, 2), "variational_adam_pool": (0, 1, 2)}
# What a trial has where it says nothing else.
_COSINE = {"rate": 0.05, "schedule": "cosine"}
TRIED_AT = {"variational_cosine": _COSINE, "mc_dropout": {"rate": 0.05, "dropout_rate": 0.2}}
# Five trials of each method, on images that no client and no test has.
TRIALS = {
    "variational_cosine": [{"rate": 0.05}, {"rate": 0.02}, {"rate": 0.1}, {"temperature": 0.02}, {"rate": 0.03}],
    "fed_avg_momentum": [
        *({"rate": 0.05}, {"rate": 0.02}, {"rate": 0.1}, {"rate": 0.2, "optimizer": "sgd"}),
        {"rate": 0.03},
    ],
    "fed_avg_adam": [{"rate": 0.001}, {"rate": 0.0003}, {"rate": 0.003}, {"rate": 0.01}, {"rate": 0.02}],
    "mc_dropout": [
        *({"rate": 0.05}, {"rate": 0.02}, {"rate": 0.1}, {"dropout_rate": 0.1}),
        {"rate": 0.03, "dropout_rate": 0.1},
    ],
}
# Schedules that know no last round, besides: the rate, and the rounds after which it has halved.
SCHEDULES = ((0.03, 100), (0.03, 30), (0.05, 20))
TUNED = {"partitions": ("label_skew:2", "dirichlet:0.5"), "seed": 100}

# Posterior temperatures, by data and by share of them.
TEMPERATURES = (0.005, 0.01, 0.02, 0.05, 1.0)
# Other seeds than those of the results, the first that of the trials.
TEMPERATURE_SEEDS = (100, 101, 102, 103, 104)
SHARES = (1.0, 1 / 3, 0.1)

# Controls: examples of a client, with as many local steps; standard deviation of the noise of pixels in [0, 1].
_EXAMPLES = {"fashion_mnist": (32, 100, 320), "digits": (13, 43, 129)}
CONTROLS = {"examples": _EXAMPLES, "partition": "iid", "seeds": (0, 1, 2), "noise": 0.3}

PARTITIONS = ("label_skew:2", "dirichlet:0.5", "iid", "dirichlet:0.1")
SEEDS = (0, 1, 2, 3, 4)
_SCORED = {"server_share": 0.02, "test_examples": 2000, "num_samples": 20}
SIZES = {
    "fashion_mnist": {
        **{"dataset": "fashion_mnist", "elsewhere": "mnist", "elsewhere_examples": 1000, "model": "lenet"},
        **{"examples_per_client": 320, "rounds": 80, "average": 20, **_SCORED},
    },
    "digits": {
        **{"dataset": "digits", "model": "lenet", "rounds": 60, "average": 15, "num_samples": 20},
        **{"server_share": 0.1},
    },
    "cifar10": {
        **{"dataset": "cifar10", "elsewhere": "fashion_mnist", "elsewhere_examples": 1000, "model": "lenet"},
        **{"examples_per_client": 320, "rounds": 80, "average": 20, **_SCORED},
    },
}

# Curves over numbers of rounds, each a run of its own, in which all rates fall to zero: options of `tfp-bfl run`.
_LINEAR = {"algorithm": "fed_opt", "schedule": "linear", "local_epochs": 1}
_POINT, _DROPOUT = {**_LINEAR, "kind": "deterministic"}, {**_LINEAR, "kind": "mc_dropout", "dropout_rate": 0.1}
_ADAM = {"server_optimizer": "adam", "server_learning_rate": 0.01, "server_schedule": "linear"}
CURVES: dict[str, dict[str, Any]] = {
    "default": {},
    # Point weights and dropout under the steps of the default.
    "mc_dropout_of_default": {"kind": "mc_dropout"},
    "fed_avg_momentum": _POINT,
    "fed_avg_server_adam": {**_POINT, **_ADAM},
    # As many client steps as the default.
    "fed_avg_3_epochs": {**_POINT, "local_epochs": 3},
    "mc_dropout": _DROPOUT,
    "mc_dropout_server_adam": {**_DROPOUT, **_ADAM},
    "mc_dropout_3_epochs": {**_DROPOUT, "local_epochs": 3},
    # The ends of five cycles of the clients' rate in one run of FedAvg (Huang et al. 2017) predict together.
    "snapshots_5": {**_POINT, "snapshots": 5},
    # FedAvg, then a posterior of its last layer by shared curvature: in one message at its weights, and exact in ten.
    "fed_avg_laplace": {**_POINT, "then": ["laplace", 1]},
    "fed_avg_last_layer": {**_POINT, "then": ["last_layer", 10]},
}
# Clients' rates by data, method and skew, each the best of five trials on that data; where there is none, of BY_SKEW.
CURVE_RATES: dict[str, dict[str, dict[str, float]]] = {
    "digits": {
        "fed_avg_momentum": {"mild": 0.1, "strong": 0.1},
        "fed_avg_server_adam": {"mild": 0.02, "strong": 0.02},
        "fed_avg_3_epochs": {"mild": 0.02, "strong": 0.05},
        "mc_dropout": {"mild": 0.05, "strong": 0.1},
        "mc_dropout_server_adam": {"mild": 0.02, "strong": 0.03},
        "mc_dropout_3_epochs": {"mild": 0.05, "strong": 0.05},
        **{name: {"mild": 0.1, "strong": 0.1} for name in ("snapshots_5", "fed_avg_laplace", "fed_avg_last_layer")},
    },
    "fashion_mnist": {
        "fed_avg_3_epochs": {"mild": 0.02, "strong": 0.02},
        "mc_dropout_3_epochs": {"mild": 0.01, "strong": 0.03},
    },
}
ROUNDS = (30, 60, 120, 240, 480)
# Rounds are doubled while that lowers the NLL of held-out images by as much.
FALL = 0.005
# Of equal bytes; and what a method has of them that is not in ROUNDS: a message of the default is 1.25 of FedAvg's, and
# the last layer's messages take the bytes of one and of five rounds.
BYTES_OF = ("fed_avg_momentum", 60)
MORE_ROUNDS = {"default": (48,), "fed_avg_laplace": (59,), "fed_avg_last_layer": (55,)}
# (data, partition) -> seeds, in the order in which they run.
CURVE_SEEDS = {
    **{("digits", partition): SEEDS for partition in ("label_skew:2", "dirichlet:0.1", "iid")},
    **{("fashion_mnist", partition): SEEDS for partition in ("dirichlet:0.5", "label_skew:2")},
    **{("fashion_mnist", partition): SEEDS[:3] for partition in ("iid", "dirichlet:0.1")},
}
