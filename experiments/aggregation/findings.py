"""The paper's findings as questions to our numbers; the answers are reported as found."""

from __future__ import annotations

import functools
import pathlib
from typing import Callable

import numpy as np

from experiments.aggregation.config import COMMON, WIDE_STDDEV
from experiments.aggregation.tables import RETENTION, Run, write

PRODUCTS = ("weighted_sum", "weighted_conflation", "conflation")
AVERAGES = ("naive_weighted_average", "linear_pool")
DWC = "distributed_weight_consolidation"
_WORDS = {DWC: "DWC", "weighted_sum": "weighted sum"}
# Rounds of `equal_steps` at E = 5.
LONG = 60
# A finding about levels counts as met within this difference of accuracies.
NEAR = 0.02

Answer = tuple[bool, str]


def _select(runs: list[Run], **wanted: object) -> list[Run]:
    return [run for run in runs if all(run[name] == value for name, value in wanted.items())]


def _federated(runs: list[Run], **wanted: object) -> list[Run]:
    """Runs of the main comparison: as published, weighted by size, the prior fixed, nothing pre-trained, the fewest
    rounds of several."""
    plain = {"kind": "flipout", "weighting": "train_size", "update_prior": False, "pretrain_share": None}
    plain |= {name: COMMON[name] for name in ("initial_stddev", "inference")}
    found = [run for run in _select(runs, **{**plain, **wanted}) if run["clients"] > 1 and run["rounds"] > 1]
    fewest = lambda run: min(other["rounds"] for other in found if other["local_epochs"] == run["local_epochs"])
    return found if "rounds" in wanted else [run for run in found if run["rounds"] == fewest(run)]


def _accuracy(runs: list[Run]) -> float:
    return float(np.mean([run["accuracy"] for run in runs]))


def _by_rule(runs: list[Run], rules: tuple[str, ...], score: str = "accuracy") -> dict[str, float]:
    of = {rule: [run[score] for run in _select(runs, rule=rule)] for rule in rules}
    return {rule: float(np.mean(scores)) for rule, scores in of.items() if scores}


def _partitions(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(run["partition"] for run in runs))


def _rounds_to(runs: list[Run], threshold: float) -> float:
    """The mean round in which a run's test accuracy first reaches the threshold; one past the last if it never does."""
    reached = [
        next((row["round"] for row in run["per_round"] if row.get("accuracy", 0) >= threshold), run["rounds"] + 1)
        for run in runs
    ]
    return float(np.mean(reached))


def products_end_above_averages(runs: list[Run], **options: object) -> Answer | None:
    runs = _federated(runs, local_epochs=1, **options)
    answers, words = [], []
    for partition in _partitions(runs):
        same = _select(runs, partition=partition)
        high, low = _by_rule(same, PRODUCTS), _by_rule(same, AVERAGES)
        if len(high) + len(low) == len(PRODUCTS) + len(AVERAGES):
            answers.append(min(high.values()) > max(low.values()))
            words.append(f"{partition}: {min(high.values()):.3f} to {max(high.values()):.3f} against "
                         f"{min(low.values()):.3f} to {max(low.values()):.3f}")  # fmt: skip
    return (all(answers), "; ".join(words)) if answers else None


def products_converge_faster(runs: list[Run], **options: object) -> Answer | None:
    runs = _federated(runs, local_epochs=1, **options)
    answers, words = [], []
    for partition in _partitions(runs):
        same = _select(runs, partition=partition)
        if len(_by_rule(same, PRODUCTS + AVERAGES)) == len(PRODUCTS + AVERAGES):
            threshold = 0.9 * min(_by_rule(same, PRODUCTS + AVERAGES).values())
            fast, slow = ([_rounds_to(_select(same, rule=r), threshold) for r in g] for g in (PRODUCTS, AVERAGES))
            answers.append(max(fast) < min(slow))
            words.append(f"{partition}: accuracy {threshold:.2f} by round {max(fast):.1f} against {min(slow):.1f}")
    return (all(answers), "; ".join(words)) if answers else None


def linear_pool_is_last(runs: list[Run], **options: object) -> Answer | None:
    runs = _federated(runs, local_epochs=1, **options)
    answers, words = [], []
    for partition in _partitions(runs):
        scores = _by_rule(_select(runs, partition=partition), PRODUCTS + AVERAGES)
        if "linear_pool" in scores and len(scores) > 1:
            last = min(scores, key=lambda rule: scores[rule])
            answers.append(last == "linear_pool")
            words.append(f"{partition}: last {last}, {scores[last]:.3f}; linear_pool {scores['linear_pool']:.3f}")
    return (all(answers), "; ".join(words)) if answers else None


