"""The paper's findings: differences paired by seed, with 95 % intervals and verdicts.

Each finding is tested by partition or rule. It is supported if the interval lies on the claimed side of zero, and
inconclusive if it contains zero. If it lies on the other side, the finding is inconclusive too: no size of this study
has the published network, data and rounds (400 and 200), so that the published condition was not measured.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.aggregation.config import COMMON, WEIGHTED, WIDE_STDDEV
from experiments.aggregation.tables import OF_STARTS, RETENTION, Run
from experiments.tables import interval, paired, write
from tfp_bfl.evaluation import Difference

PRODUCTS = ("weighted_sum", "weighted_conflation", "conflation")
AVERAGES = ("naive_weighted_average", "linear_pool")
DWC = "distributed_weight_consolidation"
_WORDS = {DWC: "DWC", "weighted_sum": "WS"}
# Rounds of `equal_steps` at E = 1 and E = 5.
MANY = {1: 300, 5: 60}
# What counts as level: accuracies that differ by less.
NEAR = 0.02
_WIDE = {"initial_stddev": WIDE_STDDEV}
SUPPORTED, INCONCLUSIVE, FEW = "supported", "inconclusive", "one seed or none"
OTHER_SIDE = "inconclusive: other side, not measured at the published size"

Scores = dict[int, float]


class Compared(NamedTuple):
    """A finding in one place: that the first's scores are above the second's, or that both are level.

    Fields:
      where: the partition, rule or setting.
      first, second: seed -> score.
      level: whether the claim is that they are level; else that the first is above.
    """

    where: str
    first: Scores
    second: Scores
    level: bool = False

    def answer(self) -> tuple[str, Difference | None]:
        difference = paired(self.first, self.second)
        if difference is None:
            return FEW, None
        low, high = difference.low, difference.high
        if self.level:
            inside, outside = low > -NEAR and high < NEAR, high < -NEAR or low > NEAR
        else:
            inside, outside = low > 0, high < 0
        # Whole numbers, such as rounds, that are the same in each of so few seeds have no interval.
        decided = difference.stddev > 0 or self.level
        return (SUPPORTED if decided and inside else OTHER_SIDE if decided and outside else INCONCLUSIVE), difference


Question = Callable[[list[Run]], list[Compared]]


def select(runs: Iterable[Run], **wanted: object) -> list[Run]:
    return [run for run in runs if all(run[name] == value for name, value in wanted.items())]


def federated(runs: list[Run], **wanted: object) -> list[Run]:
    """Return the runs of the main comparison: as published, the prior fixed, nothing pre-trained, the fewest rounds of
    several.
    """
    plain = {"kind": "flipout", "weighting": "train_size", "update_prior": False, "pretrain_share": None}
    plain |= {name: COMMON[name] for name in ("initial_stddev", "inference", "optimizer")}
    found = [run for run in select(runs, **{**plain, **wanted}) if run["clients"] > 1 and run["rounds"] > 1]
    return found if "rounds" in wanted else select(found, rounds=min((run["rounds"] for run in found), default=0))


def of_seeds(runs: Sequence[Run], score: str | Callable[[Run], float] = "accuracy") -> Scores:
    """Return seed -> score, the mean over the runs of a seed; seeds at which fewer runs are there than at others are
    left.
    """
    get = (lambda run: run[score]) if isinstance(score, str) else score
    seeds: dict[int, list[float]] = {}
    for run in runs:
        seeds.setdefault(run["seed"], []).append(get(run))
    most = max(map(len, seeds.values()), default=0)
    return {seed: float(np.mean(values)) for seed, values in seeds.items() if len(values) == most}


def of_group(runs: list[Run], rules: Sequence[str], score: str | Callable[[Run], float] = "accuracy") -> Scores:
    """Return `of_seeds` of a group of rules, or of those that are there."""
    return of_seeds([run for run in runs if run["rule"] in rules], score)


def missing(runs: list[Run], rules: Sequence[str]) -> str:
    """Return words on the rules of groups that are not there."""
    lacking = [rule for rule in rules if rule not in {run["rule"] for run in runs}]
    return f", without {', '.join(lacking)}" if lacking else ""


def partitions(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(run["partition"] for run in runs))


def rounds_to(run: Run, threshold: float) -> float:
    """Return the first round with a test accuracy of the threshold or more; the number of rounds plus one if there is
    none.
    """
    reached = (row["round"] for row in run["per_round"] if row.get("accuracy", 0) >= threshold)
    return next(reached, run["rounds"] + 1)


def groups_apart(
    runs: list[Run],
    high: Sequence[str] = PRODUCTS,
    low: Sequence[str] = AVERAGES,
    score: str = "accuracy",
    level: bool = False,
    **options: object,
) -> list[Compared]:
    """Compare one group of rules with another, in each partition."""
    found = [run for run in federated(runs, **{"local_epochs": 1, **options}) if score in run]
    by_partition = {name: select(found, partition=name) for name in partitions(found)}
    return [
        Compared(name + missing(same, (*high, *low)), of_group(same, high, score), of_group(same, low, score), level)
        for name, same in by_partition.items()
    ]


def products_converge_faster(runs: list[Run], **options: object) -> list[Compared]:
    """Compare the rounds of the averages with those of the products, to 0.9 of the lowest mean accuracy at the end."""
    found, answers = federated(runs, local_epochs=1, **options), []
    for partition in partitions(found):
        same = [run for run in select(found, partition=partition) if run["rule"] in PRODUCTS + AVERAGES]
        ends = [np.mean([run["accuracy"] for run in select(same, rule=rule)]) for rule in {r["rule"] for r in same}]
        if ends:
            rounds = functools.partial(rounds_to, threshold=0.9 * min(ends))
            where = partition + missing(same, PRODUCTS + AVERAGES)
            answers.append(Compared(where, of_group(same, AVERAGES, rounds), of_group(same, PRODUCTS, rounds)))
    return answers


def equal_weighted_conflation_is_conflation(runs: list[Run]) -> list[Compared]:
    equal = federated(runs, weighting="equal", local_epochs=1, **_WIDE)
    rules = ("weighted_conflation", "conflation")
    return [
        Compared(name, *(of_group(select(equal, partition=name), (rule,)) for rule in rules), level=True)
        for name in partitions(equal)
    ]


def weighting_is_above_that_by_size(runs: list[Run], weighting: str, local_epochs: int) -> list[Compared]:
    """Compare a weighting with that by training-set size, under each rule, in each partition."""
    by_size = federated(runs, local_epochs=local_epochs, **_WIDE)
    other = federated(runs, local_epochs=local_epochs, weighting=weighting, **_WIDE)
    answers = []
    for partition in partitions(other):
        for rule in dict.fromkeys(run["rule"] for run in other if run["rule"] in WEIGHTED):
            both = [of_seeds(select(found, partition=partition, rule=rule)) for found in (other, by_size)]
            answers.append(Compared(f"{partition}, {rule}", *both))
    return answers


def _once(runs: list[Run], **wanted: object) -> list[Run]:
    return [run for run in select(runs, rounds=1, **wanted) if run["clients"] > 1]


def consolidation_fails_without_pretraining(runs: list[Run]) -> list[Compared]:
    once = _once(runs, pretrain_share=None)
    return [
        Compared(name, of_group(here, ("weighted_sum",)), of_group(select(here, update_prior=False), (DWC,)))
        for name in partitions(once)
        if (here := select(once, partition=name))
    ]


def consolidation_is_near_the_sum(runs: list[Run], update_prior: bool) -> list[Compared]:
    once = [run for run in _once(runs, update_prior=update_prior) if run["pretrain_share"]]
    return [
        Compared(name, of_group(here, (DWC,)), of_group(here, ("weighted_sum",)), level=True)
        for name in partitions(once)
        if (here := select(once, partition=name))
    ]


def clients_add_to_the_start(runs: list[Run]) -> list[Compared]:
    """Compare one round from a pre-trained start with that start."""
    once = [run for run in runs if run["rounds"] == 1 and OF_STARTS[1] in run]
    answers = []
    for partition in partitions(once):
        for rule, updated in ((r, u) for u in (False, True) for r in _WORDS):
            same = select(once, partition=partition, rule=rule, update_prior=updated)
            where = f"{partition}, {_WORDS[rule]}{', the start their prior' if updated else ''}"
            answers += [Compared(where, of_seeds(same), of_seeds(same, OF_STARTS[1]))] if same else []
    return answers


def one_round_is_above_many(runs: list[Run]) -> list[Compared]:
    """Compare one round from a pre-trained start with all rounds of E = 1 from a random one, under WS."""
    once = [run for run in _once(runs, update_prior=False) if run["pretrain_share"]]
    answers = []
    for start in (COMMON["initial_stddev"], WIDE_STDDEV):
        plain = select(federated(runs, local_epochs=1, initial_stddev=start), rule="weighted_sum")
        for partition in partitions(plain):
            many = of_seeds(select(plain, partition=partition))
            for rule, word in _WORDS.items():
                one = of_seeds(select(once, partition=partition, rule=rule))
                answers.append(Compared(f"{partition}, {word} against WS from {start}", one, many))
    return answers


def momentum_beats_adam(runs: list[Run], kind: str) -> list[Compared]:
    """Compare clients' SGD with momentum with Adam, as published otherwise, for each partition."""
    plain = [run for run in select(runs, kind=kind, output_dropout=False, local_epochs=1) if run["clients"] > 1]
    answers = []
    for partition in partitions(select(plain, optimizer="momentum")):
        momentum, *_ = same = select(plain, optimizer="momentum", partition=partition)
        adam = select(plain, optimizer="adam", partition=partition, rounds=momentum["rounds"])
        answers.append(Compared(partition, of_seeds(same), of_seeds(adam)))
    return answers


