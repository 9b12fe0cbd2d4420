"""Rates and weights as functions of the round."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import check_count, check_number


def exponential_decay(
    learning_rate: float = 1e-3, decay: float = 0.04, silent_rounds: int = 50
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A learning rate that stays for some rounds and then falls exponentially.

    rate(r) = learning_rate * exp(-decay * max(0, r - silent_rounds)),   r the rounds done so far

    Fischer et al. 2024 (arXiv:2403.15263) use the defaults.

    Raises:
      InvalidArgument: a rate that is not above zero, or a negative decay or number of rounds.
    """
    learning_rate = check_number(learning_rate, "learning_rate")
    decay = check_number(decay, "decay", zero=True)
    silent_rounds = check_count(silent_rounds, "silent_rounds", 0)
    return lambda number: learning_rate * tf.exp(-decay * tf.maximum(0.0, tf.cast(number - silent_rounds, tf.float32)))


# Names for the command line, with the equation of each.
SCHEDULES = {
    "cosine": "rate along a half cosine over the rounds of the run, to a tenth of it",
    "exponential": "rate exp(-decay max(0, r - silent_rounds))",
    "constant": "rate",
}
# Share of the rate that a half cosine ends at, and rounds that halve it where their number is not known.
LAST_SHARE = 0.1
HALF_ROUNDS = 20.0


class OverRounds(NamedTuple):
    """A learning rate that falls over the rounds of a run: the default of client training (`over_rounds`).

    Fields:
      learning_rate: of the first round.
    """

    learning_rate: float

    def __call__(self, number: tf.Tensor, rounds: Any = 0) -> tf.Tensor:
        """Return the rate after `number` rounds, of `rounds` in all; 0 where nobody knows how many."""
        done, known = tf.cast(number, tf.float32), tf.cast(rounds, tf.float32)
        share = tf.minimum(done / tf.maximum(known, 1.0), 1.0)
        cosine = LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + tf.cos(math.pi * share))
        return self.learning_rate * tf.where(known > 0, cosine, 1 / (1 + done / HALF_ROUNDS))


def over_rounds(learning_rate: float) -> OverRounds:
    """Return a learning rate that falls to a tenth along a half cosine over the rounds that `simulate` runs.

    rate(r) = learning_rate (.1 + .9 (1 + cos(pi r / R)) / 2),   r the rounds done so far of R
    rate(r) = learning_rate / (1 + r / 20)                       where R is not known

    Clients of several local steps drift apart by an amount that is proportional to the rate, so that a constant rate
    leaves federated averaging away from the minimum where clients differ (Li et al. 2020, arXiv:1907.02189, section
    3.3). A run that is continued to more rounds than it had goes on with the rates of its new length.

    Raises:
      InvalidArgument: a rate that is not above zero.

    Source: Loshchilov & Hutter 2017 (arXiv:1608.03983), eq. 5, without restarts.
    """
    return OverRounds(check_number(learning_rate, "learning_rate"))


def sigmoid_warm_up(weight: float = 10.0, num_rounds: int = 20) -> Callable[[tf.Tensor], tf.Tensor]:
    """A weight that rises along a sigmoid in the first rounds and then stays, such as that of a KL.

    weight(r) = weight / (1 + exp(-1.2 (10 r / num_rounds - 5)))   for r <= num_rounds,   weight after them

    r are the rounds done so far: .0025 of the weight before the first, a half in the middle, .9975 at the end.
    Jeon et al. 2023 (arXiv:2510.20225) have 10 and a fiftieth of all rounds, by their program.

    Raises:
      InvalidArgument: a weight that is not above zero, or fewer than one round.
    """
    weight = check_number(weight, "weight")
    check_count(num_rounds, "num_rounds")

    def of_round(number: tf.Tensor) -> tf.Tensor:
        rising = weight * tf.sigmoid(1.2 * (10 * tf.cast(number, tf.float32) / num_rounds - 5))
        return tf.where(number > num_rounds, weight, rising)

    return of_round
