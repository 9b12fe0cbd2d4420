"""Federated deep ensembles of any algorithm (Lakshminarayanan et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable

from tfp_bfl import federated


def ensemble(
    make_process: Callable[[int], federated.BayesianProcess], members: int = 5, seed: int = 0
) -> federated.Ensemble:
    """Build a deep ensemble: M federations of one algorithm with averaged predictions.

    p(y | x) = (1 / M) sum_m E_{w ~ q_m} p(y | x, w)

        make_process = lambda seed: bfl.algorithms.fed_opt(lambda: bfl.models.lenet("deterministic", seed=seed))
        result = bfl.simulate(bfl.algorithms.ensemble(make_process, members=5), clients, rounds=20)

    `simulate` runs the members one after another: each has other initial weights, cohorts and noise, and checkpoints in
    a folder of its own (`member_0`, ...). The result's `model` is that of all members, and `ensemble` holds each
    member's result. At equal rounds an ensemble costs M times the computation, messages and memory of one model.

    Args:
      make_process: builds the process of a member from its seed, which the model must be initialised with.
      members: M, at least 2.
      seed: from which the members' seeds are derived (`federated.member_seed`); member 0 has this one.

    Returns:
      What `simulate` accepts in the place of a process.

    Raises:
      InvalidArgument: fewer than two members; members with equal initial weights; an algorithm with personal models;
        differential privacy.

    Source: Lakshminarayanan et al. 2017 (arXiv:1612.01474), algorithm 1, without adversarial training.

    Example:
      >>> def make_process(seed):
      ...     return bfl.algorithms.fed_opt(lambda: bfl.models.lenet("deterministic", (8, 8, 1), seed=seed))
      ...
      >>> process = bfl.algorithms.ensemble(make_process, members=3)
    """
    return federated.make_ensemble(make_process, members, seed)
