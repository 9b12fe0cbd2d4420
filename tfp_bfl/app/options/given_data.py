"""Data that a program gives to a run in the place of a name or a path, and what the run's record says of them."""

import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfp_bfl import data
from tfp_bfl.app.options.own_model import GIVEN_DATA, is_trusted, load, taken_by, values_of
from tfp_bfl.app.options.refusals import IN_MEMORY
from tfp_bfl.data.equal_partitions import GIVEN as GIVEN_PARTITION
from tfp_bfl.data.own import NAME
from tfp_bfl.data.tables import holds_table
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files.code import called, name_of

# The data of a function last called.
_NAMED = dict[Any, "GivenData"]()
_RECORD = re.compile(
    GIVEN_DATA
    + r"(?P<kind>[^ ]+)( (?P<name>.*))? \[(?P<shape>[0-9, ]+)\](, (?P<clients>\d+) clients)?, "
    + r"sha256 (?P<digest>[0-9a-f]{64})"
)


class Recorded(NamedTuple):
    """Hold what a record says of data that a program gave; the digest is that of `data.digest`."""

    name: str
    names_clients: bool
    digest: str
    is_table: bool


def recorded(dataset: object) -> Recorded | None:
    """Return what a configuration's dataset says of data that a program gave; None for a name or a path."""
    found = _RECORD.fullmatch(dataset) if isinstance(dataset, str) else None
    if not found:
        return None
    of_rows = found["shape"].count(",") < 3  # [N, columns], or series [N, steps, columns].
    return Recorded(found["name"] or NAME, found["clients"] is not None, found["digest"], of_rows)


def names_clients(dataset: object, client_column: object) -> bool:
    """Return whether user-supplied data assign their examples to clients."""
    if given := recorded(dataset):
        return given.names_clients
    return client_column is not None or (isinstance(dataset, str) and data.names_clients(dataset))


def is_table(dataset: object) -> bool:
    """Return whether the examples of a dataset are rows of numbers, by its name."""
    if given := recorded(dataset):
        return given.is_table
    return isinstance(dataset, str) and (dataset in data.EMBEDDED_TABLES or holds_table(dataset))


class GivenData:
    """Data that a program gives, read once for each reading of its columns.

    Attributes:
      function: that made them, with parameters that are options; None for data as such.
    """

    def __init__(self, train: object, test: object = None, function: Callable[..., Any] | None = None):
        self._parts, self._read, self.function = (train, test), dict[Any, data.OwnData](), function

    def read(self, options: Mapping[str, Any]) -> data.OwnData:
        """Return the training and the test data, and the clients that they name (`data.read_own`), by `IN_MEMORY`."""
        train, test = self._parts
        named = {name: options.get(name) for name in IN_MEMORY}
        named["task"] = named["task"] or self.task or "classification"
        how: dict[str, Any] = {name: x for name, x in named.items() if x is not None}
        key = tuple(how.items())
        if key not in self._read:
            client = how.pop("client_column", None)
            self._read[key] = data.read_own(train, client=client, test=test, **how)
        return self._read[key]

    @property
    def task(self) -> str | None:
        """The task that a source's labels say; None for data with their task in an option."""
        train, _ = self._parts
        source = getattr(train, "source", train)
        if not isinstance(source, data.Source):
            return None
        return "regression" if source.target else "classification"

    def record(self, options: Mapping[str, Any]) -> str:
        """Return what a run records of the data: kind, shape and digest."""
        parts = self.read(options)
        kind = data.kind_of(self._parts[0])
        name = "" if parts.train.name == NAME else f" {parts.train.name}"
        number = parts.train.num_examples + parts.test.num_examples
        clients = f", {parts.clients.num_clients} clients" if parts.clients else ""
        shape = [number, *parts.train.element_shape]
        return f"{GIVEN_DATA}{kind}{name} {shape}{clients}, sha256 {data.digest(parts)}"


def named(value: str, parameters: Mapping[str, Any]) -> GivenData:
    """Return the data of FILE.py:FUNCTION, whose code is run once for each state of the file.

    The function returns data in memory (`data.read_own`), or a dictionary with these as "train" and "test".
    """
    if not is_trusted(value):
        raise InvalidArgument(
            f"The data of this run are code, {shown(value)}, which is run only where the command names it: add "
            f"--dataset {value}."
        )
    function = load(value, "dataset")
    own = taken_by(function, parameters)
    file = pathlib.Path(value.rpartition(":")[0]).stat()
    key = value, file.st_mtime_ns, file.st_size, tuple(sorted(own.items()))
    if key not in _NAMED:
        _NAMED.clear()
        _NAMED[key] = made_by(function, own)
    return _NAMED[key]


def made_by(function: Callable[..., Any], options: Mapping[str, Any]) -> GivenData:
    """Return the data that a user's function makes with those of the options that are its parameters."""
    own = values_of(options, {"dataset": function})
    made = called(name_of("dataset", function), function, **own)
    is_pair = isinstance(made, dict) and set(made) == {"train", "test"}
    train, test = (made["train"], made["test"]) if is_pair else (made, None)
    return GivenData(train, test, function)


def with_defaults(values: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the task, partition and model that follow from the data of FILE.py:FUNCTION."""
    check_no_test_data(values.get("test_data"))
    given = named(values["dataset"], parameters)
    task = values.get("task") or given.task or "classification"
    parts = given.read(values)
    of_clients = {"partition": GIVEN_PARTITION} if parts.clients is not None else {}
    of_tables = {"model": "mlp"} if len(parts.train.element_shape) < 3 else {}
    return {"task": task, **of_clients, **of_tables, **values}


def check_no_test_data(test_data: object) -> None:
    """Raise InvalidArgument for test data beside a function, which makes them."""
    if test_data is not None:
        raise InvalidArgument(
            'test_data belongs to files: let the dataset function return {"train": ..., "test": ...}, and leave '
            "test_data out."
        )


def read_given(given: GivenData | None, dataset: str, options: Mapping[str, Any]) -> data.OwnData:
    """Return the data of a run that, by its record, a program gave."""
    if given is None:
        raise InvalidArgument(
            f"The data of this run, {_in_words(dataset)}, were given in Python: give them again, by "
            "bfl.run(resume=..., dataset=...) or bfl.report(..., dataset=...); other commands need data in a file."
        )
    there, parts = recorded(dataset), given.read(options)
    if there is None or data.digest(parts) != there.digest:
        now = given.record(options)
        raise InvalidArgument(
            f"The data, {_in_words(now)}, have another SHA-256 sum than those of the run, {_in_words(dataset)}: give "
            "the data of the run."
        )
    return parts


def _in_words(dataset: str) -> str:
    """Return kind and shape of a record."""
    return dataset.removeprefix(GIVEN_DATA).partition(", sha256")[0]
