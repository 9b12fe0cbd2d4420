"""Lower bounds of epsilon from what an adversary guesses right: of many runs with one canary, of one run with many."""

import math

import numpy as np
import scipy.stats

EPSILONS = np.arange(0, 12, 0.01)


def bound_of_runs(inside, outside, delta, error):
    """The epsilon that a mechanism has at least, from scores of runs with a canary and without it.

    tpr <= exp(epsilon) fpr + delta, and the same of the complements. The first half of the runs chooses the threshold,
    the second half gives intervals of Clopper and Pearson. The scores `inside` and `outside` are [R], `delta` is
    that of the claim, and the bound is above the mechanism's epsilon with a probability of `error` at most.

    Source: Jagielski et al. 2020 (arXiv:2006.07709).
    """
    half = len(inside) // 2
    cuts = np.unique(np.concatenate([inside[:half], outside[:half]]))
    share = lambda scores, cut: (np.sum(scores >= cut) + 1) / (len(scores) + 2)
    logit = lambda p: math.log(p / (1 - p))
    cut = max(cuts, key=lambda t: logit(share(inside[:half], t)) - logit(share(outside[:half], t)))
    of_in, of_out = (_interval(x[half:] >= cut, error / 2) for x in (inside, outside))
    pairs = (of_in.low, of_out.high), (1 - of_out.high, 1 - of_in.low)
    return max(0.0, *(math.log(max(hit - delta, 1e-12) / miss) for hit, miss in pairs))


def _interval(hits, error):
    return scipy.stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(1 - error, "exact")


def bound_of_one_run(scores, included, guesses, delta, error):
    """The epsilon that a mechanism has at least, from one run in which each canary was with probability 1/2.

    The largest scores are guessed to be included, the smallest not. With (epsilon, 0) the right guesses are at most
    binomial of probability exp(epsilon) / (1 + exp(epsilon)); delta adds the correction of the source. `scores` and
    `included` are of the canaries [M], of which `guesses` are guessed.

    Source: Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846), theorem 5.2.
    """
    order, part = np.argsort(scores), guesses // 2
    right = int(np.sum(included[order[-part:]]) + np.sum(~included[order[:part]]))
    possible = [x for x in EPSILONS if _p_value(len(scores), 2 * part, right, x, delta) < error]
    return max(possible, default=0.0)


def _p_value(canaries, guesses, right, epsilon, delta):
    q = 1 / (1 + math.exp(-epsilon))
    at_least = scipy.stats.binom.sf(right - 1, guesses, q)
    sums = np.cumsum(scipy.stats.binom.pmf(right - np.arange(1, right + 1), guesses, q))
    steepest = np.max(sums / np.arange(1, right + 1), initial=0.0)
    return min(1.0, at_least + steepest * delta * 2 * canaries)
