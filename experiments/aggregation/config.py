"""The settings of the aggregation study: data only.

Fischer et al. 2024 (arXiv:2403.15263). A *size* says on which data and for how long; a *table* says which options of
`tfp_bfl.app.options.config.RunConfig` vary. A cell is one of a table's combinations with one seed.
"""

RULES = (
    "naive_weighted_average",
    "weighted_sum",
    "linear_pool",
    "conflation",
    "weighted_conflation",
    "distributed_weight_consolidation",
    "log_linear_pool",
)
DIRICHLET = ("dirichlet:0.5", "dirichlet:5.0")
PARTITIONS = ("iid", "label_skew:2", *DIRICHLET)
PUBLISHED_WEIGHTED = ("naive_weighted_average", "weighted_sum", "linear_pool", "weighted_conflation")
WEIGHTED = (*PUBLISHED_WEIGHTED, "log_linear_pool")
PUBLISHED_WEIGHTINGS = ("train_size", "max_discrepancy", "distance")

# DWC without pre-training keeps its start, whatever the optimizer.
LEARNING = tuple(rule for rule in RULES if rule != "distributed_weight_consolidation")

# Near softplus(-3), where the variational layers of TensorFlow Probability start.
WIDE_STDDEV = 0.05
WIDE = {"initial_stddev": (WIDE_STDDEV,)}
WIDE_SHORT = {**WIDE, "length": ("short",)}

# Of all cells, unless a table or size says otherwise; numbers as in the paper, the weighting is ours.
COMMON = {
    "kind": "flipout",
    "clients": 10,
    "partition": "iid",
    "rule": "naive_weighted_average",
    "weighting": "train_size",
    "local_epochs": 1,
    "batch_size": 32,
    "optimizer": "adam",
    "schedule": "exponential",
    "learning_rate": 1e-3,
    "learning_rate_decay": 0.04,
    "silent_rounds": 50,
    "prior_stddev": 10.0,
    "initial_stddev": 0.003,
    "dropout_rate": 0.2,
    # As published: a client counts the whole KL, and gradients of log s as of the means.
    "inference": "backprop",
    "temperature": 1.0,
    "kl": "client",
}

# Kind -> options that its weights do not use.
_OF_GAUSSIANS = ("inference", "noise", "temperature", "kl", "prior_stddev", "initial_stddev")
UNUSED = {
    "flipout": ("dropout_rate",),
    "mc_dropout": _OF_GAUSSIANS,
    "deterministic": (*_OF_GAUSSIANS, "dropout_rate"),
}

# The library's own: spreads that the data determine, and the prior counted once.
LEARNT = {
    "inference": ("curvature",),
    "temperature": (0.05,),
    "kl": (None,),  # by the rule: "product" for those of one shot
    "prior_stddev": ("fan_in",),
}

# A rate that trials choose: the one with the lowest score of its five, or two, by `RATES_OF`.
CHOSEN = "chosen"
MOMENTUM = {"optimizer": ("momentum",), "learning_rate": (CHOSEN,)}
BFLOAT16 = {"precision": ("bfloat16",)}  # of ResNet-20: two thirds of the time
# Partition -> the partition of its trials.
TRIED_ON = {"label_skew:2": "label_skew:2", **dict.fromkeys(("iid", *DIRICHLET), "dirichlet:0.5")}
# 15 % of a client's images are held out from training; the others are as many as without.
TRIAL = {"optimizer": ("momentum",), "hold_out": (0.15,), "examples_per_client": (753,), "length": ("short",)}

# By SGD with momentum, at rates and a dropout rate that held-out images selected in the study of the default
# posterior, with 80 rounds and a cosine schedule.
_BASELINES = tuple(
    {
        "kind": (kind,),
        "partition": partitions,
        "optimizer": ("momentum",),
        "learning_rate": (rate,),
        "dropout_rate": (0.1,),
        "length": ("short",),
    }
    for kind, strong in (("deterministic", 0.02), ("mc_dropout", 0.03))
    for rate, partitions in ((0.05, ("iid", *DIRICHLET)), (strong, ("label_skew:2",)))
)


def _column(length: str, **options: tuple[object, ...]) -> tuple[dict[str, tuple[object, ...]], ...]:
    """Return the arms of the published Table 2's column on all of CIFAR-10."""
    same = {"length": (length,), "augmentation": ("crop_and_flip:4",), **options}
    rules = ("weighted_sum", "naive_weighted_average")
    return {"kind": ("deterministic",), **same}, {"rule": rules, **same, **WIDE}


