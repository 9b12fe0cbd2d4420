"""Pictures of a run and its report.

Each function returns a matplotlib `Figure` that no window and no list of open figures holds on to: save it
with `figure.savefig("curve.png")`. A notebook shows it once `%matplotlib inline` was given.
Names are imported when they are first used: a report of a linear model needs no TensorFlow.
"""

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.plots.data_figures import client_labels, client_sizes, uncertain_examples
    from tfp_bfl.plots.density import kernel_density
    from tfp_bfl.plots.figures import (
        reliability_diagram,
        retention_comparison,
        retention_curves,
        risk_coverage,
        uncertainty_density,
    )
    from tfp_bfl.plots.learning import chain_traces, learning_comparison, learning_curve
    from tfp_bfl.plots.report import write_report
    from tfp_bfl.plots.results import RunResults, run_figures
    from tfp_bfl.plots.score_tables import Repeated

export_later(__name__)

__all__ = [
    "Repeated",
    "RunResults",
    "chain_traces",
    "client_labels",
    "client_sizes",
    "kernel_density",
    "learning_comparison",
    "learning_curve",
    "reliability_diagram",
    "retention_comparison",
    "retention_curves",
    "risk_coverage",
    "run_figures",
    "uncertain_examples",
    "uncertainty_density",
    "write_report",
]