def rules_by_momentum(runs: list[Run], **start: object) -> list[Compared]:
    """Compare clients' SGD with momentum with Adam, for each rule and partition."""
    found = {name: federated(runs, local_epochs=1, optimizer=name, **start) for name in ("momentum", "adam")}
    places = dict.fromkeys((run["partition"], run["rule"]) for run in found["momentum"])
    return [
        Compared(
            ", ".join(place), *(of_seeds(select(same, partition=place[0], rule=place[1])) for same in found.values())
        )
        for place in places
    ]


def updating_the_prior_hurts(runs: list[Run]) -> list[Compared]:
    updated = [run for run in runs if run["update_prior"] and run["rounds"] > 1]
    answers = []
    for rule in dict.fromkeys(run["rule"] for run in updated):
        own = select(updated, rule=rule)
        same = {name: own[0][name] for name in ("rule", "weighting", "partition", "local_epochs", "rounds")}
        fixed = federated(runs, **same)
        answers.append(Compared(rule, of_seeds(fixed), of_seeds(own)))
    return answers


def dropout_beats_none(runs: list[Run], output_dropout: bool, optimizer: str = COMMON["optimizer"]) -> list[Compared]:
    """Compare MC dropout, without or with dropout after the last layer, with none, for each length and partition."""
    of_optimizer = select(runs, weighting="train_size", local_epochs=1, optimizer=optimizer)
    plain = [run for run in of_optimizer if run["clients"] > 1]
    dropped = select(plain, kind="mc_dropout", output_dropout=output_dropout)
    answers = []
    for rounds, partition in sorted({(run["rounds"], run["partition"]) for run in dropped}):
        here = {"rounds": rounds, "partition": partition}
        without = of_seeds(select(plain, kind="deterministic", **here))
        answers.append(Compared(f"{partition}, {rounds} rounds", of_seeds(select(dropped, **here)), without))
    return answers


