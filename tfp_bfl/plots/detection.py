"""The distribution of an uncertainty on test data and on out-of-distribution data."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.evaluation.out_of_distribution import check_scores, out_of_distribution
from tfp_bfl.plots import style


def uncertainty_density(
    scores_in: object,
    scores_out: object,
    *,
    quantity: str = "entropy",
    name_in: str = "in distribution",
    name_out: str = "out of distribution",
    upper: float | None = None,
    num_bins: int = 30,
) -> Figure:
    """Draw the distributions of an uncertainty in and out of distribution, as two histograms in the same bins.

    The less they overlap, the better the uncertainty detects out-of-distribution data; the title gives AUROC and AUPR.
    A histogram, since uncertainties pile up at their bounds, where a kernel density would leak over them.

    Args:
      scores_in, scores_out: [N] and [M], not negative, of examples like the training data and from elsewhere.
      quantity, name_in, name_out: names of the scores and of the examples.
      upper: where the axis ends, such as 1 for a normalised entropy; the largest score if None.
      num_bins: of equal width from 0 to `upper`.
    """
    num_bins = check_count(num_bins, "num_bins")
    areas = out_of_distribution(scores_in, scores_out)
    scores = [check_scores(scores_in, "scores_in"), check_scores(scores_out, "scores_out")]
    low, high = min(part.min() for part in scores), max(part.max() for part in scores)
    if low < 0 or (upper is not None and not high <= upper):
        raise InvalidArgument(
            f"The scores must lie in [0, {'infinity' if upper is None else format(upper, 'g')}], "
            f"but they span [{low:.4g}, {high:.4g}]."
        )
    # Of scores that are all zero any width will do.
    edges = np.linspace(0, upper if upper is not None else high or 1.0, num_bins + 1)

    figure, axes = style.one_panel(3.4)
    looks = (("-", style.BLUE, 0.35, name_in), ("--", style.ORANGE, 0.25, name_out))
    for values, (dashes, color, alpha, name) in zip(scores, looks):
        share = np.histogram(values, edges)[0] / values.size
        axes.stairs(share, edges, fill=True, color=color, alpha=alpha, linewidth=0)
        label = f"{style.plain(name, 32)} ({values.size})"
        axes.stairs(share, edges, color=color, linestyle=dashes, linewidth=1.8, label=label)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    title = style.plain(quantity[:1].upper() + quantity[1:], 40)
    style.tidy(
        axes,
        f"{title}: AUROC {areas.auroc:.3f}, AUPR {areas.aupr:.3f}",
        x=style.plain(quantity, 40),
        y="fraction of examples",
    )
    style.legend(axes, loc="best")
    return figure