def five_epochs_draw_level(runs: list[Run], **options: object) -> Answer | None:
    answers, words = [], []
    for partition in _partitions(runs):
        ranges = []
        for epochs in (1, 5):
            scores = _by_rule(
                _federated(runs, local_epochs=epochs, partition=partition, **options), PRODUCTS + AVERAGES
            )
            if len(scores) == len(PRODUCTS + AVERAGES):
                ranges.append(max(scores.values()) - min(scores.values()))
        if len(ranges) == 2:
            answers.append(ranges[1] < NEAR)
            words.append(f"{partition}: rules apart by {ranges[0]:.3f} at E = 1, {ranges[1]:.3f} at E = 5")
    return (all(answers), "; ".join(words)) if answers else None


def equal_weighted_conflation_is_conflation(runs: list[Run]) -> Answer | None:
    differences = []
    for run in _select(runs, rule="weighted_conflation", weighting="equal"):
        same = {name: run[name] for name in ("kind", "partition", "clients", "local_epochs", "rounds", "seed")}
        differences += [
            max(abs(run[score] - other[score]) for score in ("accuracy", "nll"))
            for other in _select(runs, rule="conflation", weighting="equal", **same)
        ]
    return (max(differences) == 0, f"largest difference {max(differences):.2g}") if differences else None


def consolidation_needs_pretraining(runs: list[Run]) -> Answer | None:
    once = [run for run in _select(runs, partition="iid") if run["rounds"] == 1 and run["clients"] > 1]
    settings = {
        "without": (False, False),
        "with": (True, False),
        "with, its posterior the clients' prior": (True, True),
    }
    scores: dict[str, list[float]] = {}
    for name, (pretrained, updated) in settings.items():
        same = [run for run in once if bool(run["pretrain_share"]) == pretrained and run["update_prior"] == updated]
        both = [_select(same, rule=rule) for rule in (DWC, "weighted_sum")]
        if all(both):
            scores[name] = [_accuracy(rule) for rule in both]
    if not {"without", "with"} <= scores.keys():
        return None
    consolidated, summed = scores["without"]
    fails = consolidated < summed - 10 * NEAR
    near = any(abs(dwc - ws) < NEAR for name, (dwc, ws) in scores.items() if name != "without")
    return fails and near, "; ".join(
        f"{name}: DWC {dwc:.3f}, weighted sum {ws:.3f}" for name, (dwc, ws) in scores.items()
    )


def updating_the_prior_hurts(runs: list[Run]) -> Answer | None:
    answers, words = [], []
    for rule in dict.fromkeys(run["rule"] for run in runs):
        updated = [run for run in runs if run["update_prior"] and run["rule"] == rule and run["rounds"] > 1]
        fixed = [
            other
            for run in updated
            for other in _federated(runs, rule=rule, partition=run["partition"], seed=run["seed"])
            if other["local_epochs"] == run["local_epochs"]
        ]
        if updated and fixed:
            answers.append(_accuracy(updated) < _accuracy(fixed))
            words.append(f"{rule}: {_accuracy(fixed):.3f} fixed, {_accuracy(updated):.3f} updated")
    return (all(answers), "; ".join(words)) if answers else None


def pretraining_wins_with_two_classes(runs: list[Run]) -> Answer | None:
    """One round from a pre-trained start against all rounds of E = 1 from a random one."""
    runs = _select(runs, partition="label_skew:2")
    once = [run for run in runs if run["rounds"] == 1 and run["pretrain_share"] and not run["update_prior"]]
    high, low = _by_rule(once, (DWC, "weighted_sum")), _by_rule(_federated(runs, local_epochs=1), PRODUCTS + AVERAGES)
    if not high or not low:
        return None
    words = f"{', '.join(f'{_WORDS[rule]} {accuracy:.3f}' for rule, accuracy in high.items())} against at most "
    return min(high.values()) > max(low.values()), f"{words}{max(low.values()):.3f}"


