"""The settings of the study of the default posterior: data only.

A *method* is a training; it gives several *rows*: the last round, the average of the last rounds, and each of them with
a softmax temperature fitted on images of the server. `TRIALS` are the values among which held-out training images
chose; `CHOSEN` what they chose.
"""

COMMON = {"clients": 10, "local_epochs": 1, "batch_size": 32}

# The default of `algorithms.variational`, spelled out so that a record names it; rates fall along a cosine.
DEFAULT = {
    "kind": "flipout",
    "inference": "curvature",
    "optimizer": "momentum",
    "rate": 0.02,
    "temperature": 0.01,
    "rule": "mean_precision_average",
}
# Of each method the trial of the lowest sum over both partitions.
METHODS = {
    "default": DEFAULT,
    "fed_avg_momentum": {"kind": "deterministic", "optimizer": "momentum", "rate": 0.02},
    "fed_avg_adam": {"kind": "deterministic", "optimizer": "adam", "rate": 0.01},
    "mc_dropout": {"kind": "mc_dropout", "optimizer": "momentum", "rate": 0.05, "dropout_rate": 0.1},
    # Five networks as fed_avg_momentum, with other initial weights: five times the cost.
    "ensemble_5": {"kind": "deterministic", "optimizer": "momentum", "rate": 0.02, "members": 5},
    # What was the default before.
    "former_default": {
        **{"kind": "flipout", "inference": "curvature", "optimizer": "adam", "rate": 0.001, "constant": True},
        **{"temperature": 0.05, "rule": "log_linear_pool"},
    },
}
# What a trial has where it says nothing else.
TRIED_AT = {"default": {"rate": 0.05}, "mc_dropout": {"rate": 0.05, "dropout_rate": 0.2}}
# Four trials of each method, on images that no client and no test has.
TRIALS = {
    "default": [{"rate": 0.05}, {"rate": 0.02}, {"rate": 0.1}, {"temperature": 0.02}],
    "fed_avg_momentum": [{"rate": 0.05}, {"rate": 0.02}, {"rate": 0.1}, {"rate": 0.2, "optimizer": "sgd"}],
    "fed_avg_adam": [{"rate": 0.001}, {"rate": 0.0003}, {"rate": 0.003}, {"rate": 0.01}],
    "mc_dropout": [{"rate": 0.05}, {"rate": 0.02}, {"rate": 0.1}, {"dropout_rate": 0.1}],
}
TUNED = {"partitions": ("label_skew:2", "dirichlet:0.5"), "seed": 100}

# Posterior temperatures, by data and by share of them.
TEMPERATURES = (0.005, 0.01, 0.02, 0.05, 0.2, 1.0)
SHARES = (1.0, 1 / 3, 0.1)

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