_LEARNT = {"inference": "curvature"}
_MOMENTUM = {"optimizer": "momentum"}
_LP = {"high": AVERAGES[:1], "low": AVERAGES[1:]}
_ASK = functools.partial


_HIGHER_NLL = _ASK(groups_apart, high=AVERAGES, low=PRODUCTS, score="nll")


def _many(epochs: int, **start: object) -> dict[str, object]:
    return {**(start or _WIDE), "high": PRODUCTS[:1], "local_epochs": epochs, "rounds": MANY[epochs]}


FINDINGS: dict[str, Question] = {
    "E = 1: WS, WC and conflation end above NWA and LP": groups_apart,
    "E = 1: WS, WC and conflation converge faster, in rounds": products_converge_faster,
    "E = 1: LP ends below NWA": _ASK(groups_apart, **_LP),
    "E = 1, initial sd 0.05: WS, WC and conflation end above NWA and LP": _ASK(groups_apart, **_WIDE),
    "E = 1, initial sd 0.05: NWA and LP have a higher NLL than WS, WC and conflation": _ASK(_HIGHER_NLL, **_WIDE),
    "E = 1, initial sd 0.05: WS, WC and conflation converge faster, in rounds": _ASK(products_converge_faster, **_WIDE),
    "E = 1, initial sd 0.05: LP ends below NWA": _ASK(groups_apart, **_LP, **_WIDE),
    "E = 1, initial sd 0.05: the epistemic part gains more area by retention under WS, WC and conflation": (
        _ASK(groups_apart, score=RETENTION[2], **_WIDE)
    ),
    "E = 1, learned sd: WS, WC and conflation end above NWA and LP": _ASK(groups_apart, **_LEARNT),
    "E = 1, learned sd: NWA and LP have a higher NLL than WS, WC and conflation": _ASK(_HIGHER_NLL, **_LEARNT),
    "E = 1, learned sd: LP ends below NWA": _ASK(groups_apart, **_LP, **_LEARNT),
    **{
        f"E = 1{start}, SGD with momentum: {claim}": _ASK(question, **options, **_MOMENTUM)
        for start, options in (("", {}), (", initial sd 0.05", _WIDE))
        for claim, question in (
            ("WS, WC and conflation end above NWA and LP", groups_apart),
            ("NWA and LP have a higher NLL than WS, WC and conflation", _HIGHER_NLL),
            ("LP ends below NWA", _ASK(groups_apart, **_LP)),
        )
    },
    "A rule by SGD with momentum is above the rule by Adam": rules_by_momentum,
    "Initial sd 0.05: a rule by SGD with momentum is above the rule by Adam": _ASK(rules_by_momentum, **_WIDE),
    "E = 5, few rounds: the groups are level": _ASK(groups_apart, level=True, local_epochs=5),
    "E = 5, few rounds, initial sd 0.05: the groups are level": _ASK(groups_apart, level=True, local_epochs=5, **_WIDE),
    "E = 5, 60 rounds, initial sd 0.05: WS is level with NWA and LP": _ASK(groups_apart, level=True, **_many(5)),
    "E = 1, as many steps as that: WS is level with NWA and LP": _ASK(groups_apart, level=True, **_many(1)),
    "E = 5, 60 rounds, initial sd 0.05: WS has a higher NLL than NWA and LP": _ASK(
        groups_apart, score="nll", **_many(5)
    ),
    "E = 5, 60 rounds, learned sd: WS is level with NWA and LP": (
        _ASK(groups_apart, level=True, **_many(5, inference="curvature"))
    ),
    "E = 5, 60 rounds, learned sd: WS has a higher NLL than NWA and LP": (
        _ASK(groups_apart, score="nll", **_many(5, inference="curvature"))
    ),
    "MC dropout is above the deterministic network": _ASK(dropout_beats_none, output_dropout=False),
    "MC dropout, of the logits too, is above the deterministic network": _ASK(dropout_beats_none, output_dropout=True),
    "SGD with momentum: MC dropout is above the deterministic network": (
        _ASK(dropout_beats_none, output_dropout=False, optimizer="momentum")
    ),
    "The deterministic network by SGD with momentum is above the one by Adam": (
        _ASK(momentum_beats_adam, kind="deterministic")
    ),
    "MC dropout by SGD with momentum is above MC dropout by Adam": _ASK(momentum_beats_adam, kind="mc_dropout"),
    "One round: WS is above DWC without pre-training": consolidation_fails_without_pretraining,
    "One round, pre-trained: DWC is level with WS": _ASK(consolidation_is_near_the_sum, update_prior=False),
    "One round, pre-trained, the start the clients' prior: DWC is level with WS": (
        _ASK(consolidation_is_near_the_sum, update_prior=True)
    ),
    "One round, pre-trained: the clients' round is above the start alone": clients_add_to_the_start,
    "One round from a pre-trained start is above all rounds of E = 1": one_round_is_above_many,
    **{
        f"E = {epochs}{few}, initial sd 0.05: a weighting by {words} is above one by training-set size": (
            _ASK(weighting_is_above_that_by_size, weighting=name, local_epochs=epochs)
        )
        for epochs, few, words, name in (
            (1, "", "maximum discrepancy", "max_discrepancy"),
            (1, "", "maximum discrepancy to the farthest", "max_discrepancy_farthest"),
            (1, "", "distance", "distance"),
            (1, "", "equal weights", "equal"),
            (5, ", few rounds", "maximum discrepancy", "max_discrepancy"),
            (5, ", few rounds", "distance", "distance"),
        )
    },
    "WC with equal weights is conflation": equal_weighted_conflation_is_conflation,
    "A fixed prior is above an updated one": updating_the_prior_hurts,
}


def write_findings(runs: list[Run], output: pathlib.Path) -> None:
    """Write what the records say of each finding: a row for each place in which it can be asked."""
    rows = [["finding", "where", "difference", "seeds", "verdict"]]
    for name, question in FINDINGS.items():
        asked = [compared for compared in question(runs) if compared.first and compared.second]
        answers = [(compared, *compared.answer()) for compared in asked]
        rows += [
            [name, compared.where, interval(difference) if difference else "", str(difference.number), here]
            if difference
            else [name, compared.where, "", "", here]
            for compared, here, difference in answers
        ] or [[name, "", "", "", "not measured"]]
    write(rows, output / "findings")
