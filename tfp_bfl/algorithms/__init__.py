"""Named recipes: client work + rule + server step, a file for each family; `compose` builds custom algorithms."""

from tfp_bfl.algorithms.compose import compose
from tfp_bfl.algorithms.ensemble import ensemble
from tfp_bfl.algorithms.fed_dyn import fed_dyn
from tfp_bfl.algorithms.fed_nova import fed_nova
from tfp_bfl.algorithms.fl_swag import fl_swag
from tfp_bfl.algorithms.langevin import dg_sgld, fsgld, qlsd
from tfp_bfl.algorithms.laplace import laplace
from tfp_bfl.algorithms.last_layer import last_layer
from tfp_bfl.algorithms.meta_learning import meta_learning, meta_vd
from tfp_bfl.algorithms.personal_posterior import p_fed_bayes
from tfp_bfl.algorithms.posterior_averaging import (
    fed_ag,
    fed_be,
    fed_kp,
    fed_kppa,
    fed_opt,
    fed_pa,
    fed_prox,
    fed_sgld,
)
from tfp_bfl.algorithms.scaffold import scaffold
from tfp_bfl.algorithms.sites import bayesian_admm, fed_lap, partitioned_vi
from tfp_bfl.algorithms.variational import variational

__all__ = [
    "bayesian_admm",
    "compose",
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
