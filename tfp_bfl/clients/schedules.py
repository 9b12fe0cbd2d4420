"""Rates and weights as functions of the round."""

from __future__ import annotations

from typing import Callable

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
