"""Generalised linear models whose federated posterior is that of all rows in one place.

    posterior = bfl.glm.fit(clients, family="bernoulli", prior_stddev=2.0)
    print(posterior.table())

Clients send sums: log likelihood, gradient and information at coefficients that the server proposes. Nothing here needs
TensorFlow.
"""

from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.fit import fit
from tfp_bfl.glm.hierarchical import Hierarchical, fit_hierarchical
from tfp_bfl.glm.one_message import OneMessage, one_message
from tfp_bfl.glm.posterior import Coefficients, Posterior
from tfp_bfl.glm.revise import Revised, revise
from tfp_bfl.glm.sums import Sums

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
