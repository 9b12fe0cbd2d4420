"""Chains over their rounds: where they wander, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.plots import style
from tfp_bfl.posterior import effective_sample_size, potential_scale_reduction


def chain_traces(values: Mapping[str, Any], rounds: Any | None = None) -> Figure:
    """Draw scalars of M chains against the round, a line for each chain, and how often each chain has which value.

    Chains that have forgotten where they began wander over the same values, and their histograms lie on each other. The
    title of a panel has R-hat (`posterior.potential_scale_reduction`) and the effective sample size.

    Args:
      values: name -> a value of each kept round [M, R], such as `Chains.metrics`, or one weight of the samples.
      rounds: their numbers [R]; None for 1 to R.
    """
    chains = {name: np.asarray(x, np.float64) for name, x in values.items()}
    _check(chains, rounds)
    figure = style.new_figure(height=0.4 + 2.1 * len(chains), width=8.0)
    panels = figure.subplots(len(chains), 2, squeeze=False, sharey="row", width_ratios=(3, 1))
    for (name, of_chains), (trace, marginal) in zip(chains.items(), panels):
        _draw(trace, marginal, name, of_chains, rounds)
    panels[-1, 0].set_xlabel("round", fontsize=style.SIZE, color=style.INK)
    panels[-1, 1].set_xlabel("fraction", fontsize=style.SIZE, color=style.INK)
    style.figure_legend(figure, panels[0, 0])
    return figure


def _draw(trace: Axes, marginal: Axes, name: str, chains: np.ndarray, rounds: Any | None) -> None:
    bins = np.histogram_bin_edges(chains, 30).tolist()
    for number, of_chain in enumerate(chains):
        look = {**style.line(number), "linestyle": "-"}
        at = np.arange(1, len(of_chain) + 1) if rounds is None else rounds
        trace.plot(at, of_chain, **look, linewidth=0.8, label=f"chain {number}")
        weights = np.full(len(of_chain), 1 / len(of_chain))
        marginal.hist(of_chain, bins, weights=weights, orientation="horizontal", histtype="step", color=look["color"])
    agree, draws = potential_scale_reduction(chains), effective_sample_size(chains)
    style.tidy(trace, f"{style.plain(name, 30)}: R-hat {agree:.3f}, {draws:.0f} effective samples")
    style.tidy(marginal)


def _check(chains: Mapping[str, np.ndarray], rounds: Any | None) -> None:
    if not chains:
        raise InvalidArgument("There is nothing to draw: give values of the chains by name, [M, R] each.")
    for name, x in chains.items():
        if x.ndim != 2 or x.shape[1] < 4 or not np.all(np.isfinite(x)):
            raise InvalidArgument(
                f"{name} must be finite numbers of shape [M, R], R at least 4, but has the shape {x.shape}"
                f"{'' if np.all(np.isfinite(x)) else ' and values that are not finite'}."
            )
        if rounds is not None and len(rounds) != x.shape[1]:
            raise InvalidArgument(f"{name} is of {x.shape[1]} rounds, but {len(rounds)} numbers of rounds are given.")
