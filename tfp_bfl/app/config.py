"""The configuration of a run: one model that the command line, a YAML file and the run folder share."""

from __future__ import annotations

import pathlib
from typing import Any, Optional, Union

import pydantic
import yaml

from tfp_bfl.app.catalogue import ALGORITHMS, names, serves, takers
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files import read_regular

# A full record of a run has 1.5 kB.
MOST_BYTES = 64 * 1024
MOST_LETTERS = 4096
_INT32_MAX = 2**31 - 1


def _option(default: Any, description: str, **limits: Any) -> Any:
    return pydantic.Field(default, description=description, **limits)


class RunConfig(pydantic.BaseModel):
    """Everything that decides a run's result, and where it goes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    algorithm: str = _option("variational", "See `tfp-bfl list`.")
    dataset: str = _option("digits", "digits, breast_cancer, or any image-classification dataset of TFDS by name.")
    model: str = _option("lenet", "lenet, resnet20 or mlp.")
    kind: str = _option("flipout", "deterministic, mc_dropout or flipout.")
    rule: str = _option("log_linear_pool", "How posteriors are pooled: see `tfp-bfl list`.")
    weighting: str = _option("train_size", "How much each client counts: see `tfp-bfl list`.")
    robust: Optional[str] = _option(
        None, "Defence against adversarial clients: clip:MAX_NORM, trimmed:SHARE or median; none if not given."
    )
    partition: str = _option("dirichlet:0.5", "Who holds what: see `tfp-bfl list`.")
    clients: int = _option(10, "Number of clients.", ge=1, le=_INT32_MAX)
    cohort_size: Optional[int] = _option(
        None, "Clients drawn each round; all of them if not given.", ge=1, le=_INT32_MAX
    )
    popularity: Optional[float] = _option(
        None,
        "Some clients are drawn more often, by Dirichlet shares of this concentration; all alike if not given.",
        gt=0,
    )
    dropout: float = _option(0.0, "Probability that a client of a round does not answer.", ge=0, lt=1)
    max_change_norm: Optional[float] = _option(
        None, "A client whose weights move further than this is left out of its round.", gt=0
    )
    max_retries: int = _option(3, "New cohorts for a round in which no client was sound.", ge=0, le=_INT32_MAX)
    rounds: int = _option(60, "Number of rounds.", ge=1, le=_INT32_MAX)
    local_epochs: int = _option(5, "Passes of a client over its examples each round.", ge=1, le=_INT32_MAX)
    batch_size: int = _option(32, "Examples in a training step.", ge=1, le=_INT32_MAX)
    learning_rate: float = _option(
        1e-3, "Of the clients' Adam; of their SGD for all but variational.", gt=0, allow_inf_nan=False
    )
    learning_rate_decay: float = _option(0.0, "Rate of its exponential decay, a round.", ge=0, allow_inf_nan=False)
    silent_rounds: int = _option(0, "Rounds before the decay begins.", ge=0, le=_INT32_MAX)
    last_layer: bool = _option(False, "A posterior over the last layer, all below it pretrained and frozen.")
    diagonal_only: bool = _option(False, "Of the clients' covariances only the diagonals count.")
    burn_in_epochs: Optional[int] = _option(
        None, "Epochs before SWAG collects; half of the local epochs if not given.", ge=0, le=_INT32_MAX
    )
    collect_every: Optional[int] = _option(
        None, "Steps between collected iterates; one an epoch if not given.", ge=1, le=_INT32_MAX
    )
    max_columns: int = _option(20, "Deviations that a client keeps and sends.", ge=2, le=_INT32_MAX)
    min_variance: float = _option(1e-6, "Floor of the iterates' variances.", gt=0, allow_inf_nan=False)
    momentum: float = _option(0.0, "Of the clients' SGD.", ge=0, lt=1)
    weight_decay: float = _option(0.0, "Of the clients' SGD.", ge=0, allow_inf_nan=False)
    min_examples: int = _option(10, "A client with fewer examples is refused.", ge=1, le=_INT32_MAX)
    server_optimizer: Optional[str] = _option(
        None, "sgd, adam, yogi or adagrad: takes the clients' mean change as a gradient; the mean itself if not given."
    )
    server_learning_rate: Optional[float] = _option(
        None, "Of the server's optimizer; its own, which the list tells, if not given.", gt=0, allow_inf_nan=False
    )
    server_momentum: float = _option(0.0, "Of the server's sgd.", ge=0, lt=1)
    proximal: float = _option(0.01, "mu of mu / 2 ||w - w_server||^2 in the clients' loss.", ge=0, allow_inf_nan=False)
    unlabelled_share: float = _option(0.1, "Share of the data that the server holds without labels.", gt=0, lt=1)
    shrinkage: float = _option(
        0.1, "rho of the samples' covariance, which is the identity for rho = 0.", ge=0, allow_inf_nan=False
    )
    burn_in_rounds: Optional[int] = _option(
        None, "Rounds before there are samples; half of the rounds if not given.", ge=0, le=_INT32_MAX
    )
    step_size: float = _option(1e-6, "eta: each round's noise has variance 2 eta.", gt=0, allow_inf_nan=False)
    max_samples: int = _option(20, "The last rounds that predict.", ge=1, le=_INT32_MAX)
    kernel_start: str = _option("mean", "What is shifted to its mode: mean, or clients (clustered).")
    kernel: str = _option("epanechnikov", "epanechnikov or gaussian.")
    bandwidth: str = _option("silverman", "How it is found: see `tfp-bfl list`.")
    bandwidth_scale: float = _option(1.0, "A factor of the bandwidth.", gt=0, allow_inf_nan=False)
    update_prior: bool = _option(False, "After each round the pooled posterior becomes the prior.")
    pretrain_share: Optional[float] = _option(
        None, "Share of the data on which the server trains first, until its accuracy stands still.", gt=0, lt=1
    )
    examples_per_client: Optional[int] = _option(
        None, "A seeded subset of each client's examples.", ge=1, le=_INT32_MAX
    )
    prior_stddev: float = _option(10.0, "Standard deviation of the prior on each weight.", gt=0, allow_inf_nan=False)
    initial_stddev: float = _option(0.003, "Posterior standard deviation before training.", gt=0, allow_inf_nan=False)
    min_stddev: float = _option(1e-5, "Floor of the posterior standard deviations.", gt=0, allow_inf_nan=False)
    dropout_rate: float = _option(0.2, "For kind mc_dropout.", ge=0, lt=1)
    normalization: Optional[str] = _option(None, "batch, group or none; the model's own if not given.")
    precision: str = _option("float32", "float32, bfloat16_noise or bfloat16: the latter two for processors with it.")
    num_samples: int = _option(20, "Weight samples of a prediction.", ge=1, le=_INT32_MAX)
    evaluate_every: int = _option(1, "Rounds between evaluations.", ge=1, le=_INT32_MAX)
    evaluation_examples: int = _option(
        1000, "Test examples of those evaluations; the last one takes all.", ge=1, le=_INT32_MAX
    )
    checkpoint_every: int = _option(1, "Rounds between checkpoints, from which --resume goes on.", ge=1, le=_INT32_MAX)
    keep_checkpoints: int = _option(3, "Checkpoints that stay.", ge=1, le=_INT32_MAX)
    seed: int = _option(0, "Of everything random.", ge=0, le=_INT32_MAX)
    data_dir: Optional[str] = _option(None, "Where TFDS keeps its datasets; TFDS' own place if not given.")
    tensorboard: bool = _option(False, "Write TensorBoard event files into the run folder.")
    output: Optional[str] = _option(None, "The run folder, a new one; runs/NAME-TIME if not given.")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _algorithm_defaults(cls, values: dict[str, Any]) -> dict[str, Any]:
        algorithm = values.get("algorithm", "variational")
        # What a file gives for a name may be a list, which no table can be asked for.
        known = isinstance(algorithm, str) and algorithm in ALGORITHMS
        return {**(ALGORITHMS[algorithm].defaults if known else {}), **values}

    @pydantic.model_validator(mode="after")
    def _names_exist(self) -> RunConfig:
        # Late, so that `--help` does without TensorFlow.
        from tfp_bfl import data, models, rules, weighting
        from tfp_bfl.data.cohorts import check_cohort_size
        from tfp_bfl.data.partitions import check_alpha
        from tfp_bfl.models.kinds import NORMALIZATIONS, PRECISIONS

        for name, value in self:
            if isinstance(value, str) and not (value.isprintable() and len(value) <= MOST_LETTERS):
                raise InvalidArgument(
                    f"{name} is {shown(value)}, but must be at most {MOST_LETTERS} printable characters."
                )
        lookup(ALGORITHMS, self.algorithm, "algorithm")
        self._check_algorithm()
        self._check_server()
        lookup(models.MODELS, self.model, "model")
        lookup(models.KINDS, self.kind, "kind of model")
        rules.parse_rule(self.rule)
        lookup(weighting.ALL_WEIGHTINGS, self.weighting, "weighting")
        lookup(PRECISIONS, self.precision, "precision")
        if self.normalization is not None:
            lookup(NORMALIZATIONS, self.normalization, "normalization")
        data.parse_partition(self.partition, self.clients)
        check_cohort_size(self.clients, self.cohort_size)
        if self.popularity is not None:
            check_alpha(self.popularity, "popularity")
        rules.kernel_posterior(self.kernel_start, self.kernel, self.bandwidth, self.bandwidth_scale)
        if self.min_stddev > self.initial_stddev:
            raise InvalidArgument(
                f"initial_stddev must not be below min_stddev, but {self.initial_stddev} is below {self.min_stddev}."
            )
        if self.weighting in weighting.COMPARE_POSTERIORS and self.algorithm != "variational":
            raise InvalidArgument(
                f"Weighting by {self.weighting} compares posteriors, which {self.algorithm} does not: use 'equal' or "
                "'train_size'."
            )
        if self.weighting in weighting.COMPARE_POSTERIORS and self.kind != "flipout":
            raise InvalidArgument(
                f"Weighting by {self.weighting} compares posteriors, kind {self.kind!r} has none: use kind 'flipout'."
            )
        if self.robust is not None:
            defended = rules.parse_robust(self.robust)(self.rule)
            if self.weighting in weighting.STACKED_WEIGHTINGS and isinstance(defended, rules.GatherRule):
                raise InvalidArgument(
                    f"The defence {self.robust} counts all clients the same, so that weighting by {self.weighting} "
                    "can't serve it: use 'equal', or the defence clip."
                )
        if self.update_prior and self.kind != "flipout":
            raise InvalidArgument(
                f"update_prior makes the posterior the prior, and kind {self.kind!r} has none: use kind 'flipout'."
            )
        return self

    def told(self) -> dict[str, Any]:
        """All that decides the result: without the options of other algorithms, and the folder."""
        return {name: value for name, value in self if name != "output" and serves(name, self.algorithm)}

    def record(self) -> str:
        """What is told of a run, as YAML, from which it can be repeated."""
        return yaml.safe_dump(self.told(), sort_keys=False)

    def _check_algorithm(self) -> None:
        for name, value in self:
            if not serves(name, self.algorithm) and value != type(self).model_fields[name].default:
                raise InvalidArgument(
                    f"{name} is an option of {names(takers(name))}, and this is {self.algorithm}: leave it out."
                )
        if self.kind == "flipout" and ALGORITHMS[self.algorithm].point_weights:
            raise InvalidArgument(f"{self.algorithm} finds a posterior over point weights: use kind 'deterministic'.")
        if self.last_layer and not self.pretrain_share:
            raise InvalidArgument(
                "last_layer freezes all that lies below, which would be random: give pretrain_share, on which the "
                "server trains it first."
            )
        if self.burn_in_rounds is not None and self.burn_in_rounds >= self.rounds:
            raise InvalidArgument(
                f"burn_in_rounds is {self.burn_in_rounds}, but must be below the number of rounds, {self.rounds}: "
                "those after it are the samples."
            )
        if self.algorithm == "fed_be" and self.unlabelled_share + (self.pretrain_share or 0) >= 1:
            raise InvalidArgument(
                f"unlabelled_share and pretrain_share are {self.unlabelled_share} and {self.pretrain_share}, which "
                "leaves the clients nothing: together they must be below 1."
            )

    def _check_server(self) -> None:
        if self.server_optimizer is not None:
            from tfp_bfl.servers import SERVER_OPTIMIZERS

            lookup(SERVER_OPTIMIZERS, self.server_optimizer, "server optimizer")
        elif self.server_learning_rate is not None or self.server_momentum:
            name = "server_momentum" if self.server_learning_rate is None else "server_learning_rate"
            raise InvalidArgument(f"{name} is of the server's optimizer, and there is none: give server_optimizer.")
        if self.server_momentum and self.server_optimizer != "sgd":
            raise InvalidArgument(
                f"server_momentum is of the server optimizer sgd, and this is {self.server_optimizer}: leave it out."
            )


def make_config(file: Union[str, pathlib.Path, None], options: dict[str, Any]) -> RunConfig:
    """A configuration from a YAML file, if one is given, and options, which win.

    Raises:
      InvalidArgument: the file can't be read or isn't a mapping, a name is unknown, or a value does not fit.
    """
    values = {**(read_yaml(file) if file is not None else {}), **options}
    # The word stands for what an option is if not given, and so resets one that the file sets.
    values = {name: None if value == "none" and name != "normalization" else value for name, value in values.items()}
    for name in values:
        if name not in RunConfig.model_fields:
            lookup(RunConfig.model_fields, name, "option")
    try:
        return RunConfig(**values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InvalidArgument):
            raise cause from None
        where = ".".join(str(part) for part in first["loc"])
        problem = first["msg"][0].lower() + first["msg"][1:]
        raise InvalidArgument(
            f"{where} is {shown(first['input'])}, but {problem.replace('input should', 'it must')}."
        ) from None


class _Loader(yaml.SafeLoader):
    """Without aliases: a few lines of them stand for more values than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases")
        return super().compose_node(parent, index)


def read_yaml(file: Union[str, pathlib.Path]) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
      InvalidArgument: the file can't be read, is not a regular one, is larger than 64 KiB, is not YAML (or uses its
        aliases), or is not a mapping of names to values.
    """
    text = read_regular(file, "config", MOST_BYTES)
    try:
        values = yaml.load(text.decode("utf-8"), _Loader)
    # What a tag such as !!timestamp makes of a text that is none can be any error.
    except Exception:
        raise InvalidArgument(
            f"The config {path_name(file)} is not YAML: it must hold lines like 'rounds: 40'."
        ) from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InvalidArgument(
            f"The config {path_name(file)} must be a mapping of options to values, such as 'rounds: 40'."
        )
    return values
