"""YAML files of options, such as a configuration or a benchmark."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import yaml

from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files import read_regular

# A full record of a run has 1.5 kB.
MOST_BYTES = 64 * 1024


# Options with names of columns: one name, or a list. Other lists and numbers are values.
_COLUMNS = ("label", "client_column", "drop", "only", "categorical")
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


def read_yaml(file: str | pathlib.Path) -> dict[str, Any]:
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
