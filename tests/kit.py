"""What tests of many folders share: the command line, the files of a run, and comparisons of structures."""

import html
import itertools
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

from tfp_bfl.app.cli import run_command_line
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.weights import Population, RoundSize


def call(*arguments):
    """Run a command of `tfp-bfl` and return its exit status."""
    return run_command_line([str(x) for x in arguments])


def refusal(capsys, *arguments):
    """Run a command that must be refused, and return its sentence; on a slow machine progress comes before it."""
    capsys.readouterr()
    assert call(*arguments) == 2
    (line,) = [x for x in capsys.readouterr().err.strip().splitlines() if not x.startswith("reading ")]
    return line


def refuses(message, function, *arguments, **options):
    """Check that a call is refused with one sentence, of which a part matches the expression `message`; return it."""
    with pytest.raises(InvalidArgument, match=message) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fails(message, function, *arguments, **options):
    """Check that a call ends in an error of the library, of which a part matches the expression `message`."""
    with pytest.raises(Error, match=message):
        function(*arguments, **options)


def interrupted(function, number):
    """Return a function that Ctrl-C interrupts at its call of this number, from 1."""
    calls = itertools.count(1)

    def call(*arguments):
        if next(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments)

    return call


def json_of(path):
    """Read a file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def lines_of(path):
    """Read a file with JSON in each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary_of(folder):
    """Read what a run recorded at its end."""
    return json_of(folder / "summary.json")


def info_of(folder):
    """Read what is known of a run's model."""
    return json_of(folder / "saved_model" / "assets" / "info.json")


def assert_same(actual, wanted, rtol=0.0, atol=0.0):
    """Compare the parts of structures, or a structure with a list of its parts; equal to the last bit by default."""
    if type(actual) is type(wanted):
        tf.nest.assert_same_structure(actual, wanted, check_types=False)
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def flat(structure):
    """Return all numbers of a structure in one row."""
    return np.concatenate([np.ravel(x) for x in tf.nest.flatten(structure)])


def differ(a, b, atol=1e-5):
    """Say whether two structures have a number that is not the same."""
    return any(np.abs(x - y).max() > atol for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True))


def without_times(rows):
    """Leave out of the rows of rounds what differs from run to run."""
    return [{name: x for name, x in row.items() if "seconds" not in name and name != "restarts"} for row in rows]


class FakeStudy:
    """Stands for `run_cell` of a study's program: writes what `summary` makes of a cell's options, and counts."""

    def __init__(self, summary):
        self.runs, self.fails_at, self._summary = [], None, summary

    def __call__(self, folder, options):
        if len(self.runs) == self.fails_at:
            raise KeyboardInterrupt
        self.runs.append(folder.name)
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"options": options, **self._summary(options)}))


def fake_study(monkeypatch, folder, program, summary):
    """Replace the work of a study's program, whose `invoke` runs in the folder; see `FakeStudy`."""
    fake = FakeStudy(summary)
    monkeypatch.setattr(program, "run_cell", fake)
    folders = ["--output", str(folder / "cells"), "--results", str(folder / "results")]
    fake.invoke = lambda *arguments: CliRunner().invoke(program.main, [*arguments, *folders])
    fake.folder = folder
    return fake


def sized(num_clients, num_examples, present):
    """The size of a federation, and of a round with so many sound clients."""
    return RoundSize(*map(tf.constant, (num_clients, num_examples, 1.0)), Population(tf.constant(present)))


def plain(page):
    """Leave out the marks of a page at which a text may continue in the next line."""
    return re.sub("<span>(.*?)</span>", r"\1", page.replace("<wbr>", "").replace("\u200b", ""))


def facts_of(path):
    """Name of each line of the title block of a page -> its text."""
    lines = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", plain(path.read_text()).split("</dl>")[0])
    return {name: html.unescape(re.sub("<.*?>", "", text)) for name, text in lines}
