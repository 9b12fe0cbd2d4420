"""Generalised linear models whose federated posterior is that of all rows in one place.

    posterior = bfl.glm.fit(clients, family="bernoulli", prior_stddev=2.0)
    print(posterior.table())

Clients send sums: log likelihood, gradient and information at coefficients that the server proposes. Nothing here needs
TensorFlow but `baselines`. Names are imported when they are first used: the command line starts without SciPy.
"""

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.glm.combination import OneMessage, one_message
    from tfp_bfl.glm.families import FAMILIES
    from tfp_bfl.glm.fitting import fit
    from tfp_bfl.glm.hierarchical import Hierarchical, fit_hierarchical
    from tfp_bfl.glm.posterior import Coefficients, Posterior
    from tfp_bfl.glm.revision import Revised, revise
    from tfp_bfl.glm.sums import Sums

export_later(
    __name__,
    {
        "FAMILIES": "tfp_bfl.glm.families",
        "fit": "tfp_bfl.glm.fitting",
        **dict.fromkeys(("Hierarchical", "fit_hierarchical"), "tfp_bfl.glm.hierarchical"),
        **dict.fromkeys(("OneMessage", "one_message"), "tfp_bfl.glm.combination"),
        **dict.fromkeys(("Coefficients", "Posterior"), "tfp_bfl.glm.posterior"),
        **dict.fromkeys(("Revised", "revise"), "tfp_bfl.glm.revision"),
        "Sums": "tfp_bfl.glm.sums",
    },
)

__all__ = [
    "FAMILIES",
    "Coefficients",
    "Hierarchical",
    "OneMessage",
    "Posterior",
    "Revised",
    "Sums",
    "fit",
    "fit_hierarchical",
    "one_message",
    "revise",
]