# Table -> blocks of options that vary together; the values of a block are combined. A length names rounds and local
# epochs of the size: "short" is E = 1, "long" E = 5, "once" a single round, "alone" one client with all data.
TABLES = {
    "centralised": ({"kind": ("deterministic", "mc_dropout", "flipout"), "clients": (1,), "length": ("alone",)},),
    "rules": ({"rule": RULES, "partition": PARTITIONS, "length": ("short",)},),
    "rules_5_epochs": ({"rule": RULES, "partition": ("iid", "dirichlet:0.5"), "length": ("long",)},),
    "baselines": (
        {"kind": ("deterministic", "mc_dropout"), "partition": PARTITIONS, "length": ("short",)},
        # After the last layer too, as published.
        {"kind": ("mc_dropout",), "output_dropout": (True,), "partition": PARTITIONS, "length": ("short",)},
    ),
    # Initial sd 0.05: with vanishing standard deviations, divergences compare means alone. Equal weights differ from
    # those by size on Dirichlet partitions alone, where clients are not of one size; on IID they are conflation's pair.
    "weightings": (
        {"rule": WEIGHTED, "weighting": PUBLISHED_WEIGHTINGS, "partition": PARTITIONS, **WIDE_SHORT},
        {"rule": WEIGHTED, "weighting": ("equal",), "partition": DIRICHLET, **WIDE_SHORT},
        {"rule": ("weighted_conflation",), "weighting": ("equal",), **WIDE_SHORT},
        {
            "rule": ("naive_weighted_average", "weighted_sum", "linear_pool"),
            "weighting": ("max_discrepancy_farthest",),
            "partition": ("label_skew:2",),
            **WIDE_SHORT,
        },
        {
            "rule": PUBLISHED_WEIGHTED,
            "weighting": PUBLISHED_WEIGHTINGS,
            "partition": PARTITIONS,
            "length": ("long",),
            **WIDE,
        },
        {
            "rule": ("conflation",),
            "weighting": ("equal",),
            "partition": PARTITIONS,
            "length": ("short", "long"),
            **WIDE,
        },
    ),
    "pretraining": (
        {
            "rule": ("distributed_weight_consolidation", "weighted_sum"),
            "pretrain_share": (None, 0.1),
            "partition": PARTITIONS,
            "length": ("once",),
        },
        # McClure et al. 2018: what DWC subtracts is the clients' prior, the pre-trained posterior.
        {
            "rule": ("distributed_weight_consolidation", "weighted_sum"),
            "pretrain_share": (0.1,),
            "update_prior": (True,),
            "partition": PARTITIONS,
            "length": ("once",),
        },
        # What can be subtracted without pre-training: the start, as the clients' prior.
        {
            "rule": ("distributed_weight_consolidation",),
            "update_prior": (True,),
            "pretrained": (True,),
            "partition": PARTITIONS,
            "length": ("once",),
        },
    ),
    # Beyond the paper: noise that training feels, to show differences between rules that reduce it.
    "initial_sd_0.05": ({"rule": RULES, "partition": PARTITIONS, **WIDE_SHORT},),
    "initial_sd_0.05_5_epochs": ({"rule": RULES, "length": ("long",), **WIDE},),
    # The published schedule has five times the steps at E = 5, for its rates fall by the round. Here each step has the
    # same rate at either E: the short rounds have five times the silent ones, and a fifth of the decay.
    "equal_steps": tuple(
        {**methods, "partition": ("iid", "dirichlet:0.5"), "evaluate_every": (each,), "length": (length,), **schedule}
        for length, each, schedule in (
            ("many_short", 10, {"silent_rounds": (250,), "learning_rate_decay": (0.008,)}),
            ("many_long", 2, {}),
        )
        for methods in (
            {
                "rule": ("naive_weighted_average", "linear_pool", "log_linear_pool", "weighted_sum"),
                **WIDE,
            },
            {"kind": ("deterministic",)},
        )
    ),
    # The paper contradicts itself on whether clients of a Dirichlet partition are of one size; these are.
    "equal_sizes": (
        {
            "rule": ("naive_weighted_average", "linear_pool", "weighted_sum"),
            "partition": ("dirichlet:0.5", "lda:0.5"),
            "length": ("short",),
        },
        {"kind": ("deterministic",), "partition": ("dirichlet:0.5", "lda:0.5"), "length": ("short",)},
    ),
    "momentum_baselines": _BASELINES,
    # Five trials of each rule from each start, as many as the baselines had, and the rules at the rates chosen by them
    # beside the baselines.
    "momentum_trials": tuple(
        {
            "rule": LEARNING,
            "partition": tuple(dict.fromkeys(TRIED_ON.values())),
            "learning_rate": (0.01, 0.02, 0.03, 0.05, 0.1),
            **TRIAL,
            **start,
        }
        for start in ({}, WIDE)
    ),
    "momentum_rules": (
        {"rule": LEARNING, "partition": PARTITIONS, "length": ("short",), **MOMENTUM},
        *_BASELINES,
    ),
    "momentum_initial_sd_0.05": (
        {"rule": LEARNING, "partition": PARTITIONS, **WIDE_SHORT, **MOMENTUM},
        *_BASELINES,
    ),
    # Dropout learns more slowly.
    "long_baselines": (
        {"kind": ("deterministic", "mc_dropout"), "partition": PARTITIONS, "length": ("longer", "longest")},
    ),
    # Of the published Table 2, on all of CIFAR-10: until 98.6 % of what its learning rates add up to is spent, and
    # the first twenty of these rounds: the published schedule goes by the round, so that they are the same.
    **{length: _column(length) for length in ("column", "column_begun")},
    # The same twenty rounds by SGD with momentum at two rates; then a third of the rounds at the better rate of each
    # arm, with the same decay over the same share of the rounds.
    "column_momentum": _column("column_begun", optimizer=("momentum",), learning_rate=(0.01, 0.1), **BFLOAT16),
    "column_compressed": _column(
        "column_compressed", silent_rounds=(17,), learning_rate_decay=(0.12,), **MOMENTUM, **BFLOAT16
    ),
    # Beyond the paper: posteriors that say something, and weigh clients by what they know of each weight.
    "learned_sd": ({"rule": RULES, "partition": PARTITIONS, "length": ("short",), **LEARNT},),
    # Of these and of the published training, where each is left alone for long.
    "learned_sd_5_epochs": (
        {
            "rule": ("naive_weighted_average", "linear_pool", "weighted_sum"),
            "evaluate_every": (2,),
            "length": ("many_long",),
            **LEARNT,
        },
    ),
    "prior": (
        {
            "rule": WEIGHTED,
            "update_prior": (False, True),
            "length": ("short",),
        },
        {"rule": ("conflation",), "weighting": ("equal",), "update_prior": (False, True), "length": ("short",)},
    ),
}

