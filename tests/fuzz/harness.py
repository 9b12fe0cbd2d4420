"""What every fuzz test does: run one input under a watchdog, and hold what comes of it against the contract.

A reader gives something valid or raises InvalidArgument with one sentence. Anything else fails the test; a hang ends
the process after `SECONDS` with a traceback of every thread, and so does a crash of native code, which pytest-xdist
reports as a failure of the test that ran. The input is then still in the test's temporary folder.
"""

import contextlib
import faulthandler
import os
import pathlib
import re
import resource
import time

import hypothesis

from tfp_bfl.errors import InvalidArgument

SECONDS = 60.0
MOST_NEW_MEMORY = 700 * 2**20
INPUTS = int(os.environ.get("TFP_BFL_FUZZ_INPUTS", "100"))
NEW = "TFP_BFL_FUZZ_NEW" in os.environ


def inputs(share):
    """Hypothesis's settings for a test that takes this share of all inputs; only `nox -s fuzz` draws new ones."""
    return hypothesis.settings(
        max_examples=max(1, round(share * INPUTS)),
        deadline=None,
        database=None,
        derandomize=not NEW,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )


def attempt(folder, read, *arguments):
    """What `read(*arguments)` returns, or the InvalidArgument that it raises, with all that this module promises."""
    before = _tree(folder)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    here = os.getcwd()
    os.chdir(folder)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        result = read(*arguments)
    except InvalidArgument as error:
        assert_one_sentence(str(error))
        result = error
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.chdir(here)
    assert _tree(folder) == before, "the reader made or removed files"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - memory < MOST_NEW_MEMORY
    return result


def assert_one_sentence(text):
    assert text.isprintable(), repr(text)
    assert text[-1] in ".?" and 15 < len(text) < 600, text
    assert not re.search(r"Traceback|Error\b|at 0x[0-9a-f]{6}", text), text


def _tree(folder):
    return sorted(str(p) for p in pathlib.Path(folder).rglob("*"))


class Tally:
    """Counts what inputs came to."""

    def __init__(self):
        self.valid = self.refused = 0

    def add(self, result):
        """Counts a result of `attempt`; returns whether it is valid."""
        refused = isinstance(result, InvalidArgument)
        self.refused += refused
        self.valid += not refused
        return not refused


@contextlib.contextmanager
def tally(name):
    """A `Tally`; prints its counts and the time at the end."""
    counts, started = Tally(), time.perf_counter()
    yield counts
    number, seconds = counts.valid + counts.refused, time.perf_counter() - started
    print(f"\n{name}: {number} inputs, {counts.valid} valid, {counts.refused} refused, {seconds:.0f} s")
    assert counts.refused
