"""The settings of the study of QLSD: data only.

A cell is a study, a method and, where there are several, a step size or a number of levels, over all runs.
"""

# The sizes that the authors' generator gives; their sum, 2,042, is the curvature L of the potential.
CLIENT_SIZES = (192, 109, 44, 90, 86, 40, 162, 14, 94, 15, 49, 166, 190, 141, 156, 47, 116, 77, 135, 119)
GAUSSIAN = {"sizes": CLIENT_SIZES, "dim": 50, "client_stddev": 5.0, "data_seed": 0}

# Estimator, compressor and share of a client's examples in a batch; "p bits" are 2^p levels.
TOY_METHODS = {
    "LSD#": ("plain", "none", 0.1),
    "QLSD# 4 bits": ("plain", "quantiser:16", 0.1),
    "QLSD# 8 bits": ("plain", "quantiser:256", 0.1),
    "QLSD# 16 bits": ("plain", "quantiser:65536", 0.1),
    "LSD*": ("fixed_point", "none", 0.1),
    "QLSD* 4 bits": ("fixed_point", "quantiser:16", 0.1),
    "QLSD* 8 bits": ("fixed_point", "quantiser:256", 0.1),
    "QLSD* 16 bits": ("fixed_point", "quantiser:65536", 0.1),
    # What the published code calls QLSD*: whole local gradients, without the control variate.
    "whole gradients, 4 bits": ("plain", "quantiser:16", None),
    "whole gradients, 8 bits": ("plain", "quantiser:256", None),
    "whole gradients, 16 bits": ("plain", "quantiser:65536", None),
}
# Times 1 / L.
TOY_STEPS = (1.0, 0.1, 0.01)

# Error at a budget of bits that a client sends, by the bound of the literature.
BUDGET_BITS = 1e6
BUDGET_METHODS = {"whole gradients": ("plain", None), "QLSD*": ("fixed_point", 0.1)}

_REGRESSION = {
    "clients": 10,
    "data_seed": 0,
    "prior_stddev": 0.1,
    "batch_size": 0.2,
    "refresh_every": 100,
    "every": 10,
    "tail": 0.01,
}
LOGISTICS = {
    "logistic": {"dataset": "digits", "fewest": 20, "below": 100, **_REGRESSION},
    "logistic_mnist": {"dataset": "mnist", "fewest": 50, "below": 200, **_REGRESSION},
}
# The data of the published Table 3, which `experiments.published` runs.
PUBLISHED_DATA = {"logistic_emnist": {"dataset": "emnist/digits", "fewest": 20, "below": 100, **_REGRESSION}}
LOGISTIC_METHODS = {
    "LSD++": "none",
    "QLSD++ 4 bits": "quantiser:16",
    "QLSD++ 8 bits": "quantiser:256",
    "QLSD++ 16 bits": "quantiser:65536",
}
# Without compression; DG-SGLD's clients step by a tenth of the coupling, FSGLD's one client as LSD++ does.
LOGISTIC_RIVALS = {
    "DG-SGLD": {"algorithm": "dg_sgld", "coupling": 1e-3, "local_steps": 8},
    "FSGLD": {"algorithm": "fsgld", "local_steps": 16},
}

# The source says nothing of its setting but the methods: this one is ours.
COVERTYPE = _REGRESSION
COVERTYPE_METHODS = {
    "MALA": {"algorithm": "mala"},
    **{name: {"compressor": compressor} for name, compressor in LOGISTIC_METHODS.items()},
    "DG-SGLD": {"algorithm": "dg_sgld", "relative_coupling": 2.5, "local_steps": 8},
}

# Synthetic(1, 1) of Li et al. 2020, of two classes.
MEMORY = {
    "clients": 20,
    "dim": 10,
    "fewest": 10,
    "below": 50,
    "data_seed": 0,
    "prior_precision": 1000.0,
    "refresh_every": 100,
    "batch_size": 1,
}
# Compressor, and whether clients keep a memory.
MEMORY_METHODS = {
    "HMC": None,
    "LSD++": ("none", False),
    "QLSD++ 2 levels": ("quantiser:2", True),
    "QLSD++ 2 levels, no memory": ("quantiser:2", False),
    "QLSD++ 4 levels": ("quantiser:4", True),
    "QLSD++ 4 levels, no memory": ("quantiser:4", False),
    "QLSD++ 16 levels": ("quantiser:16", True),
    "QLSD++ 16 levels, no memory": ("quantiser:16", False),
}

