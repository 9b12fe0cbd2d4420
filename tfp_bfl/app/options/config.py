"""The configuration of a run: one model that the command line, a YAML file and the run folder share."""

import functools
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pydantic
import yaml
from pydantic.fields import FieldInfo

from tfp_bfl import data
from tfp_bfl.app.options import own_model
from tfp_bfl.app.options.given_data import is_table, names_clients, recorded, with_defaults
from tfp_bfl.app.options.own_model import NO_CODE, OF_A_MODEL, Code, Value, check_trust, load, names_code, split, trust
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.refusals import NoTruthAsNumber, check_folder, check_no_file, refusal
from tfp_bfl.app.options.refusals import read_yaml as read_yaml
from tfp_bfl.app.options.values import Name, Names, Size
from tfp_bfl.app.options.values import names_in as names_in
from tfp_bfl.data.cohorts import check_cohort_size
from tfp_bfl.data.partitions import check_alpha
from tfp_bfl.defaults import check_refused
from tfp_bfl.errors import InvalidArgument, check_range, shown
from tfp_bfl.files import Path
from tfp_bfl.files.code import code_name
from tfp_bfl.options import choices, fits, methods
from tfp_bfl.options.group import (
    INT32_MAX,
    Count,
    CountOrZero,
    Positive,
    Share,
    ShareOrZero,
    extra,
    of_config,
    option,
)
from tfp_bfl.options.methods import canonical, implied, in_words, method_of, serves, takers

MOST_LETTERS = 4096


