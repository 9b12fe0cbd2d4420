"""The one federated round, the engines that run it, and the driver of simulations."""

from tfp_bfl.contracts import ServerState
from tfp_bfl.federated.averaging import check_average_rounds
from tfp_bfl.federated.checkpoints import Checkpoints
from tfp_bfl.federated.checks import check_clients
from tfp_bfl.federated.draws import Thinning, check_thinning
from tfp_bfl.federated.engines import ENGINES, check_engine, default_engine, share_cores
from tfp_bfl.federated.ensemble import Ensemble, Members, member_seed
from tfp_bfl.federated.notices import chance_warning, collapse_warning, constant_warning
from tfp_bfl.federated.options import Backend, Checkpointing, Cohorts, Monitor, Prediction
from tfp_bfl.federated.pretraining import pretrain
from tfp_bfl.federated.process import BayesianProcess, build_process
from tfp_bfl.federated.round import Round
from tfp_bfl.federated.simulation import SimulationResult, secret_seed, simulate
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS, server_optimizer

__all__ = [
    "ENGINES",
    "SERVER_OPTIMIZERS",
    "Backend",
    "BayesianProcess",
    "Checkpointing",
    "Checkpoints",
    "Cohorts",
    "Ensemble",
    "Members",
    "Monitor",
    "Prediction",
    "Round",
    "ServerState",
    "SimulationResult",
    "Thinning",
    "build_process",
    "chance_warning",
    "check_average_rounds",
    "check_clients",
    "check_engine",
    "check_thinning",
    "collapse_warning",
    "constant_warning",
    "default_engine",
    "member_seed",
    "pretrain",
    "secret_seed",
    "server_optimizer",
    "share_cores",
    "simulate",
]
