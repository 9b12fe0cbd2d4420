"""The settings of the comparison of aggregation rules: data only."""

RULES = (
    "naive_weighted_average",
    "weighted_sum",
    "linear_pool",
    "conflation",
    "weighted_conflation",
    "distributed_weight_consolidation",
    "log_linear_pool",
)

# Name -> options of `tfp_bfl.config.RunConfig` and what varies beside the rule.
STUDIES = {
    "digits": {
        "options": {"dataset": "digits", "model": "lenet", "evaluate_every": 10},
        "variants": (
            {"local_epochs": 1, "rounds": 150},
            {"local_epochs": 5, "rounds": 60},
        ),
        "seeds": (0, 1),
    },
    "fashion_mnist": {
        "options": {
            "dataset": "fashion_mnist",
            "model": "lenet",
            "examples_per_client": 1280,
            "evaluation_examples": 2000,
        },
        "variants": ({"local_epochs": 1, "rounds": 10},),
        "seeds": (0,),
    },
}
