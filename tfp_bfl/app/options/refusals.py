"""Requirements on the values of options, in words, and YAML files of options."""

import pathlib
import re
from typing import Any

import pydantic
import yaml
from pydantic_core import PydanticKnownError

from tfp_bfl import data
from tfp_bfl.data.loading import EMBEDDED, FEDERATIONS
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import Path, read_regular
from tfp_bfl.files import name as name_of
from tfp_bfl.files import name as path_name

# Of pydantic's types of errors: what a value of that option must be.
_MUST_BE = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "finite_number": "a finite number",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "literal": "{expected}",
    "list": "a list of names",
    "dict": "a mapping of names to values",
}

# Options of tables that hold at all sites of a federation alike; of data in memory; of all user-supplied data.
OF_TABLES = ("drop", "only", "categorical", "date_unit")
IN_MEMORY = ("label", "client_column", "task", "series_column", "time_column")
OF_DATA = (*IN_MEMORY, "test_data", *OF_TABLES, "separator", "text_features")
# Options of runs with all data in one place: a site describes its data in its own file, and answers for itself.
OF_ONE_PLACE = (
    *("dataset", "data_dir", *(name for name in OF_DATA if name not in OF_TABLES), "partition", "clients"),
    *(
        "image_size",
        "examples_per_client",
        "hold_out",
        "pretrain_share",
        "unlabelled_share",
        "evaluate_clients",
        "unseen_clients",
    ),
    *("engine", "output", "average_rounds", "ensemble", "class_weight", "popularity", "dropout"),
    *("evaluation_examples", "backbone"),
)
# Options of files, and what serves in their place for data in memory.
_LEAVE_OUT = "leave columns out of the data that you give"
_OF_FILES = {
    "drop": _LEAVE_OUT,
    "only": _LEAVE_OUT,
    "categorical": "give the column the type category",
    "date_unit": "give the column as numbers",
    "separator": _LEAVE_OUT,
    "text_features": "give the array that bfl.models.text_features computes",
}


class NoTruthAsNumber(pydantic.BaseModel):
    """A model that refuses True and False for a number; pydantic takes them for 1 and 0."""

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: pydantic.ValidationInfo) -> Any:
        # NumPy's type is called bool_ in version 1, bool in version 2.
        if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
            types = str(cls.model_fields[str(info.field_name)].annotation)
            if "bool" not in types and "float" in types:
                raise PydanticKnownError("float_type")
            if "bool" not in types and "int" in types:
                raise PydanticKnownError("int_type")
        return value


def must_be(error: Any) -> str:
    """Return in words what a value must be, by an entry of `pydantic.ValidationError.errors()`."""
    form = _MUST_BE.get(error["type"]) or _MUST_BE.get(error["type"].partition("_")[0], "of another form")
    return form.format(**error.get("ctx", {}))


def refusal(error: pydantic.ValidationError, of: str = "") -> InvalidArgument:
    """Return what was wrong with the values of options, in one sentence; `of` says of what they are."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidArgument):
        return cause
    where = str(first["loc"][0])  # The rest names an alternative of a union.
    forms = dict.fromkeys(must_be(one) for one in error.errors() if str(one["loc"][0]) == where)
    return InvalidArgument(f"{where}{of} is {shown(first['input'])}, but must be {' or '.join(forms)}.")


def check_folder(config: Any) -> None:
    """Raise InvalidArgument where data_dir is given for a dataset that TFDS does not read."""
    is_plain = re.fullmatch(r"[\w/.-]+", config.dataset) and not data.is_own(config.dataset)
    if config.data_dir is not None and not (is_plain and config.dataset not in {*EMBEDDED, *FEDERATIONS}):
        raise InvalidArgument(
            f"data_dir belongs to datasets of TFDS, and {shown(config.dataset)} is none: leave it out."
        )


def check_no_file(config: Any, in_memory: bool) -> None:
    """Raise InvalidArgument where options of files are given to other data, or the file is of another type."""
    if in_memory:
        for name, advice in _OF_FILES.items():
            if getattr(config, name) is not None:
                raise InvalidArgument(f"{name} belongs to files: {advice}.")
        return
    if pathlib.Path(config.dataset).is_file():
        raise InvalidArgument(
            f"The file {name_of(config.dataset)} is of a type that can't be read: give a .csv, .tsv, .parquet or .npz "
            "file, or a folder of images."
        )
    for name in OF_DATA:
        if getattr(config, name) != type(config).model_fields[name].default:
            raise InvalidArgument(
                f"{name} belongs to user-supplied data, and {shown(config.dataset)} is no file or folder."
            )


# A full record of a run has 1.5 kB.
MOST_BYTES = 64 * 1024


# Options with names of columns: one name, or a list. Other lists and numbers are values.
_COLUMNS = ("label", "client_column", "series_column", "time_column", "drop", "only", "categorical")
# Options with names of classes: the keys of a mapping.
_CLASSES = ("class_weight",)
_TAG = "tag:yaml.org,2002:"
_NULL = f"{_TAG}null"


class _Loader(yaml.SafeLoader):
    """A YAML loader without aliases, without names that occur twice in a mapping, and without surprising values.

    A few lines of aliases stand for more values than any memory holds. YAML's own loader drops the first of two equal
    names without a word. In YAML 1.1 `yes`, `no`, `on` and `off` are truth values, `010` is 8, `1:30` is 90, and
    2020-01-01 is a date: they are text here, of which each option makes what it needs, or refuses it. Names of columns
    and classes are text as written, `1.50` and `true` too.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        there = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                _keep_names(key.value, value)
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in there:
                line = key.start_mark.line + 1
                raise InvalidArgument(f"names {shown(key.value)} twice, the second time in line {line}")
            if name is not None:
                there.add(name)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for _kind, _form, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)", "-+0123456789"),
    (
        "float",
        r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"^(?:{_form})$"), list(_first))


def _keep_names(option: str, value: Any) -> None:
    """Make the names of columns or classes that an option has text as written; `drop: null` stays the default."""
    names: list[Any] = []
    if option in _COLUMNS and isinstance(value, yaml.SequenceNode):
        names = value.value
    elif option in _COLUMNS and value.tag != _NULL:
        names = [value]
    elif option in _CLASSES and isinstance(value, yaml.MappingNode):
        names = [name for name, _ in value.value]
    for name in names:
        if isinstance(name, yaml.ScalarNode):
            name.tag = f"{_TAG}str"


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file."""
    text = read_regular(file, "config", MOST_BYTES)
    try:
        values = yaml.load(text.decode("utf-8"), _Loader)
    except InvalidArgument as error:
        raise InvalidArgument(f"The config {path_name(file)} {error}: remove or rename one of the two.") from None
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
