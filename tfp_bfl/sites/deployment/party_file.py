"""The configuration file of a site, and its secret."""

import os
import pathlib
import secrets
from typing import Any

import pydantic

from tfp_bfl.app.options.config import read_yaml
from tfp_bfl.app.options.refusals import NoTruthAsNumber, refusal
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.data.cells import MOST_LEVELS
from tfp_bfl.data.messages import MOST_CATEGORIES
from tfp_bfl.errors import MIN_DELTA, InvalidArgument, lookup
from tfp_bfl.files import name as path_name

FILE, SECRET = "party.yaml", "secret"
_SECRET_BYTES = 32
# Options of a run that the file does not have.
_OF_RUNS = tuple(name for name in TableOptions._fields if name != "drop")


def _option(default: Any, words: str, example: str, **bounds: Any) -> Any:
    """Declare an option of the file, with its words and an example for the line in a new file; "" for no line."""
    return pydantic.Field(default, description=words, examples=[example], **bounds)


class PartyFile(NoTruthAsNumber, pydantic.BaseModel):
    """The configuration of a site, which the site never sends.

    With a bound on epsilon scores are not shared. Paths are those of `data.read_own`, and rules are named as in
    `tfp-bfl list`. By `min_rows` at least the rows of two linear models differ, too.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    data: str = _option(
        ..., "a table (.csv, .parquet), an archive (.npz) or a folder of images, relative to this file", "FILL_IN.csv"
    )
    label: str = _option("label", "the column of the labels", "label")
    task: str = _option("classification", "classification or regression", "")
    drop: list[str] = _option([], "columns to leave out", "[patient_id]")
    max_categories: int = _option(
        MOST_LEVELS,
        "largest number of categories of a column, which a run may request",
        f"{MOST_LEVELS}",
        ge=1,
        le=MOST_CATEGORIES,
    )
    separator: str | None = _option(
        None, "column separator of a .csv file; default: the separator of its header", '";"'
    )
    test_data: str | None = _option(None, "test data; default: a fifth of the data", "test.csv")
    algorithms: list[str] = _option([], "accepted algorithms; default: all", "[variational, partitioned_vi]")
    models: list[str] = _option([], "accepted models; default: all", "[mlp, lenet]")
    rules: list[str] = _option([], "accepted aggregation rules; default: all", "[mean_precision_average]")
    max_rounds: int = _option(1000, "largest number of rounds of a run", "1000", ge=1)
    min_parties: int = _option(2, "smallest number of sites of a run", "2", ge=1)
    min_rows: int = _option(20, "smallest number of training rows of a run", "20", ge=1)
    max_runs: int = _option(100, "largest number of runs in which the site answers", "100", ge=1)
    max_daily_runs: int = _option(50, "largest number of them within a day", "50", ge=1)
    smallest_cell: int = _option(5, "smallest number of rows with a level or an event in a linear model", "5", ge=1)
    max_coefficient_share: float = _option(
        0.33, "largest number of coefficients of a linear model for each row", "0.33", gt=0, le=1
    )
    share_scores: bool = _option(True, "send sums of a model's scores on the test data", "true")
    allow_single_posteriors: bool = _option(
        True, "false: only rules that need only the sum of the sites' messages", "true"
    )
    only_secure_sums: bool = _option(False, "true: only runs with masked messages", "false")
    max_example_epsilon: float | None = _option(
        None,
        "epsilon of one example over all runs; then only runs with --example-clip-norm",
        "8",
        gt=0,
        allow_inf_nan=False,
    )
    delta: float = _option(1e-5, "delta of that epsilon", "", ge=MIN_DELTA, lt=1)


def new_file() -> str:
    """Return the text of a file to fill in: each option in a line with its words."""
    lines = ["# The data of this site and the runs that it accepts. Never sent. See docs/deployment.md."]
    for name, field in PartyFile.model_fields.items():
        (example,) = field.examples or [""]
        if example:
            given = f"{'' if name in ('data', 'label') else '# '}{name}: {example}"
            lines.append(f"{given:<23}  # {field.description}")
    return "\n".join(lines) + "\n"


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
        raise refusal(error, f" of {path_name(path)}") from None
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
