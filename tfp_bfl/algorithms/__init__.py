"""Named recipes: client work + rule + server step, a folder for each family; `compose` builds custom algorithms.

A folder holds what only its methods use: `work` on clients, the server's `step`, `recipe`, and posteriors.
"""

from tfp_bfl.algorithms import chains as chains
from tfp_bfl.algorithms import held as held
from tfp_bfl.algorithms import personal as personal
from tfp_bfl.algorithms.averaging.recipe import fed_ag, fed_be, fed_kp, fed_kppa, fed_opt, fed_pa, fed_prox, fed_sgld
from tfp_bfl.algorithms.chains.recipe import dg_sgld, fsgld, qlsd
from tfp_bfl.algorithms.compose import compose
from tfp_bfl.algorithms.default import default
from tfp_bfl.algorithms.drift import fed_dyn, fed_nova, scaffold
from tfp_bfl.algorithms.factors.recipe import bayesian_admm, fed_lap, partitioned_vi
from tfp_bfl.algorithms.heads.recipe import head
from tfp_bfl.algorithms.laplace.recipe import laplace, last_layer
from tfp_bfl.algorithms.personal.recipe import meta_learning, meta_vd, p_fed_bayes
from tfp_bfl.algorithms.swag.recipe import fl_swag
from tfp_bfl.algorithms.variational import variational
from tfp_bfl.federated.ensemble import ensemble

__all__ = [
    "bayesian_admm",
    "compose",
    "default",
    "dg_sgld",
    "ensemble",
    "fed_ag",
    "fed_be",
    "fed_dyn",
    "fed_kp",
    "fed_kppa",
    "fed_lap",
    "fed_nova",
    "fed_opt",
    "fed_pa",
    "fed_prox",
    "fed_sgld",
    "fl_swag",
    "fsgld",
    "head",
    "laplace",
    "last_layer",
    "meta_learning",
    "meta_vd",
    "p_fed_bayes",
    "partitioned_vi",
    "qlsd",
    "scaffold",
    "variational",
]
