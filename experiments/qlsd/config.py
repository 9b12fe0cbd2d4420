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

LOGISTIC = {
    "dataset": "digits",
    "clients": 10,
    "fewest": 20,
    "below": 100,
    "data_seed": 0,
    "prior_stddev": 0.1,
    "batch_size": 0.2,
    "refresh_every": 100,
    "every": 10,
    "tail": 0.01,
}
LOGISTIC_METHODS = {
    "LSD++": "none",
    "QLSD++ 4 bits": "quantiser:16",
    "QLSD++ 8 bits": "quantiser:256",
    "QLSD++ 16 bits": "quantiser:65536",
}

# Rounds, those before the first draw, and independent chains; "full" is the published size.
SIZES = {
    "reduced": {
        "toy": {"rounds": 12_000, "burn_in": 2_000, "runs": 10},
        "logistic": {"rounds": 50_000, "burn_in": 5_000, "runs": 4},
        "budget": {"runs": 10},
        "budget_levels": (1, 10, 100, 10_000),
        "budget_steps": (1.0, 0.1),
    },
    "full": {
        "toy": {"rounds": 500_000, "burn_in": 450_000, "runs": 30},
        "logistic": {"rounds": 500_000, "burn_in": 50_000, "runs": 4},
        "budget": {"runs": 30},
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
PUBLISHED_LOGISTIC = {"QLSD++ 4 bits": (6.1e-3, 7.6), "QLSD++ 8 bits": (4.3e-3, 6.7), "QLSD++ 16 bits": (6.9e-4, 3.1)}