# The prior is the published program's, N(0, I / 10). Clients have each other label at a twentieth of their dominant
# label's weight: two thirds to three quarters of a client's examples have its dominant label.
NETWORK = {
    "dataset": "mnist",
    "elsewhere": "fashion_mnist",
    "clients": 20,
    "other_interest": 0.05,
    "data_seed": 0,
    "prior_stddev": 10**-0.5,
    "unlabelled": 500,
}
_PLAIN = {"algorithm": "qlsd", "estimator": "plain", "compressor": "quantiser:256", "refresh_every": 100}
_ANCHORED = {**_PLAIN, "estimator": "anchored"}
NETWORK_CHAINS = {
    "SGLD, one client": {**_PLAIN, "algorithm": "sgld", "compressor": "none"},
    "SGLD, ten times as long": {**_PLAIN, "algorithm": "sgld", "compressor": "none", "times_as_long": 10},
    "QLSD": _PLAIN,
    "QLSD, 5 of 20": {**_PLAIN, "cohort_size": 5},
    "QLSD++": _ANCHORED,
    "QLSD++, 5 of 20": {**_ANCHORED, "cohort_size": 5},
    "LSD++, 5 of 20": {**_ANCHORED, "compressor": "none", "cohort_size": 5},
    # At the reduced size gamma N is the published one, 1e-7 times 60,000.
    "short steps, 5 of 20": {**_ANCHORED, "step_factor": 0.06, "cohort_size": 5},
}
NETWORK_TRAINING = {
    "FedAvg": {"algorithm": "fed_opt"},
    "FedBE, Gaussian": {"algorithm": "fed_be"},
    "FedBE, Dirichlet": {"algorithm": "fed_be", "distribution": "dirichlet"},
}
NETWORK_METHODS = ("HMC", *NETWORK_CHAINS, *NETWORK_TRAINING)
# The same on other networks: LeNet-5 on the same data, ResNet-20 on CIFAR-10 from one trained start, as published.
NETWORKS = {"network": NETWORK, "lenet": NETWORK, "resnet": {**NETWORK, "dataset": "cifar10", "elsewhere": None}}
# Predictions of one seed, for figures: without HMC, which they are not compared with.
PREDICTED = ("SGLD, one client", "QLSD++, 5 of 20", "FedAvg")

# Batches of one example at the step 0.1 / L, L = N: equal clients.
CONSISTENCY = {
    **{"clients": 10, "dim": 20, "data_seed": 0, "batch_size": 1, "step": 0.1, "refresh_every": 100},
    **{"rounds": 4_000, "burn_in": 1_000, "runs": 4},
}
CONSISTENCY_EXAMPLES = (100, 1_000, 10_000)
CONSISTENCY_METHODS = {
    "LSD#": ("plain", "none"),
    "QLSD# 4 bits": ("plain", "quantiser:16"),
    "LSD++": ("anchored", "none"),
    "QLSD++ 4 bits": ("anchored", "quantiser:16"),
}
_OF_LARGE = ("SGLD, one client", "QLSD", "QLSD, 5 of 20", "QLSD++", "QLSD++, 5 of 20", *NETWORK_TRAINING)

# Rounds, those before the first draw, and independent chains; "full" is the published size.
SIZES = {
    "reduced": {
        "toy": {"rounds": 12_000, "burn_in": 2_000, "runs": 10},
        "logistic": {"rounds": 50_000, "burn_in": 5_000, "runs": 4},
        "logistic_mnist": {"rounds": 20_000, "burn_in": 5_000, "runs": 4},
        "memory": {"rounds": 20_000, "runs": 10},
        "memory_exact": {"rounds": 20_000, "runs": 4, "burn_in": 1_000},
        "budget": {"runs": 10},
        "covertype": {"examples": 5_000, "rounds": 50_000, "burn_in": 5_000, "runs": 4},
        "network": {
            "of_all": {"model": "mlp", "hidden": 32, "examples": 1_000, "test_examples": 5_000, "batch_size": 16},
            "hmc": {"runs": 2, "num_draws": 400, "burn_in": 200, "num_leapfrog_steps": 30, "thin": 1},
            "sgld": {"batch_size": 320},
            "chains": {"runs": 3, "rounds": 5_000, "burn_in": 2_500, "every": 50, "step_size": 1e-4},
            "training": {"runs": 3, "rounds": 20, "local_epochs": 10, "learning_rate": 1e-2},
        },
        "lenet": {
            "methods": _OF_LARGE,
            "of_all": {"model": "lenet", "examples": 1_000, "test_examples": 2_000, "batch_size": 16},
            "hmc": {"runs": 2, "num_draws": 60, "burn_in": 100, "num_leapfrog_steps": 20, "thin": 1},
            "sgld": {"batch_size": 320},
            "chains": {"runs": 2, "rounds": 2_000, "burn_in": 1_000, "every": 20, "step_size": 1e-4},
            "training": {"runs": 2, "rounds": 20, "local_epochs": 10, "learning_rate": 1e-2},
        },
        "resnet": {
            "methods": _OF_LARGE,
            "of_all": {
                "model": "resnet20",
                "warm_epochs": 60,
                "examples": 200,
                "test_examples": 1_000,
                "batch_size": 3,
            },
            "hmc": {"runs": 2, "num_draws": 30, "burn_in": 30, "num_leapfrog_steps": 10, "thin": 1},
            "sgld": {"batch_size": 60},
            "chains": {"runs": 1, "rounds": 600, "burn_in": 300, "every": 10, "step_size": 1e-5},
            "training": {"runs": 1, "rounds": 5, "local_epochs": 5, "learning_rate": 1e-2},
        },
        "budget_levels": (1, 10, 100, 10_000),
        "budget_steps": (1.0, 0.1),
    },
    "full": {
        "toy": {"rounds": 500_000, "burn_in": 450_000, "runs": 30},
        "logistic": {"rounds": 500_000, "burn_in": 50_000, "runs": 4},
        "logistic_mnist": {"rounds": 500_000, "burn_in": 50_000, "runs": 4},
        "memory": {"rounds": 100_000, "runs": 20},
        "memory_exact": {"rounds": 100_000, "runs": 4, "burn_in": 1_000},
        "budget": {"runs": 30},
        "covertype": {"examples": 581_012, "rounds": 500_000, "burn_in": 50_000, "runs": 4},
        "lenet": {
            "of_all": {"model": "lenet", "examples": 60_000, "test_examples": 10_000, "batch_size": 64},
            "hmc": {"runs": 3, "num_draws": 100, "burn_in": 100, "num_leapfrog_steps": 1_000, "thin": 1},
            "sgld": {"batch_size": 64},
            "chains": {"runs": 3, "rounds": 100_000, "burn_in": 10_000, "every": 500, "step_size": 1e-7},
            "training": {"runs": 3, "rounds": 100, "local_epochs": 5, "learning_rate": 1e-2},
        },
        "resnet": {
            "of_all": {
                "model": "resnet20",
                "warm_epochs": 100,
                "examples": 50_000,
                "test_examples": 10_000,
                "batch_size": 64,
            },
            "hmc": {"runs": 3, "num_draws": 100, "burn_in": 100, "num_leapfrog_steps": 1_000, "thin": 1},
            "sgld": {"batch_size": 64},
            "chains": {"runs": 3, "rounds": 100_000, "burn_in": 50_000, "every": 10, "step_size": 1e-7},
            "training": {"runs": 3, "rounds": 100, "local_epochs": 5, "learning_rate": 1e-2},
        },
        "budget_levels": (
            1,
            2,
            3,
            4,
            7,
            11,
            18,
            30,
            48,
            78,
            127,
            207,
            336,
            546,
            886,
            1_438,
            2_336,
            3_793,
            6_158,
            10_000,
        ),
        "budget_steps": (1.0, 0.8, 0.6, 0.5, 0.4, 0.2, 0.1, 0.09),
    },
}
# Chains that are held in memory at once.
RUNS_AT_ONCE = 10

