"""Generalised linear models whose federated posterior is that of all rows in one place.

    posterior = bfl.glm.fit(clients, family="bernoulli", prior_stddev=2.0)
    print(posterior.table())

Clients send sums: log likelihood, gradient and information at coefficients that the server proposes. Nothing here needs
TensorFlow but `baselines`. Names are imported when they are first used: the command line starts without SciPy.

Arrays are of float64, with n rows, p coefficients (the intercept first) and d columns with random effects. Functions
raise `InvalidArgument` for bad input, in a sentence that names the column, the row or the option.
"""

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.glm.characteristics import table_one
    from tfp_bfl.glm.families import FAMILIES
    from tfp_bfl.glm.fitting import fit, fit_hierarchical, one_message
    from tfp_bfl.glm.hierarchical import Hierarchical
    from tfp_bfl.glm.posterior import Posterior
    from tfp_bfl.glm.revision import revise
    from tfp_bfl.glm.sums import Sums
    from tfp_bfl.glm.survival import kaplan_meier, log_rank

export_later(__name__)

__all__ = [
    "FAMILIES",
    "Hierarchical",
    "Posterior",
    "Sums",
    "fit",
    "fit_hierarchical",
    "kaplan_meier",
    "log_rank",
    "one_message",
    "revise",
    "table_one",
]