def products_order_mistakes_better(runs: list[Run], **options: object) -> Answer | None:
    """By the area that the epistemic part gains on a retention curve."""
    runs = [run for run in _federated(runs, local_epochs=1, **options) if RETENTION[2] in run]
    answers, words = [], []
    for partition in _partitions(runs):
        same = _select(runs, partition=partition)
        high, low = (_by_rule(same, rules, RETENTION[2]) for rules in (PRODUCTS, AVERAGES))
        if len(high) + len(low) == len(PRODUCTS) + len(AVERAGES):
            answers.append(min(high.values()) > max(low.values()))
            words.append(f"{partition}: {_ends(high)} against {_ends(low)}")
    return (all(answers), "; ".join(words)) if answers else None


def averages_have_less_nll_at_five_epochs(runs: list[Run]) -> Answer | None:
    long = [run for run in _federated(runs, local_epochs=5, initial_stddev=WIDE_STDDEV, rounds=LONG) if "nll" in run]
    answers, words = [], []
    for partition in _partitions(long):
        scores = _by_rule(_select(long, partition=partition), ("weighted_sum", *AVERAGES), "nll")
        if len(scores) == 1 + len(AVERAGES):
            products = scores.pop("weighted_sum")
            answers.append(max(scores.values()) < products)
            words.append(f"{partition}: {_ends(scores)} against {products:.3f} nats")
    return (all(answers), "; ".join(words)) if answers else None


def dropout_beats_none_but_for_two_classes(runs: list[Run]) -> Answer | None:
    answers, words = [], []
    plain = [run for run in _select(runs, weighting="train_size") if run["clients"] > 1 and run["local_epochs"] == 1]
    for rounds in sorted({run["rounds"] for run in plain if run["kind"] == "mc_dropout"}):
        for partition in _partitions(plain):
            same = _select(plain, rounds=rounds, partition=partition)
            with_it, without = (_select(same, kind=kind) for kind in ("mc_dropout", "deterministic"))
            if with_it and without:
                gain = _accuracy(with_it) - _accuracy(without)
                answers.append((gain > 0) == (partition != "label_skew:2"))
                words.append(f"{partition}, {rounds} rounds: {gain:+.3f}")
    return (all(answers), "; ".join(words)) if answers else None


def _ends(scores: dict[str, float]) -> str:
    return f"{min(scores.values()):.3f} to {max(scores.values()):.3f}"


def _from_wide(question: Callable[..., Answer | None]) -> Callable[[list[Run]], Answer | None]:
    return functools.partial(question, initial_stddev=WIDE_STDDEV)


_WIDE = f"E = 1, initial sd {WIDE_STDDEV}"

FINDINGS: dict[str, Callable[[list[Run]], Answer | None]] = {
    "E = 1: WS, WC and conflation converge faster than NWA and LP": products_converge_faster,
    "E = 1: WS, WC and conflation end above NWA and LP": products_end_above_averages,
    "E = 1: LP is last": linear_pool_is_last,
    f"{_WIDE}: WS, WC and conflation converge faster than NWA and LP": _from_wide(products_converge_faster),
    f"{_WIDE}: WS, WC and conflation end above NWA and LP": _from_wide(products_end_above_averages),
    f"{_WIDE}: LP is last": _from_wide(linear_pool_is_last),
    f"E = 5, initial sd {WIDE_STDDEV}: the rules draw level": _from_wide(five_epochs_draw_level),
    "E = 5: the rules draw level": five_epochs_draw_level,
    f"{_WIDE}: the epistemic part orders mistakes better under WS, WC and conflation": _from_wide(
        products_order_mistakes_better
    ),
    f"E = 5, initial sd {WIDE_STDDEV}, {LONG} rounds: NWA and LP have less NLL": averages_have_less_nll_at_five_epochs,
    "MC dropout is above the deterministic network, and below with two classes": dropout_beats_none_but_for_two_classes,
    "Pre-training wins with two classes": pretraining_wins_with_two_classes,
    "WC with equal weights is conflation exactly": equal_weighted_conflation_is_conflation,
    "One round: DWC fails without pre-training, is near WS with it": consolidation_needs_pretraining,
    "Updating the prior hurts": updating_the_prior_hurts,
}


def write_findings(runs: list[Run], output: pathlib.Path) -> None:
    """Writes what the cells that are done say of each finding."""
    rows = [["finding", "here", "figures"]]
    for name, question in FINDINGS.items():
        answer = question(runs)
        rows.append(
            [name, *(("holds" if answer[0] else "does not hold", answer[1]) if answer else ("not measured", ""))]
        )
    write(rows, output / "findings")
