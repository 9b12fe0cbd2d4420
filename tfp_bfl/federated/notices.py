"""Warnings about a run's posterior, in whole sentences."""

import collections
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.contracts import Needs

# The posterior counts as collapsed once its median standard deviation is this share of what it was at first, or most
# weights are at the floor.
COLLAPSED_SHARE = 0.05
# Below this log(q95 / q05) the standard deviations are all the same number.
SAME_LOG_RATIO = 0.05
# An accuracy no further above that of the most frequent class, as a share of it, is that of a constant prediction. So
# is an RMSE no further below that of the mean.
ABOVE_CHANCE = 0.02
# A client's loss of this many times the median of its round, which counts as 0.1 nats at least, causes a warning.
MANY_TIMES = 100.0
# Nats per example: no training that works ends there, of whatever likelihood.
ABSURD_LOSS = 1e4
# A warning is issued if more of the clients' logits than this share are at the top of their range.
MOST_SATURATED = 0.5
# Clients that a warning names.
MOST_NAMED = 5
_NUMBER = re.compile(r"\d+\.?\d*(?:e[-+]?\d+)?")


def collapse_warning(number: int) -> str:
    """Return the warning that the posterior standard deviations have collapsed."""
    return (
        f"The posterior collapsed in round {number}: its median standard deviation is below {COLLAPSED_SHARE:.0%} of "
        "its initial value, or at its floor. The model is almost deterministic and its epistemic uncertainty near "
        "zero: use a rule such as mean_precision_average or naive_weighted_average."
    )


def has_collapsed(row: Mapping[str, Any], first_stddev: float) -> bool:
    """Return whether a round's metrics show a posterior with collapsed standard deviations."""
    if "stddev_median" not in row:
        return False
    shrunk = row["stddev_median"] < COLLAPSED_SHARE * first_stddev
    return shrunk or (row["share_at_floor"] > 0.5 and row["stddev_median"] < first_stddev)


def one_shot_warning(rule: str, rounds: int) -> str:
    """Return the warning that a rule for one round is repeated."""
    return (
        f"The rule {rule} is for one round: in each of {rounds} rounds it counts the broadcast posterior again, and "
        "variances shrink by about the number of clients. Use mean_precision_average or partitioned_vi."
    )


def cores_warning(before: int, now: int) -> str | None:
    """Return the warning that a run resumes with clients in other sums; None where it does not."""
    if not before or before == now:
        return None
    return (
        f"The run was begun with {before} clients computed at once and resumes with {now}: the order of sums differs, "
        "and results may differ in the last digits from those of an uninterrupted run."
    )


def start_warning(before: str | None, now: str) -> str | None:
    """Return the warning that a run resumes with other weights to start from, which it does not use; None otherwise.

    `before` and `now` are digests of the weights that the run started from and of those given: "" for its own, None if
    unknown.
    """
    if not now or before in (None, now):
        return None
    return (
        "The checkpoints are of a run that started from other weights than the given start, which has no effect: "
        "choose another folder to start from it."
    )


