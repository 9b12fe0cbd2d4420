"""The configuration file of a site, and its secret."""

from __future__ import annotations

import os
import pathlib
import secrets

import pydantic

from tfp_bfl.app.options.config import read_yaml
from tfp_bfl.app.options.refusals import NoTruthAsNumber, must_be
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.data.cells import MOST_LEVELS
from tfp_bfl.data.messages import MOST_CATEGORIES
from tfp_bfl.errors import MIN_DELTA, InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name

FILE, SECRET = "party.yaml", "secret"
_SECRET_BYTES = 32
# Options of a run that the file does not have.
_OF_RUNS = tuple(name for name in TableOptions._fields if name != "drop")


class PartyFile(NoTruthAsNumber, pydantic.BaseModel):
    """The configuration of a site, which the site never sends.

    Attributes:
      data: path of a table, an archive or a folder of images (`data.read_own`).
      label: column of the labels.
      test_data: path of the test data; None for a fifth of the data.
      task: classification or regression.
      drop: columns of a table to leave out.
      separator: column separator of a .csv file (`data.read_own`).
      max_categories: largest number of categories of a column that the site describes: each is a value of its data.
      algorithms: accepted algorithms; empty for all.
      models: accepted models; empty for all.
      rules: accepted aggregation rules, by their names in `tfp-bfl list`; empty for all.
      max_rounds: largest number of rounds of a run.
      min_parties: smallest number of sites of a run.
      min_rows: smallest number of training rows of a run, and by which the rows of two linear models may differ.
      max_runs: largest number of runs in which the site answers.
      share_scores: whether the site sends sums of a model's scores on its test data.
      allow_single_posteriors: whether a rule may use the single messages of the sites and not only their sum.
      only_secure_sums: whether only runs with masked messages are accepted.
      max_example_epsilon: bound on the epsilon of one example over all runs (`training.ExamplePrivacy`); None for no
        bound. With a bound, scores are not shared.
      delta: delta of that epsilon.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    data: str
    label: str = "label"
    test_data: str | None = None
    task: str = "classification"
    drop: list[str] = []
    separator: str | None = None
    max_categories: int = pydantic.Field(MOST_LEVELS, ge=1, le=MOST_CATEGORIES)
    algorithms: list[str] = []
    models: list[str] = []
    rules: list[str] = []
    max_rounds: int = pydantic.Field(1000, ge=1)
    min_parties: int = pydantic.Field(2, ge=1)
    min_rows: int = pydantic.Field(20, ge=1)
    max_runs: int = pydantic.Field(100, ge=1)
    share_scores: bool = True
    allow_single_posteriors: bool = True
    only_secure_sums: bool = False
    max_example_epsilon: float | None = pydantic.Field(None, gt=0, allow_inf_nan=False)
    delta: float = pydantic.Field(1e-5, ge=MIN_DELTA, lt=1)


def read_file(folder: str | os.PathLike[str]) -> PartyFile:
    """Read the configuration file of a site; paths in the file are relative to the folder."""
    path = pathlib.Path(folder) / FILE
    values = read_yaml(path)
    for name in values:
        if name in _OF_RUNS:
            raise InvalidArgument(
                f"{name} of {path_name(path)} holds for all sites alike: whoever submits the run gives "
                f"--{name.replace('_', '-')}; leave it out here."
            )
        lookup(PartyFile.model_fields, name, "option", f"in {path_name(path)}")
    if "data" not in values:
        raise InvalidArgument(
            f"{path_name(path)} does not name the data of the site: add a line like 'data: rows.csv'."
        )
    try:
        settings = PartyFile(**values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InvalidArgument(
            f"{first['loc'][0]} of {path_name(path)} is {shown(first['input'])}, but must be {must_be(first)}."
        ) from None
    resolved = lambda x: x and str(pathlib.Path(folder) / x)
    return settings.model_copy(update={"data": resolved(settings.data), "test_data": resolved(settings.test_data)})


def secret_of(folder: str | os.PathLike[str]) -> bytes:
    """Return the site's secret; the first call creates its file, readable by the owner only."""
    path = pathlib.Path(folder) / SECRET
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
    except FileExistsError:
        pass
    secret = path.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise InvalidArgument(f"{path_name(path)} has {len(secret)} bytes, but must have {_SECRET_BYTES}: remove it.")
    return secret