# Table with chosen rates -> the table of its trials, and the score of a record that is to be low.
RATES_OF = {
    **dict.fromkeys(("momentum_rules", "momentum_initial_sd_0.05"), ("momentum_trials", "held_out_nll")),
    "column_compressed": ("column_momentum", "train_nll"),
}

# The tables of which the study's page shows figures; others are drawn where they are named.
FIGURES = ("rules", "initial_sd_0.05", "learned_sd", "learned_sd_5_epochs", "equal_steps", "column", "column_begun")

PUBLISHED = ("centralised", "rules", "rules_5_epochs", "baselines", "weightings", "pretraining", "prior")

# Size -> options of every cell, rounds and local epochs of each length, seeds of each table.
SIZES = {
    # As in the paper, for whoever has the machine; rounds are ours where the paper's are not known here.
    "paper": {
        "options": {"dataset": "cifar10", "model": "resnet20", "evaluate_every": 5, "num_samples": 50},
        "lengths": {
            **{"short": (400, 1), "long": (200, 5), "once": (1, 400), "alone": (200, 1)},
            **{"column": (130, 1), "column_begun": (20, 1), "column_compressed": (43, 1)},
        },
        "seeds": {
            **dict.fromkeys(PUBLISHED, (0, 1, 2)),
            **dict.fromkeys(("column", "column_begun", "column_momentum", "column_compressed"), (0,)),
        },
    },
    # Real CIFAR-10, a subset: meant for an hour on two cores.
    "cifar10": {
        "options": {
            "dataset": "cifar10",
            "model": "resnet20",
            "examples_per_client": 320,
            "evaluation_examples": 500,
            "evaluate_every": 3,
            "num_samples": 8,  # 20 would take as long as the training.
        },
        "lengths": {"short": (12, 1), "long": (3, 5), "once": (1, 12), "alone": (12, 1)},
        "seeds": {"rules": (0,), "centralised": (0,)},
        "partitions": ("iid", "dirichlet:0.5"),
    },
    "fashion_mnist": {
        "options": {
            "dataset": "fashion_mnist",
            "model": "lenet",
            "examples_per_client": 640,
            "evaluation_examples": 2000,
        },
        "lengths": {
            **{"short": (15, 1), "long": (3, 5), "once": (1, 40), "alone": (15, 1)},
            **{"many_short": (300, 1), "many_long": (60, 5), "longer": (60, 1), "longest": (200, 1)},
        },
        "seeds": {
            **dict.fromkeys((*PUBLISHED, "equal_steps", "learned_sd_5_epochs"), (0, 1)),
            **dict.fromkeys(("rules", "baselines", "learned_sd", "weightings", "pretraining", "prior"), (0, 1, 2)),
            **dict.fromkeys(("initial_sd_0.05", "initial_sd_0.05_5_epochs", "equal_sizes"), (0, 1, 2)),
            **dict.fromkeys(("momentum_baselines", "momentum_rules", "momentum_initial_sd_0.05"), (0, 1, 2)),
            "momentum_trials": (100,),
            "long_baselines": (0,),
        },
    },
    # The demo's federation, on which the defaults were chosen.
    "digits": {
        "options": {
            "dataset": "digits",
            "model": "lenet",
            "partition": "dirichlet:0.5",
            "learning_rate_decay": 0.0,
            "evaluate_every": 10,
        },
        "lengths": {"short": (150, 1), "long": (60, 5)},
        "seeds": {"rules": (0, 1), "rules_5_epochs": (0, 1)},
        "partitions": ("dirichlet:0.5",),
    },
}
