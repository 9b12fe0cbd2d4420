"""The commands of the documentation: each is one that the program takes."""

import functools
import pathlib
import re
import shlex

import pytest
from click.testing import CliRunner

from tfp_bfl.app.cli import cli
from tfp_bfl.app.options.afterwards import after_options, split_after
from tfp_bfl.app.options.config import make_config
from tfp_bfl.data import is_own, load, parse_partition
from tfp_bfl.data.loading import EMBEDDED

source = functools.cache(load)
ROOT = pathlib.Path(__file__).resolve().parents[2]


def commands_of(text):
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("tfp-bfl ")]


PAGES = {
    path.name: commands_of(path.read_text()) for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
# A function with parameters, which are options of the commands that name it.
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
FILE = "from typing import Literal\n\n" + re.search(r"^def build\(.*hidden: int.*: \.\.\.$", EXTENDING, re.M)[0]
COMMANDS = [(page, command) for page, commands in PAGES.items() for command in commands]


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{p}-{' '.join(c)[:60]}" for p, c in COMMANDS])
def test_the_program_takes_each_command(page, command, tmp_path, monkeypatch):
    """Options and their values; files that the reader has are not looked for."""
    monkeypatch.chdir(tmp_path)
    for name in ("my.py", "frozen.py"):
        (tmp_path / name).write_text(FILE)
    (tmp_path / "heart").mkdir()
    command = [word for word in command if not word.startswith(">")]
    command = command[: command.index("predictions.csv")] if "predictions.csv" in command else command
    if "--help" in command:
        assert CliRunner().invoke(cli, command).exit_code == 0
        return
    group, rest = cli, command
    while hasattr(group, "commands"):
        group, rest = group.commands[rest[0]], rest[1:]
    context = group.make_context(group.name, list(rest), resilient_parsing="completion" in command)
    given = {name: value for name, value in context.params.items() if value is not None}
    if command[0] == "run" and not {"resumed", "config_file", "seeds"} & set(given):
        given = {name: x for name, x in given.items() if name not in ("progress", "form")}
        start, algorithm, _, rest = split_after(given)
        if start is not None:
            after_options(algorithm, {name: x for name, x in rest.items() if name != "output"})
            return
        if not is_own(given.get("dataset", "digits")):
            config = make_config(None, given)
            if config.dataset in EMBEDDED:  # Which clients there can be, the data say.
                source(config.dataset).partition(parse_partition(config.partition, config.clients), config.seed)
