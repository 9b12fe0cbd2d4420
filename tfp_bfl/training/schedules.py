"""Rates and weights as functions of the round."""

import math
from collections.abc import Callable

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_count, check_number


def exponential_decay(
    learning_rate: float = 1e-3, decay: float = 0.04, silent_rounds: int = 50
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a learning rate that stays for some rounds and then falls exponentially.

    rate(r) = learning_rate * exp(-decay * max(0, r - silent_rounds)),   r the rounds done so far

    Fischer et al. 2024 (arXiv:2403.15263) use the defaults.

    Example:
      >>> rate = bfl.training.exponential_decay(0.001)
      >>> [round(float(rate(number)), 5) for number in (0, 50, 75)]
      [0.001, 0.001, 0.00037]
    """
    learning_rate = check_number(learning_rate, "learning_rate")
    decay = check_number(decay, "decay", zero=True)
    silent_rounds = check_count(silent_rounds, "silent_rounds", 0)
    past = lambda number: tf.maximum(0.0, tf.cast(number - silent_rounds, tf.float32))
    return _stated(lambda number: learning_rate * tf.exp(-decay * past(number)), "exponential", learning_rate)


def _stated(
    schedule: Callable[[tf.Tensor], tf.Tensor], name: str, learning_rate: float
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a schedule with the `settings` that client work states (`ClientWork.settings`)."""
    schedule.settings = {"learning_rate": learning_rate, "schedule": name}  # type: ignore[attr-defined]
    return schedule


def inverse_decay(learning_rate: float, half_rounds: float = 100.0) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a learning rate that falls with the inverse of the rounds: the default of client training.

    rate(r) = learning_rate / (1 + r / half_rounds),   r the rounds done so far

    Clients of several local steps drift apart by an amount that is proportional to the rate, so that a constant rate
    leaves federated averaging away from the minimum where clients differ. With this schedule the distance goes to zero
    (Li et al. 2020, arXiv:1907.02189, theorem 1 and section 3.3), whatever the number of rounds.

    Example:
      >>> rate = bfl.training.inverse_decay(0.1)
      >>> [round(float(rate(number)), 3) for number in (0, 100, 300)]
      [0.1, 0.05, 0.025]
    """
    learning_rate, half_rounds = check_number(learning_rate, "learning_rate"), check_number(half_rounds, "half_rounds")
    return _stated(
        lambda number: learning_rate / (1.0 + tf.cast(number, tf.float32) / half_rounds), "inverse", learning_rate
    )


def cosine_decay(learning_rate: float, rounds: int, last: float = 0.1) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a learning rate that falls along a half cosine over a known number of rounds.

    rate(r) = learning_rate (last + (1 - last) (1 + cos(pi min(r / rounds, 1))) / 2),   r the rounds done so far

    It learns at the full rate for longer than `inverse_decay`, and ends at a lower one. A run that is continued to
    more rounds continues with other rates.

    Args:
      learning_rate: of the first round.
      rounds: of the run.
      last: share of the learning rate at the end, from 0 to 1.

    Source: Loshchilov & Hutter 2017 (arXiv:1608.03983), eq. 5, without restarts.

    Example:
      >>> rate = bfl.training.cosine_decay(0.1, rounds=60)
      >>> [round(float(rate(number)), 3) for number in (0, 30, 60)]
      [0.1, 0.055, 0.01]
    """
    learning_rate, rounds = check_number(learning_rate, "learning_rate"), check_count(rounds, "rounds")
    if check_number(last, "last", zero=True) > 1:
        raise InvalidArgument(f"last is {last}, but must be a share from 0 to 1.")

    def of_round(number: tf.Tensor) -> tf.Tensor:
        done = tf.minimum(tf.cast(number, tf.float32) / rounds, 1.0)
        return learning_rate * (last + (1 - last) * 0.5 * (1 + tf.cos(math.pi * done)))

    return _stated(of_round, "cosine", learning_rate)


def falling(learning_rate: float, power: float = 1.0, least: float = 0.0) -> Callable[..., tf.Tensor]:
    """Return a learning rate that falls to zero over the rounds of the run, which the run itself says.

    rate(r, R) = learning_rate max(least, ((1 + cos(pi r / R)) / 2)^power),   r the rounds done so far, of R
               = `inverse_decay` of it                                         where R is not known

    At rest, what is left of the clients' drift is in proportion to their rate, and what is left of the noise of a round
    to the server's.

    Args:
      learning_rate: of the first round.
      power: above 1 the rate is low for longer.
      least: share of the learning rate below which it does not fall.

    Source: Loshchilov & Hutter 2017 (arXiv:1608.03983), eq. 5, without restarts, for power 1.
    """
    unknown = inverse_decay(learning_rate)

    def of_round(number: tf.Tensor, rounds: tf.Tensor | int = 0) -> tf.Tensor:
        done, of_run = tf.cast(number, tf.float32), tf.cast(rounds, tf.float32)
        share = tf.minimum(tf.math.divide_no_nan(done, of_run), 1.0)
        known = tf.maximum(least, (0.5 * (1 + tf.cos(math.pi * share))) ** power)
        return tf.where(of_run > 0, learning_rate * known, unknown(number))

    of_round.knows_rounds = True  # type: ignore[attr-defined]
    return _stated(of_round, "falling", learning_rate)


def linear_decay(learning_rate: float, rounds: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a learning rate that falls to zero along a line over a known number of rounds.

    rate(r) = learning_rate max(1 - r / rounds, 0),   r the rounds done so far

    Example:
      >>> rate = bfl.training.linear_decay(0.1, rounds=60)
      >>> [round(float(rate(number)), 3) for number in (0, 30, 60)]
      [0.1, 0.05, 0.0]
    """
    learning_rate, rounds = check_number(learning_rate, "learning_rate"), check_count(rounds, "rounds")
    left = lambda number: tf.maximum(1.0 - tf.cast(number, tf.float32) / rounds, 0.0)
    return _stated(lambda number: learning_rate * left(number), "linear", learning_rate)


def sigmoid_warm_up(weight: float = 10.0, num_rounds: int = 20) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a weight that rises along a sigmoid in the first rounds and then stays, such as that of a KL.

    weight(r) = weight / (1 + exp(-1.2 (10 r / num_rounds - 5)))   for r <= num_rounds,   weight after them

    r are the rounds done so far: .0025 of the weight before the first, a half in the middle, .9975 at the end.
    Jeon et al. 2023 (arXiv:2510.20225) have 10 and a fiftieth of all rounds, by their program.

    Example:
      >>> weight = bfl.training.sigmoid_warm_up(weight=1.0, num_rounds=20)
      >>> [round(float(weight(number)), 2) for number in (0, 10, 20)]
      [0.0, 0.5, 1.0]
    """
    weight = check_number(weight, "weight")
    check_count(num_rounds, "num_rounds")

    def of_round(number: tf.Tensor) -> tf.Tensor:
        rising = weight * tf.sigmoid(1.2 * (10 * tf.cast(number, tf.float32) / num_rounds - 5))
        return tf.where(number > num_rounds, weight, rising)

    return of_round
