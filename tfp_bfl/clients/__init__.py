"""Client work: what a client does with the server's message and its own data.

Pure TensorFlow, `(message, examples, seed) -> ClientResult`, a file a mechanism; and the Markov chains that sample from
a posterior by gradients of minibatches.
"""

from tfp_bfl.clients.augmented import augmented
from tfp_bfl.clients.client_settings import memory_rate
from tfp_bfl.clients.compressed import compressed
from tfp_bfl.clients.gradient import ESTIMATORS, stochastic_gradient
from tfp_bfl.clients.laplace import STRUCTURES, laplace, laplace_weights, last_layer_sums, layers_of
from tfp_bfl.clients.laplace_sites import laplace_sites
from tfp_bfl.clients.local_langevin import (
    Surrogate,
    conducive_langevin,
    coupled_langevin,
    fit_surrogate,
    fit_surrogates,
)
from tfp_bfl.clients.meta_gradient import LEARNERS, meta_gradient
from tfp_bfl.clients.meta_learning import meta_learning
from tfp_bfl.clients.personal import personal
from tfp_bfl.clients.personal_posterior import PersonalPosterior, personal_posterior
from tfp_bfl.clients.posterior_averaging import posterior_averaging, posterior_delta
from tfp_bfl.clients.sites import sites
from tfp_bfl.clients.step_size import check_step_size, largest_curvature, largest_step_size
from tfp_bfl.clients.swag import smallest_client, swag, swag_weights
from tfp_bfl.clients.variational import variational
from tfp_bfl.training import *  # noqa: F403
from tfp_bfl.training import __all__ as _of_training

__all__ = [
    "ESTIMATORS",
    "LEARNERS",
    "STRUCTURES",
    "PersonalPosterior",
    "Surrogate",
    "augmented",
    "check_step_size",
    "compressed",
    "conducive_langevin",
    "coupled_langevin",
    "fit_surrogate",
    "fit_surrogates",
    "laplace",
    "last_layer_sums",
    "laplace_sites",
    "laplace_weights",
    "largest_curvature",
    "largest_step_size",
    "layers_of",
    "memory_rate",
    "meta_gradient",
    "meta_learning",
    "personal",
    "personal_posterior",
    "posterior_averaging",
    "posterior_delta",
    "sites",
    "smallest_client",
    "stochastic_gradient",
    "swag",
    "swag_weights",
    "variational",
    *_of_training,
]