# Table 3 of the source: error of the 99 % HPD region against LSD++, and bits of LSD++ over bits; one run each.
PUBLISHED_LOGISTIC = {
    "QLSD++ 4 bits": (6.1e-3, 7.6),
    "QLSD++ 8 bits": (4.3e-3, 6.7),
    "QLSD++ 16 bits": (6.9e-4, 3.1),
    "DG-SGLD": (5.2e-3, 6.4),
    "FSGLD": (5.4e-3, 6.2),
}
# Table S1 of the source: error of the 99 % HPD region against MALA.
PUBLISHED_COVERTYPE = {"QLSD++ 4 bits": 2.2e-3, "QLSD++ 8 bits": 2.0e-2, "QLSD++ 16 bits": 1.9e-2, "DG-SGLD": 1.8e-2}
# Tables S2 and 4 of the source, as fractions: single runs. FedBE's two distributions are in another order in each, and
# its HMC on CIFAR-10 is of another network than its chains.
_SCORES, _NEAR = ("accuracy", "ece", "brier", "nll"), ("accuracy", "agreement", "total_variation")
PUBLISHED_NETWORKS: dict[str, dict[str, dict[str, float]]] = {
    "lenet": {
        "SGLD, one client": dict(zip(_SCORES, (0.991, 0.00577, 0.0138, 0.0286))),
        "QLSD": dict(zip(_SCORES, (0.988, 0.00916, 0.0198, 0.0415))),
        "QLSD, 5 of 20": dict(zip(_SCORES, (0.983, 0.0157, 0.0223, 0.0482))),
        "QLSD++": dict(zip(_SCORES, (0.988, 0.00692, 0.0191, 0.0411))),
        "QLSD++, 5 of 20": dict(zip(_SCORES, (0.987, 0.0093, 0.0218, 0.0465))),
        "FedBE, Gaussian": dict(zip(_SCORES, (0.435, 0.0751, 0.666, 1.39))),
        "FedBE, Dirichlet": dict(zip(_SCORES, (0.793, 0.213, 0.361, 0.78))),
    },
    "resnet": {
        "HMC": dict(zip(_NEAR, (0.896, 0.94, 0.07))),
        "SGLD, one client": dict(zip(_NEAR, (0.888, 0.91, 0.11))),
        "QLSD++": dict(zip(_NEAR, (0.881, 0.90, 0.12))),
        "QLSD++, 5 of 20": dict(zip(_NEAR, (0.866, 0.90, 0.12))),
        "FedBE, Gaussian": dict(zip(_NEAR, (0.902, 0.89, 0.16))),
        "FedBE, Dirichlet": dict(zip(_NEAR, (0.907, 0.90, 0.16))),
    },
}
