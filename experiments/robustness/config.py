"""The settings of the robustness study: data only."""

from experiments.aggregation.config import RULES as RULES

CLIENTS = 10
HOSTILE = 2  # the clients 0 and 1

# What a hostile client makes of its honest work: its change from the anchor and its variances, each times a factor.
ATTACKS = {
    "none": (1.0, 1.0),
    "flipped": (-5.0, 1.0),
    "scaled": (100.0, 100.0),
    "overconfident": (-1.0, 0.01),
    "reversed": (-1.0, 1.0),
}
# The control of every robust aggregation: the hostile clients are not there, and neither are their data.
ABSENT = "absent"

# Clipped to somewhat below the median honest norm (`norms`), 6.2 to 6.8.
DEFENCES = ("none", "clip:6", "trimmed:0.2", "median", "centered_clip")

# FedKP's rule pools by itself, without another robust aggregation: in the place of that stands how its modes are found.
KERNEL = "kernel_posterior"
KERNELS = {
    "clients": {"start": "clients"},
    "mean": {"start": "mean"},
    "mean gaussian": {"start": "mean", "kernel": "gaussian"},
}

DATASET = "digits"
# Which rules on which partition, in the order in which they run, by the kind of model. FedKP is of weights without a
# variance.
PARTITIONS = {
    "flipout": {
        "dirichlet:0.1": ("log_linear_pool", "linear_pool"),
        "dirichlet:0.5": ("log_linear_pool", "linear_pool", KERNEL),
        "iid": RULES,
    },
    "deterministic": {
        "dirichlet:0.1": ("naive_weighted_average", KERNEL),
        "dirichlet:0.5": ("naive_weighted_average", KERNEL),
        "iid": ("naive_weighted_average", KERNEL),
    },
}
MODELS = {
    "flipout": {"num_classes": 10, "initial_stddev": 0.003},
    "deterministic": {"num_classes": 10},
}
# Without variances `overconfident` is `reversed`, and clip's bound was chosen with them.
LEFT_OUT = {"flipout": (), "deterministic": ("overconfident", "clip:6")}
TRAINING = {
    **{"local_epochs": 5, "batch_size": 32, "learning_rate": 3e-3, "optimizer_fn": "adam"},
    **{"inference": "backprop", "temperature": 1.0},
}
ROUNDS = 20
NUM_SAMPLES = 20
SEEDS = (0, 1, 2)
