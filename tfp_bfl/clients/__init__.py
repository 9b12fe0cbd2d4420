"""Client work: what a client does with the server's message and its own data.

Pure TensorFlow, `(message, examples, seed) -> ClientResult`, a file a mechanism; and the Markov chains that sample from
a posterior by gradients of minibatches.
"""

from tfp_bfl.clients.changed import augmented, coarse_variances, compressed
from tfp_bfl.clients.variational import variational

__all__ = [
    "augmented",
    "coarse_variances",
    "compressed",
    "variational",
]
