"""The commands of some pages run, in order, on small data; `test_commands.py` parses those of all pages."""

import pathlib

import numpy as np
import pytest

from tests.docs.test_commands import PAGES
from tfp_bfl.app.cli import run_command_line

pytestmark = [pytest.mark.deep(after="tests/docs/test_commands.py"), pytest.mark.long]

# Page -> what its commands require besides the data of this library. Commands of other pages require pictures, sites,
# a cluster or datasets of TFDS.
RUN = {
    **dict.fromkeys(("command_line.md", "federation.md", "laplace.md", "personal.md"), ""),
    "regression.md": "houses",
}
# What a command contains that is not run -> why.
EXCEPTIONS = {"fish": "writes into the reader's home", "--help": "tests/docs/test_commands.py"}
# Values of options with less to compute.
SMALLER = {"--rounds": "2", "--local-epochs": "1", "--average-rounds": "2", "--batch-size": "16"}
LESS = ["--examples-per-client", "40", "--num-samples", "3", "--evaluation-examples", "50", "--engine", "local"]


def smaller(command):
    """The command with fewer rounds and examples, and with the engine of this process."""
    words = [word for word in command if not word.startswith(">")]
    words = [SMALLER.get(before, word) for before, word in zip(["", *words], words)]
    if words[0] == "run":
        words += [] if "--rounds" in words else ["--rounds", "2"]
        words += LESS[2:] if "--clients" in words else LESS
        words += [] if "--output" in words else ["--output", f"run {len(words)}"]
    return words


def write_houses():
    rows = np.arange(90)
    columns = {"rooms": rows % 40, "age": np.sin(rows).round(3)}
    sold = {"agency": np.resize(["north", "south"], 90), "price": (rows % 40) * 3.5 + 1}
    for name, table in {"new_houses.csv": columns, "houses.csv": {**columns, **sold}}.items():
        lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values()))]
        pathlib.Path(name).write_text("\n".join(lines))


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if RUN[page] == "houses":
        write_houses()
    for command in PAGES[page]:
        words = smaller(command)
        if not any(part in words for part in EXCEPTIONS):
            assert run_command_line(words) == 0, (words, capsys.readouterr().err)
