"""The one federated round on TensorFlow Federated, its workers, and the driver of simulations.

The only package that imports TFF.
"""

from tfp_bfl.contracts import ServerState
from tfp_bfl.federated.checkpoints import Checkpoints
from tfp_bfl.federated.pretraining import Pretrained, pretrain
from tfp_bfl.federated.process import BayesianProcess, build_process
from tfp_bfl.federated.simulation import SimulationResult, check_clients, collapse_warning, simulate
from tfp_bfl.federated.tff.context import local_workers, remote_workers
from tfp_bfl.federated.tff.installation import require_tff
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS, server_optimizer

__all__ = [
    "SERVER_OPTIMIZERS",
    "BayesianProcess",
    "Checkpoints",
    "Pretrained",
    "ServerState",
    "SimulationResult",
    "build_process",
    "check_clients",
    "collapse_warning",
    "local_workers",
    "pretrain",
    "remote_workers",
    "require_tff",
    "server_optimizer",
    "simulate",
]