class RunConfig(NoTruthAsNumber):
    """The options that decide a run's result and its folder, besides those of its algorithm.

    `make_config` makes one that holds the options of its algorithm too. Options of other algorithms read as their
    defaults.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    algorithm: str = option(
        "default",
        "Algorithm (`tfp-bfl list`), or FILE.py:FUNCTION; variational if an option is given that it alone has.",
    )
    dataset: str = option(
        "digits",
        "Dataset: digits, breast_cancer, diabetes, heart_disease, an image classification dataset of TFDS; or a path to"
        " a table (.csv, .parquet), an archive (.npz), or a folder of images or of a Hugging Face dataset.",
    )
    label: Name = option("label", "Column of a table with the labels.")
    client_column: Name | None = option(
        None, "Column of a table, or array of an archive, that names the client of each example."
    )
    drop: Names = option(None, "Columns of a table that are left out, separated by commas.")
    only: Names = option(None, "Columns of a table that are features, separated by commas; all by default.")
    categorical: Names = option(None, "Columns of numbers, or of many texts, that are categories.")
    text_features: Name | None = option(None, "Features of columns of texts: wordllama, or wordllama:COLUMN,COLUMN.")
    date_unit: str | None = option(None, "Unit in which dates become numbers.", names=choices.DATE_UNITS)
    series_column: Name | None = option(None, "Column of a long table with the name of each row's time series.")
    time_column: Name | None = option(None, "Column of a long table with the time of each row, a number or a date.")
    separator: str | None = option(
        None, "Separator of a .csv file's columns, such as ';' or tab; that of its header if not given."
    )
    image_size: Size = option(
        None,
        "Height and width, such as 224,224, to which images of any size are resized, bilinearly with antialiasing; "
        "by default all must have one size.",
    )
    task: str = option(
        "classification",
        "Task on user-supplied data: classification, or regression on numeric labels.",
        names=choices.TASKS,
    )
    test_data: str | None = option(
        None, "File or folder with the test set of user-supplied data; a fifth of the data by default."
    )
    model: str = option(
        "lenet",
        "Model, or FILE.py:FUNCTION, which is executed; mlp by default for tables, linear with a backbone.",
        names=choices.MODELS,
    )
    backbone: str | None = option(
        None, "Frozen network for features of images: efficientnet_lite0, FILE.keras, a SavedModel, or keras:NAME:FILE."
    )
    kind: str | None = option(
        "flipout",
        "deterministic, mc_dropout, flipout or variational_dropout; a user-supplied model has its own kind, "
        "and the first two convert it.",
        names=choices.KINDS,
    )
    partition: str = option(
        "dirichlet:0.5",
        'Partition of the data over clients (see `tfp-bfl list`); "given" where user-supplied data name clients.',
        names=choices.PARTITIONS,
    )
    clients: Count = option(10, "Number of clients.")
    cohort_size: Count | None = option(None, "Number of clients sampled each round; all clients by default.")
    popularity: Positive | None = option(
        None,
        "Concentration of the Dirichlet distribution of the clients' sampling probabilities; equal "
        "probabilities by default.",
    )
    dropout: ShareOrZero = option(0.0, "Probability that a sampled client does not answer in a round.")
    max_retries: CountOrZero = option(3, "Number of new cohorts for a round without a valid client result.")
    rounds: Count = option(60, "Number of rounds.")
    average_rounds: Count | None = option(
        None, "Number of last rounds averaged into the final model; only the last round by default."
    )
    ensemble: int | None = option(
        None,
        "Number of models with different initial weights and averaged predictions; one model by default.",
        ge=2,
        le=INT32_MAX,
    )
    pretrain_share: Share | None = option(
        None,
        "Fraction of the data on which the server trains first, until its accuracy stops improving; without class "
        "weights and augmentation.",
    )
    hold_out: Share | None = option(
        None,
        "Fraction of the data held out from training on each client, for `tfp-bfl calibrate` and unusual examples.",
    )
    examples_per_client: Count | None = option(
        None, "Maximum number of examples of each client, chosen at random by the seed."
    )
    evaluate_clients: bool = option(
        False,
        "Evaluate the model on each client's test data at the end, on a part of the test set where the data name no "
        "clients; personal models before and after a step of adaptation.",
    )
    unseen_clients: CountOrZero = option(
        0, "Number of additional clients that never train; `evaluate_clients` scores them separately."
    )
    initial_stddev: Positive | None = option(
        None, "Initial posterior standard deviation; by default 0.003, for kind variational_dropout 0.0143."
    )
    min_stddev: Positive = option(1e-5, "Floor of the posterior standard deviations of kind flipout.")
    dropout_rate: ShareOrZero = option(0.2, "Dropout rate of kind mc_dropout.")
    output_dropout: bool = option(False, "Apply dropout to the logits of kind mc_dropout too, as published.")
    parametrization: str = option(
        "log_variance",
        "Noise parameter of layers of kind variational_dropout.",
        names=choices.PARAMETRIZATIONS,
    )
    variational_layers: str | None = option(
        None,
        "Layers with Gaussian weights, such as dense,dense_1, or all; by default all, of conv_net dense_1 alone.",
    )
    freeze: Names = option(
        None, "Layers that do not train, by their names in the model, such as conv2d,batch_normalization*."
    )
    width: Count | None = option(None, "Number of filters of the model conv_net; 64 by default.")
    normalization: str | None = option(
        None, "Normalization layers; by default those of the model.", names=choices.NORMALIZATIONS
    )
    precision: str = option(
        "float32",
        "Precision of training; the bfloat16 ones require a processor that supports it.",
        names=choices.PRECISIONS,
    )
    num_samples: Count = option(20, "Number of weight samples of a prediction.")
    evaluation_precision: str = option(
        "float32",
        "Precision of predictions for the test set.",
        names=choices.EVALUATION_PRECISIONS,
    )
    evaluate_every: Count = option(1, "Number of rounds between evaluations.")
    evaluation_examples: Count = option(
        1000, "Number of test examples of evaluations between rounds; the last evaluation uses all."
    )
    checkpoint_every: Count = option(1, "Number of rounds between checkpoints, from which --resume continues.")
    keep_checkpoints: Count = option(3, "Number of checkpoints kept.")
    seed: CountOrZero = option(0, "Random seed.")
    engine: str | None = option(
        None,
        "Engine: TensorFlow Federated's workers, this process, this process with rounds compiled by XLA (for small "
        "models), or the Ray cluster of RAY_ADDRESS, which must see the run folder; by default tff where it is "
        "installed.",
        names=choices.ENGINES,
    )
    data_dir: str | None = option(None, "Folder of TFDS' datasets; TFDS' default folder by default.")
    tracker: str | None = option(None, "Tracker that logs options, metrics and scores.", names=choices.TRACKERS)
    output: str | None = option(None, "New run folder; runs/NAME-TIME by default.")
    _parameters: Mapping[str, Value] = pydantic.PrivateAttr({})
    _chosen: Collection[str] = pydantic.PrivateAttr(())

    @property
    def parameters(self) -> Mapping[str, Value]:
        """The options that are parameters of user-supplied functions, as they were given."""
        return self._parameters

    def __getattr__(self, name: str) -> Any:
        if name[:1] != "_" and name in (self.__pydantic_private__ or {}).get("_parameters", ()):
            return self.parameters[name]
        field = methods.fields().get(name)
        return super().__getattr__(name) if field is None else field.default  # type: ignore[misc]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _defaults_of_data(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "partition" not in values and names_clients(values.get("dataset"), values.get("client_column")):
            values = {**values, "partition": "given"}
        if "model" not in values and (values.get("backbone") or is_table(values.get("dataset"))):
            values = {**values, "model": "linear" if values.get("backbone") else "mlp"}
        if names_code(values.get("model")):
            values = {"kind": None, **values}
        elif values.get("kind") is None:
            values = {name: x for name, x in values.items() if name != "kind"}
        return values

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> "RunConfig":
        for name, value in self:
            if isinstance(value, str) and not (value.isprintable() and 0 < len(value) <= MOST_LETTERS):
                must = f"must be 1 to {MOST_LETTERS} printable characters"
                raise InvalidArgument(f"{name} is {shown(value)}, but {must}.")
            if isinstance(value, float):
                check_range(value, name)
        for name, field in type(self).model_fields.items():
            value, names = getattr(self, name), extra(field, "names")
            if names and value is not None and not (name in CODE and names_code(value)):
                names.check(value)
        if self.average_rounds is not None and self.average_rounds > self.rounds:
            what = f"average_rounds is {self.average_rounds}, but the run has {self.rounds} rounds"
            raise InvalidArgument(f"{what}: give at most that many.")
        if self.width is not None and self.model != "conv_net" and not names_code(self.model):
            raise InvalidArgument(f"width is of the model conv_net, and this is {self.model}: leave it out.")
        if self.initial_stddev is not None and self.min_stddev > self.initial_stddev:
            raise InvalidArgument(
                f"initial_stddev must not be below min_stddev, but {self.initial_stddev} is below {self.min_stddev}."
            )
        fits.check(self)
        for kind in method_of(self.algorithm).groups:
            of_config(kind, self).check(self)
        data.parse_partition(self.partition, self.clients)
        check_folder(self)
        if not data.is_own(self.dataset):
            check_no_file(self, in_memory=recorded(self.dataset) is not None or names_code(self.dataset))
        if self.partition != "given":  # Else the data say how many clients there are.
            check_cohort_size(self.clients, self.cohort_size)
        if self.popularity is not None:
            check_alpha(self.popularity, "popularity")
        return self

    @property
    def data_name(self) -> str:
        """The name of the dataset: of a path the name of the file without its suffix, of code `code_name`."""
        given = recorded(self.dataset)
        if given:
            return given.name
        if names_code(self.dataset):
            return code_name(self.dataset)
        return pathlib.Path(self.dataset).stem if data.is_own(self.dataset) else self.dataset

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return code_name(self.model)

    @property
    def method(self) -> str:
        """Return what distinguishes a run: its rule, or the algorithm where none can be chosen or none is given."""
        name = (self.rule if self.algorithm == "variational" else None) or self.algorithm
        return code_name(name)

    @property
    def is_personal(self) -> bool:
        """Whether each client has a personal model."""
        return methods.PERSONAL in method_of(self.algorithm).gives

    @property
    def adapts(self) -> bool:
        """Whether clients are scored by models of their own, before and after a step of adaptation."""
        return methods.ADAPTED in method_of(self.algorithm).gives

    def has(self, name: str) -> bool:
        """Return whether an option is one of this algorithm, or of all."""
        return name in type(self).model_fields

    def rate(self) -> float:
        """Return the learning rate, the default filled in."""
        method = method_of(self.algorithm)
        return method.rate(self) if method.rate else self.learning_rate or float(method.defaults["learning_rate"])

    def schedule_name(self) -> str:
        """Return the name of the schedule, the default filled in."""
        return self.schedule or ("exponential" if self.learning_rate_decay else method_of(self.algorithm).schedule)

    def recorded(self) -> dict[str, Any]:
        """Return all that decides the result: without the folder, and without defaults that a user's model replaces."""
        aside = {"output"}
        if names_code(self.model):
            aside |= {*OF_A_MODEL} - {*self.given(OF_A_MODEL), *method_of(self.algorithm).of_recipe}
        return {**{name: value for name, value in self if name not in aside}, **self.parameters}

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of the named options with another value than their default under this algorithm; and of those of
        a user's model, whose defaults are its own, the ones that were given.
        """
        defaults = method_of(self.algorithm).defaults
        own = type(self).model_fields
        default = lambda name: defaults.get(name, own[name].default)
        is_given = lambda name: name in self._chosen or getattr(self, name) != default(name)
        return {name: getattr(self, name) for name in names if name in own and is_given(name)}

    def record(self) -> str:
        """Return the configuration as YAML, from which the run can be repeated."""
        return yaml.safe_dump(self.recorded(), sort_keys=False)


@functools.cache
def fields() -> dict[str, FieldInfo]:
    """Return the options of a run and of all algorithms, by name."""
    return {**RunConfig.model_fields, **methods.fields()}


@functools.cache
def class_of(algorithm: str) -> type[RunConfig]:
    """Return the class of configurations with the options of an algorithm."""
    method = method_of(algorithm)
    options: Any = {name: (field.annotation, field) for name, field in method.options.items()}
    return pydantic.create_model(f"{method.recipe}_config", __base__=RunConfig, **options)


def _of_algorithm(values: dict[str, Any]) -> tuple[type[RunConfig], dict[str, Any]]:
    """Return the class of a configuration, and its values with the defaults of the algorithm."""
    algorithm = values.get("algorithm", "default")
    if not isinstance(algorithm, str):  # Such as a list in a file, which the class refuses.
        return class_of("default"), values
    algorithm = canonical(algorithm)
    options_class, values = class_of(algorithm), {**values, "algorithm": algorithm}
    defaults = method_of(algorithm).defaults
    if names_code(values.get("model")):
        defaults = {name: x for name, x in defaults.items() if name != "kind"}
    for name in [name for name in values if not serves(name, algorithm)]:
        value, default = values.pop(name), fields()[name].default
        if value not in (default, str(default)):
            check_refused(algorithm, name)
            raise InvalidArgument(
                f"{name} is an option of {in_words(takers(name))}, and this is {algorithm}: leave it out."
            )
    return options_class, {**defaults, **{name: x for name, x in values.items() if (name, x) != ("kind", None)}}


def make_config(
    file: Path | None, options: dict[str, Any], runs_code: bool = True, code: Code = NO_CODE, aside: str = ""
) -> RunConfig:
    """Return a configuration from a YAML file, if one is given, without the name `aside`, and options, which win.

    Who only reads what a run was does not run its code. Parameters of functions that a program gives are options too.
    """
    file_values = {name: x for name, x in (read_yaml(file) if file is not None else {}).items() if name != aside}
    if runs_code:
        check_trust(file_values, options, file)
        trust(options)
    values = {**file_values, **options}
    values = {name: None if value == "none" and not _is_a_name(name) else value for name, value in values.items()}
    algorithm = canonical(x) if isinstance(x := values.setdefault("algorithm", implied(values)), str) else "default"
    is_option = lambda name: name in fields() and serves(name, algorithm)
    for role in CODE:
        if str(values.get(role)).endswith(".py"):
            load(values[role], role)  # Which refuses a file without a function.
    replaced = any(names_code(x := file_values.get(role)) and options.get(role, x) != x for role in CODE)
    dropped = {*file_values} - {*options} if replaced else ()  # Some are parameters of code that is not used.
    values, parameters = split(values, fields(), is_option, runs_code, code, dropped)
    if runs_code and names_code(values.get("dataset")):
        values = with_defaults(values, parameters)
    options_class, values = _of_algorithm(values)
    try:
        config = options_class(**values)
        config._parameters = parameters
        if names_code(config.model):
            config._chosen = {*OF_A_MODEL} & {*options, *(file_values if names_code(file_values.get("model")) else ())}
        return config
    except pydantic.ValidationError as error:
        # What an option cannot be may be meant for a parameter of its name.
        chosen = {**file_values, **options}.items()
        given = [name for name, x in chosen if name in fields() and x != fields()[name].default]
        own_model.check_names(own_model.functions_of(values, code) if runs_code else {}, given)
        raise refusal(error) from None


def _is_a_name(option: str) -> bool:
    """Return whether "none" is a value of the option; for other options it means the default."""
    names = extra(fields()[option], "names") if option in fields() else None
    return names is not None and "none" in names.entries
