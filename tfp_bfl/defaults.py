"""Defaults and refusals that Python and the command line share, without TensorFlow."""

from tfp_bfl.errors import InvalidArgument

# Passes of a client over its examples in a round of an algorithm of many rounds.
LOCAL_EPOCHS = 5
# Those of the algorithm default: with more, clients whose data differ drift apart.
LOCAL_EPOCHS_OF_DEFAULT = 3

_OF_CHAINS = {
    "server_optimizer": "a step of the server is a step of the chain, and step_size is its size",
    "schedule": "only steps of a constant step_size have the posterior as their distribution",
}
_OF_ONE_ROUND = {
    "server_optimizer": "its one round gives the posterior itself, and no change to step along",
    "schedule": "it has one round",
}
_OF_SUMS = {
    "server_optimizer": "sums of the clients give the posterior itself, and no change to step along",
    "schedule": "no learning rate decides it",
}
_OF_FACTORS = {
    "server_optimizer": "the posterior is the prior times the clients' factors, and a step of the server would part it "
    "from them; damping makes the steps of both smaller"
}
_OF_DEFAULT = {
    "server_optimizer": "its server has one, with server_learning_rate in Python",
    "schedule": "its rates fall to zero over the rounds of the run",
}
# Options that most algorithms have, and why some can't.
_REFUSED = {
    "default": _OF_DEFAULT,
    "head": _OF_SUMS,
    **dict.fromkeys(("qlsd", "dg_sgld", "fsgld"), _OF_CHAINS),
    **dict.fromkeys(("fl_swag", "laplace", "last_layer"), _OF_ONE_ROUND),
    **dict.fromkeys(("partitioned_vi", "bayesian_admm", "fed_lap"), _OF_FACTORS),
}


def check_refused(algorithm: str, option: str) -> None:
    """Raise InvalidArgument with the reason, where an algorithm can't have an option for one."""
    if reason := _REFUSED.get(algorithm, {}).get(option):
        raise InvalidArgument(f"{algorithm} takes no {option}, as {reason}: leave it out.")


# Posterior temperature of classes in `algorithms.default`, before it follows from the loss.
TEMPERATURE_OF_DEFAULT = 0.06
