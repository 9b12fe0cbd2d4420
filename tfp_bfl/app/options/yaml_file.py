"""YAML files of options, such as a configuration or a benchmark."""

from __future__ import annotations

import pathlib
from typing import Any, Union

import yaml

from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files import read_regular

# A full record of a run has 1.5 kB.
MOST_BYTES = 64 * 1024


class _Loader(yaml.SafeLoader):
    """A YAML loader without aliases and without names that occur twice in a mapping.

    A few lines of aliases stand for more values than any memory holds. YAML's own loader drops the first of two equal
    names without a word.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        there = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in there:
                line = key.start_mark.line + 1
                raise InvalidArgument(f"names {shown(key.value)} twice, the second time in line {line}")
            if name is not None:
                there.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(file: Union[str, pathlib.Path]) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
      InvalidArgument: the file can't be read, is not a regular one, is larger than 64 KiB, is not YAML (or uses its
        aliases), names an option twice, or is not a mapping of names to values.
    """
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
