"""Choices that options can take, without the imports of the tables that hold them.

Importing a table would import TensorFlow, for which a user with a misspelt name should not have to wait. A new entry of
a table is one more name here; `tests/app/test_options.py` compares all of them.
"""

from typing import NamedTuple

from tfp_bfl.data import partition_forms
from tfp_bfl.errors import lookup


class Choices(NamedTuple):
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

    def numbers(self) -> dict[str, float]:
        """Return the number of each entry."""
        return dict(zip(self.entries, self.values))

    def check(self, value: str) -> None:
        """Raise InvalidArgument where there is no such name; what follows its colon is not looked at."""
        names = {form.partition(":")[0]: form for form in self.entries}
        takes_arguments = any(":" in form for form in names.values())
        for name in value.split(",") if self.several else [value]:
            lookup(names, name.strip().partition(":")[0] if takes_arguments else name, self.what)


MODELS = Choices("model", ("lenet", "resnet20", "mlp", "conv_net", "linear"))
KINDS = Choices("kind of model", ("deterministic", "mc_dropout", "flipout", "variational_dropout"))
VARIATIONAL = Choices("kind with variational weights", ("flipout", "variational_dropout"))
NORMALIZATIONS = Choices("normalization", ("batch", "group", "none"))
PRECISIONS = Choices("precision", ("float32", "bfloat16_noise", "bfloat16"))
RULES = Choices(
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
ONE_SHOT = Choices("rule for one round", ("weighted_sum", "conflation", "weighted_conflation"))
ROBUST = Choices("robust aggregator", ("clip:MAX_NORM", "trimmed:SHARE", "median", "centered_clip"))
STRUCTURES = Choices("structure", ("last_layer", "kronecker", "diagonal"))
HEADS = Choices("head", ("gaussian", "ridge", "softmax"))
STARTS = Choices("start", ("mean", "clients"))
KERNELS = Choices("kernel", ("epanechnikov", "gaussian"))
BANDWIDTHS = Choices("bandwidth", ("silverman", "silverman_wide", "scott", "plug_in", "cross_validated", "adaptive"))
WEIGHTINGS = Choices("weighting", ("equal", "train_size", "distance", "max_discrepancy", "max_discrepancy_farthest"))
PARTITIONS = Choices("partition", tuple(partition_forms()))
DATE_UNITS = Choices("unit of dates", ("days", "weeks", "months", "years"))
TASKS = Choices("task", ("classification", "regression"))
EVALUATION_PRECISIONS = Choices("precision of prediction", ("float32", "bfloat16"))
INFERENCES = Choices("inference", ("curvature", "natural", "ivon", "backprop"))
OPTIMIZERS = Choices(
    "optimizer", ("sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam"), (0.1, 0.03, 0.03, 0.01, 0.001, 0.001)
)
SCHEDULES = Choices("schedule", ("cosine", "linear", "inverse", "exponential", "constant"))
SERVER_SCHEDULES = Choices("schedule of the server", ("constant", "cosine", "linear"))
NOISES = Choices("noise", ("shared", "flipout"))
KLS = Choices("kl", ("total", "client", "product"))
ESTIMATORS = Choices("estimator", ("plain", "fixed_point", "anchored"))
AUGMENTATIONS = Choices("augmentation", ("crop_and_flip:PADDING",))
COMPRESSORS = Choices("compressor", ("quantiser:LEVELS", "sparsifier:SHARE", "largest:SHARE", "none"), several=True)
LEARNERS = Choices("learner", ("plain", "maml", "first_order_maml", "hessian_free_maml"))
KL_REDUCTIONS = Choices("reduction of the KL", ("sum", "mean"))
PERSONAL_VARIANCES = Choices(
    "source of variances", ("hypernetwork", "free_variances", "common_variances", "constant_variances")
)
EVALUATION_NOISES = Choices("noise of evaluation", ("own", "none", "another"))
VARIANCE_RANGES = Choices("range of variances", ("smooth", "clamped"))
INITIALIZERS = Choices("initializer", ("he_normal", "uniform"))
PARAMETRIZATIONS = Choices("parametrization", ("log_variance", "log_alpha"))
ENGINES = Choices("engine", ("tff", "local", "compiled", "ray"))
TRACKERS = Choices("tracker", ("tensorboard", "mlflow", "wandb"))
FORMS = Choices("form of progress", ("bar", "lines", "phases", "json", "none"))
SERVER_OPTIMIZERS = Choices("server optimizer", ("sgd", "adam", "yogi", "adagrad"), (1.0, 0.01, 0.03, 0.1))
