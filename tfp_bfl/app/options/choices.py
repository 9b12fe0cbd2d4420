"""Names that options can take, without the imports of the tables that hold them.

Importing a table would import TensorFlow, for which a user with a misspelt name should not have to wait. A new entry of
a table is one more name here; `tests/app/test_options.py` compares all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from tfp_bfl.errors import lookup


class Table(NamedTuple):
    """The names of a table.

    Fields:
      what: one of them is called.
      entries: how each is written, such as "iid" and "dirichlet:ALPHA".
      values: a number of each, such as the learning rate of an optimizer; () for none.
      several: a value can be several names, separated by commas.
    """

    what: str
    entries: tuple[str, ...]
    values: tuple[float, ...] = ()
    several: bool = False

    def forms(self) -> list[str]:
        """Return the form of each name."""
        return list(self.entries)

    def numbers(self) -> dict[str, float]:
        """Return the number of each entry."""
        return dict(zip(self.entries, self.values))

    def check(self, value: str) -> None:
        """Raise InvalidArgument where there is no such name; what follows its colon is not looked at."""
        names = {form.partition(":")[0]: form for form in self.forms()}
        takes_arguments = any(":" in form for form in names.values())
        for name in value.split(",") if self.several else [value]:
            lookup(names, name.strip().partition(":")[0] if takes_arguments else name, self.what)


MODELS = Table("model", ("lenet", "resnet20", "mlp", "conv_net"))
KINDS = Table("kind of model", ("deterministic", "mc_dropout", "flipout", "variational_dropout"))
VARIATIONAL = Table("kind with variational weights", ("flipout", "variational_dropout"))
NORMALIZATIONS = Table("normalization", ("batch", "group", "none"))
PRECISIONS = Table("precision", ("float32", "bfloat16_noise", "bfloat16"))
RULES = Table(
    "rule",
    (
        "naive_weighted_average",
        "weighted_sum",
        "linear_pool",
        "conflation",
        "weighted_conflation",
        "distributed_weight_consolidation",
        "log_linear_pool",
        "mean_precision_average",
    ),
)
ONE_SHOT = Table("rule for one round", ("weighted_sum", "conflation", "weighted_conflation"))
ROBUST = Table("robust aggregator", ("clip:MAX_NORM", "trimmed:SHARE", "median", "centered_clip"))
STRUCTURES = Table("structure", ("last_layer", "diagonal"))
STARTS = Table("start", ("mean", "clients"))
KERNELS = Table("kernel", ("epanechnikov", "gaussian"))
BANDWIDTHS = Table("bandwidth", ("silverman", "silverman_wide", "scott", "plug_in", "cross_validated", "adaptive"))
WEIGHTINGS = Table("weighting", ("equal", "train_size", "distance", "max_discrepancy", "max_discrepancy_farthest"))
PARTITIONS = Table(
    "partition",
    (
        "given",
        "iid",
        "label_skew:CLASSES_PER_CLIENT",
        "dirichlet:ALPHA",
        "lda:ALPHA",
        "pachinko:ALPHA",
        "noniid_datasets:OTHER_INTEREST",
    ),
)
DATE_UNITS = Table("unit of dates", ("days", "weeks", "months", "years"))
TASKS = Table("task", ("classification", "regression"))
EVALUATION_PRECISIONS = Table("precision of prediction", ("float32", "bfloat16"))
INFERENCES = Table("inference", ("curvature", "natural", "ivon", "backprop"))
OPTIMIZERS = Table(
    "optimizer", ("sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam"), (0.1, 0.03, 0.03, 0.01, 0.001, 0.001)
)
SCHEDULES = Table("schedule", ("cosine", "inverse", "exponential", "constant"))
NOISES = Table("noise", ("shared", "flipout"))
KLS = Table("kl", ("total", "client", "product"))
ESTIMATORS = Table("estimator", ("plain", "fixed_point", "anchored"))
AUGMENTATIONS = Table("augmentation", ("crop_and_flip:PADDING",))
COMPRESSORS = Table("compressor", ("quantiser:LEVELS", "sparsifier:SHARE", "largest:SHARE", "none"), several=True)
LEARNERS = Table("learner", ("plain", "maml", "first_order_maml", "hessian_free_maml"))
KL_REDUCTIONS = Table("reduction of the KL", ("sum", "mean"))
PERSONAL_VARIANCES = Table(
    "source of variances", ("hypernetwork", "free_variances", "common_variances", "constant_variances")
)
EVALUATION_NOISES = Table("noise of evaluation", ("own", "none", "another"))
VARIANCE_RANGES = Table("range of variances", ("smooth", "clamped"))
INITIALIZERS = Table("initializer", ("he_normal", "uniform"))
PARAMETRIZATIONS = Table("parametrization", ("log_variance", "log_alpha"))
ENGINES = Table("engine", ("tff", "local", "compiled", "ray"))
FORMS = Table("form of progress", ("bar", "lines", "phases", "json", "none"))
SERVER_OPTIMIZERS = Table("server optimizer", ("sgd", "adam", "yogi", "adagrad"), (1.0, 0.01, 0.03, 0.1))
