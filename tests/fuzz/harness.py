"""What every fuzz test does: run one input under a watchdog, and hold what comes of it against the contract.

A reader gives something valid or raises InvalidArgument with one sentence. Anything else fails the test; a hang ends
the process after `SECONDS` with a traceback of every thread, and so does a crash of native code, which pytest-xdist
reports as a failure of the test that ran. The input is then still in the test's temporary folder.
"""

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


def fuzz(name, share, strategy, read, check, examples=()):
    """Read a share of all inputs, after the examples, check the valid results, and return their number.

    `read` is input -> result of `attempt`, and `check` gets an input and its valid result.
    """
    valid, refused, started = [], [], time.perf_counter()

    def run(drawn):
        result = read(drawn)
        (refused if isinstance(result, InvalidArgument) else valid).append(True)
        if not isinstance(result, InvalidArgument):
            check(drawn, result)

    run = inputs(share)(hypothesis.given(strategy)(run))
    for example in examples:
        run = hypothesis.example(example)(run)
    run()
    counts = f"{len(valid) + len(refused)} inputs, {len(valid)} valid, {len(refused)} refused"
    print(f"\n{name}: {counts}, {time.perf_counter() - started:.0f} s")
    assert refused
    return len(valid)
