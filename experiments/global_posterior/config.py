"""The settings of the study of the global posterior: data only.

A *method* says how a model is trained; one training may give several *rows*, such as a network with and without a
fitted temperature. A cell is a method, a partition, a variant of the data and a seed. `PLAN` is their order.
"""

# Of all cells.
COMMON = {"clients": 10, "local_epochs": 1, "batch_size": 32}

# What was the library's default before, on which three rules are compared.
FORMER = {
    "recipe": "variational",
    "prior_stddev": 10.0,
    "inference": "backprop",
    "kl": "client",
    "temperature": 1.0,
}
SITES = {"initial_stddev": 0.05, "inference": "curvature", "temperature": 0.1}

METHODS = {
    "curvature_0.1": {"recipe": "variational", "inference": "curvature", "temperature": 0.1},
    "fed_avg": {"recipe": "variational", "kind": "deterministic", "rule": "naive_weighted_average"},
    "mc_dropout": {"recipe": "variational", "kind": "mc_dropout", "rule": "naive_weighted_average"},
    "former_default": FORMER,
    "curvature_0.01": {"recipe": "variational", "inference": "curvature", "temperature": 0.01},
    "curvature_0.02": {"recipe": "variational", "inference": "curvature", "temperature": 0.02},
    "curvature_1": {"recipe": "variational", "inference": "curvature", "temperature": 1.0},
    # The simplest remedy: the same training with the prior counted once, and log s at a rate at which it can move.
    "backprop_total": {
        "recipe": "variational",
        "inference": "backprop",
        "kl": "total",
        "stddev_rate": 20.0,
        "temperature": 0.1,
    },
    # Is it the noise of one draw a batch that the default lags by?
    "curvature_0.1_flipout": {
        "recipe": "variational",
        "inference": "curvature",
        "temperature": 0.1,
        "noise": "flipout",
    },
    # Damping and start were chosen on digits; at the recipe's damping of 0.5 the clients overshoot together.
    "partitioned_vi": {"recipe": "partitioned_vi", "damping": 0.1, **SITES},
    "bayesian_admm": {"recipe": "bayesian_admm", "damping": 0.1, **SITES},
    "former_conflation": {**FORMER, "rule": "conflation"},
    "former_naive_average": {**FORMER, "rule": "naive_weighted_average"},
    "partitioned_vi_damping_0.5": {"recipe": "partitioned_vi", "damping": 0.5, **SITES},
}

# The rows of a training of point weights, besides the method's own.
FITTED = "fed_avg_fitted"
ENSEMBLE = "client_ensemble"
BASELINE = FITTED

# The data of a cell, beside those of the size; a tenth of the data gets as many steps.
VARIANTS = {
    "all": {},
    "shuffled_labels": {"shuffled": True},
    "a_tenth": {"share_of_examples": 0.1, "local_epochs": 10},
}

SIZES = {
    "fashion_mnist": {
        "dataset": "fashion_mnist",
        "elsewhere": "mnist",
        "examples_per_client": 640,
        "rounds": 40,
        "server_share": 0.02,
        "test_examples": 2000,
        "elsewhere_examples": 1000,
        "num_samples": 20,
        "permutations": 3,
    },
}

# "Does it decay?": long runs.
CURVES = {
    "digits": {
        "dataset": "digits",
        "partition": "dirichlet:0.5",
        "local_epochs": 5,
        "rounds": 500,
        "evaluate_every": 20,
        "num_samples": 20,
    },
    "fashion_mnist": {
        "dataset": "fashion_mnist",
        "partition": "dirichlet:0.5",
        "elsewhere": "mnist",
        "examples_per_client": 640,
        "server_share": 0.02,
        "test_examples": 2000,
        "elsewhere_examples": 1000,
        "rounds": 500,
        "evaluate_every": 20,
        "num_samples": 20,
    },
}
CURVE_METHODS = ("curvature_0.1", "curvature_0.02", "fed_avg", "former_default")

FIRST, OTHERS = ("dirichlet:0.5", "iid"), ("dirichlet:0.1", "label_skew:2")
CONTROLS = {"variants": ("shuffled_labels", "a_tenth"), "methods": ("curvature_0.1",)}
# Blocks of cells, in the order in which they run.
PLAN = (
    {"partitions": FIRST, "seeds": (0,)},
    {"partitions": FIRST, "seeds": (0,), **CONTROLS},
    {"partitions": OTHERS, "seeds": (0,)},
    "curves",
    {"partitions": FIRST, "seeds": (1, 2)},
    {"partitions": FIRST, "seeds": (1, 2), **CONTROLS},
    {"partitions": OTHERS, "seeds": (1, 2)},
)
