"""Learning rates as functions of the round."""

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