def left_out_warning(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the warning that a chain's rounds went on without faulty clients; None if none did."""
    first: dict[str, Any] = {}
    for row in rows:
        for client in row.get("faulty_clients", {}):
            first.setdefault(client, row["round"])
    if not first:
        return None
    which = ", ".join(f"client {client} in round {number}" for client, number in [*first.items()][:MOST_NAMED])
    more = f" and {len(first) - MOST_NAMED} more" if len(first) > MOST_NAMED else ""
    return (
        f"Faulty clients were left out, first {which}{more}: the samples of this chain are not of the posterior of all "
        "clients. Take a smaller step, or look at the clients' examples."
    )


def faulty_warning(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if half of the clients or more were left out of a round as faulty; None if not."""
    bad = [row for row in rows if row.get("num_faulty", 0) and 2 * row["num_faulty"] >= row["num_clients"]]
    if not bad:
        return None
    reasons = collections.Counter(reason for row in bad for reason in row.get("faulty_clients", {}).values())
    most = f", most often because {reasons.most_common(1)[0][0]}" if reasons else ""
    return (
        f"Half of the clients or more were left out as faulty in {len(bad)} of {len(rows)} rounds{most}: the result is "
        "that of the other clients. Look at the options of training, and at the clients' examples."
    )


def loss_warning(clients: np.ndarray, nll: np.ndarray) -> Iterator[tuple[int, str]]:
    """Yield clients with an outlying loss [K] in nats per example (NaN does not count), and a warning each."""
    if np.isfinite(nll).any():
        median = np.nanmedian(nll)
        for k in np.flatnonzero(nll > MANY_TIMES * max(abs(median), 0.1)):
            yield (
                int(clients[k]),
                f"The training loss of client {clients[k]} is {nll[k]:.3g} nats per example, where the median client's "
                f"is {median:.3g}: check the units of its features and the order of its labels.",
            )


def smaller_rate(settings: Mapping[str, str]) -> str:
    """Return a tenth of the learning rate of a process (`BayesianProcess.description`), to try; "" if none is known."""
    for name in ("learning_rate", "step_size"):
        rate = max((float(x) for x in _NUMBER.findall(str(settings.get(name, "")))), default=0.0)
        if rate > 0:
            return f"try a tenth of {name} {rate:g}, {rate / 10:g}"
    return ""


def divergence_clause(steps: Mapping[int, int]) -> str:
    """Return where training diverged first, by the local step of each client; "" if it is not known."""
    known = [(step, client) for client, step in steps.items() if step > 0]
    if not known:
        return ""
    step, client = min(known)
    first = ", the first one: check the size of its features too" if step == 1 else ""
    return f"; training diverged first at client {client}, in local step {step}{first}"


def chance_warning(accuracy: float, largest_share: float, learning_rate: float | None) -> str | None:
    """Return a warning if a model predicts no better than its most frequent class, else None.

    A training that diverges with finite weights ends there: its last layer predicts the classes' fractions.
    `largest_share` is that of the most frequent class in the test examples; an unknown learning rate is None.
    """
    if accuracy > largest_share * (1 + ABOVE_CHANCE):
        return None
    lower = "a lower learning rate" if learning_rate is None else f"a learning rate of {learning_rate / 10:.1g}"
    return (
        f"The model's accuracy is {accuracy:.3f}, and always predicting the most frequent class has "
        f"{largest_share:.3f}: training failed or diverged; try {lower}, or more rounds."
    )


def constant_warning(rmse: float, rmse_of_mean: float) -> str | None:
    """Return a warning if a model's RMSE on test examples is no better than that of the mean of the training labels."""
    if rmse < rmse_of_mean * (1 - ABOVE_CHANCE):
        return None
    return (
        f"The model's RMSE is {rmse:.4g}, and always predicting the mean of the training labels has "
        f"{rmse_of_mean:.4g}: training failed or diverged; try more rounds, or another learning rate."
    )


def baseline_warning(nll: float, name: str, baseline: float) -> str:
    """Return the warning that a baseline has a lower NLL than the model on test data."""
    return (
        f"The model is worse than a baseline on test data: its NLL is {nll:.3f}, and that of the {name} is "
        f"{baseline:.3f}."
    )


def warnings_after(rows: Sequence[Mapping[str, Any]], needs: Needs) -> list[str | None]:
    """Return the warnings of all rounds of a run, by the `Needs` of its server step."""
    last = rows[-1]
    of_clients = left_out_warning(rows) if needs.is_chain else faulty_warning(rows)
    return [
        *(
            None if needs.closed_form else spread_warning(rows),
            saturated_noise_warning(last),
            absurd_loss_warning(last),
        ),
        *(saturation_warning(rows), of_clients),
    ]


def spread_warning(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if the standard deviations after the last round are all the same number, else None.

    The growth of `stddev_log_ratio` over the second half of the rounds says how many more it takes.
    """
    ratio = rows[-1].get("stddev_log_ratio")
    if ratio is None or ratio >= SAME_LOG_RATIO:
        return None
    half = [row["stddev_log_ratio"] for row in rows[-1 - len(rows) // 2 :] if row.get("stddev_log_ratio") is not None]
    growth = (half[-1] - half[0]) / max(1, len(half) - 1)
    more = math.ceil((SAME_LOG_RATIO - ratio) / growth) if growth > 0 else 0
    advice = f"about {more:,} more rounds would separate them" if 0 < more <= 10_000 else "more rounds may help"
    rate = rows[-1].get("dropout_rate_median")
    if rate is not None:
        advice = (
            f"dropout rates have a median of {rate:.2g}; a larger logit_rate lets clients' data change learned ones"
        )
    return (
        f"The standard deviations of all weights are the same number (log of their 95 % over their 5 % quantile: "
        f"{ratio:.3f}), set by the initial value, the optimizer or a floor. The data did not determine them, and "
        f"epistemic uncertainty is not informative; {advice}."
    )


def saturated_noise_warning(row: Mapping[str, Any]) -> str | None:
    """Return a warning if most variances of the clients are at the top of their range in the last round, else None."""
    share = row.get("saturated_share")
    if share is None or not share > MOST_SATURATED:
        return None
    return (
        f"{share:.0%} of the clients' variances are within 1 % of the top of their range, so that the model is mostly "
        "noise: give a lower initial_rate, logit_rate or kl_weight, and leave out --uncapped (capped=False)."
    )


def absurd_loss_warning(row: Mapping[str, Any]) -> str | None:
    """Return a warning if the last round's training loss is finite and beyond all that training gives, else None."""
    nll = row.get("nll")
    if nll is None or not nll > ABSURD_LOSS:
        return None
    return (
        f"The training loss of the last round is {nll:.3g} nats per example: training has diverged, or features are in "
        "huge units. Take a smaller learning rate, and standardise the features."
    )


def saturation_warning(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if numbers of secure sums were beyond their range in some round, else None."""
    clipped = [row["clipped_numbers"] for row in rows if row.get("clipped_numbers")]
    if not clipped:
        return None
    return (
        f"Secure sums clipped numbers beyond their range in {len(clipped):,} of {len(rows):,} rounds, up to "
        f"{max(clipped):,.0f} numbers a round: the result differs from that in the clear. Take a larger initial "
        "standard deviation or a smaller learning rate."
    )
