"""What SIGTERM and SIGHUP end, they end with its cleanup."""

import os
import signal
import threading

import pytest

from tfp_bfl.sites.deployment.signals import ends_with_cleanup


@pytest.fixture(autouse=True)
def nobody_handles_signals():
    """A program that starts the tests by nohup has them ignore SIGHUP."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_was_begun_and_a_second_one_does_not_cut_that_short(number):
    ended = []
    with pytest.raises(SystemExit) as raised, ends_with_cleanup():
        try:
            os.kill(os.getpid(), number)
            pytest.fail("nothing was raised")
        finally:
            for again in (signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), again)
            ended.append(True)
    assert raised.value.code == 128 + number and ended == [True]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_other_errors_do_not_stop_it():
    """FLARE's errors are caught by `except Exception`, which must not catch this."""
    with pytest.raises(SystemExit), ends_with_cleanup():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:
            pytest.fail("it was caught")


def test_signals_that_someone_handles_stay_theirs():
    noted = []
    former = signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))
    try:
        with ends_with_cleanup():
            os.kill(os.getpid(), signal.SIGHUP)
        assert noted == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_thread_changes_no_signal():
    def work():
        with ends_with_cleanup():
            found.append(signal.getsignal(signal.SIGTERM))

    found = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
