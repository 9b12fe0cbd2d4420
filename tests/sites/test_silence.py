"""Silent sites cost a run one deadline a round at first, and then only now and then."""

import numpy as np
import pytest

from tfp_bfl.files.arrays import to_bytes
from tfp_bfl.sites.deployment import server

MESSAGE = {"round": np.zeros([], np.int32)}
NAMES = ("east", "north", "south", "west")


class Channel:
    """Sites that answer in rounds that `away` does not name, and the deadlines that were waited for."""

    def __init__(self, away):
        self.away, self.round, self.asked, self.deadlines = away, 0, [], 0

    def ask(self, task, what):
        self.asked.append(set(what))
        gone = {name for name in what if self.round in self.away.get(name, ())}
        self.deadlines += bool(gone)
        yield from ((name, to_bytes(MESSAGE)) for name in what if name not in gone)


def carried(away, rounds, quorum=1):
    """The channel, the numbers that answered in each round, and the messages about them."""
    channel, reported, answered = Channel(away), [], []
    carrier = server._Carrier(channel, NAMES, dict.fromkeys(NAMES, b""), {}, reported.append, quorum)
    for number in range(rounds):
        channel.round = number
        replies = dict(carrier.ask(range(len(NAMES)), MESSAGE))
        answered.append({NAMES[k] for k, reply in replies.items() if not isinstance(reply, str)})
    return channel, answered, reported


def test_several_silent_sites_are_waited_for_together_and_not_in_every_round():
    channel, answered, reported = carried({"south": range(40), "west": range(40)}, 40)
    asked = [number for number, names in enumerate(channel.asked) if "west" in names]
    # Two rounds in a row, then after 2, 4, 8 and 16 rounds without it.
    assert asked == [0, 1, 4, 9, 18, 35] and channel.deadlines == len(asked)
    assert all(names == {"east", "north"} for names in answered)
    assert reported == [
        f"{name} did not answer in time: rounds continue without it until it answers again"
        for name in ("south", "west")
    ]


def test_a_site_that_answers_again_is_asked_in_every_round():
    channel, answered, reported = carried({"west": range(3)}, 8)
    assert ["west" in names for names in answered] == [False] * 4 + [True] * 4
    assert reported[-1] == "west answers again" and channel.deadlines == 2


def test_one_silent_round_leaves_nobody_out_of_the_next():
    channel, answered, _ = carried({"west": [1, 3]}, 5)
    assert ["west" in names for names in answered] == [True, False, True, False, True]
    assert all(names == set(NAMES) for names in channel.asked)


@pytest.mark.parametrize("quorum", [3, 4])
def test_a_site_that_the_quorum_needs_is_asked(quorum):
    channel, _, _ = carried({"west": range(6)}, 6, quorum)
    assert ("west" in channel.asked[2]) == (quorum == 4)


def test_scores_do_not_wait_for_a_site_that_was_silent_in_the_round():
    channel = Channel({"west": range(9)})
    carrier = server._Carrier(channel, NAMES, {}, {}, lambda text: None)
    list(carrier.ask(range(len(NAMES)), MESSAGE))
    assert carrier.silent == {"west"} and channel.deadlines == 1
