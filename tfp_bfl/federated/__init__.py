"""The one federated round, the engines that run it, and the driver of simulations.

What needs TensorFlow Federated lies in `tfp_bfl.federated.tff` and is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfp_bfl.contracts import ServerState
from tfp_bfl.federated.arrays import from_arrays, to_arrays
from tfp_bfl.federated.averaging import Averaged, check_average_rounds
from tfp_bfl.federated.chains import Chains, simulate_chains
from tfp_bfl.federated.checkpoints import Checkpoints
from tfp_bfl.federated.draws import Thinning, check_thinning
from tfp_bfl.federated.engines import ENGINES, check_engine, default_engine
from tfp_bfl.federated.ensemble import Ensemble, Members, make_ensemble, member_seed
from tfp_bfl.federated.masks import KEY_BYTES
from tfp_bfl.federated.newcomers import fit_newcomers
from tfp_bfl.federated.notices import chance_warning, collapse_warning
from tfp_bfl.federated.parties import Party, PartyEngine, Transport, simulate_parties
from tfp_bfl.federated.personal import ClientScores, evaluate_clients, summarise_clients
from tfp_bfl.federated.pretraining import Pretrained, pretrain
from tfp_bfl.federated.process import BayesianProcess, build_process
from tfp_bfl.federated.round import Round
from tfp_bfl.federated.sealed import SealedEngine, SealedParty
from tfp_bfl.federated.simulation import SimulationResult, check_clients, simulate
from tfp_bfl.federated.threads import share_cores
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS, server_optimizer

if TYPE_CHECKING:
    from tfp_bfl.federated.cluster import RayRuntime, ray_runtime
    from tfp_bfl.federated.tff.context import Runtime, local_workers, remote_workers
    from tfp_bfl.federated.tff.installation import require_tff
    from tfp_bfl.federated.tff.workers import Tls

_LATER = {
    "RayRuntime": "cluster",
    "Runtime": "tff.context",
    "local_workers": "tff.context",
    "remote_workers": "tff.context",
    "Tls": "tff.workers",
    "ray_runtime": "cluster",
    "require_tff": "tff.installation",
}

__all__ = [
    "ENGINES",
    "KEY_BYTES",
    "SERVER_OPTIMIZERS",
    "Averaged",
    "BayesianProcess",
    "Chains",
    "Checkpoints",
    "ClientScores",
    "Ensemble",
    "Members",
    "Party",
    "PartyEngine",
    "Pretrained",
    "RayRuntime",
    "Round",
    "Runtime",
    "SealedEngine",
    "SealedParty",
    "ServerState",
    "SimulationResult",
    "Thinning",
    "Tls",
    "Transport",
    "build_process",
    "chance_warning",
    "check_average_rounds",
    "check_clients",
    "check_engine",
    "check_thinning",
    "collapse_warning",
    "default_engine",
    "evaluate_clients",
    "fit_newcomers",
    "from_arrays",
    "local_workers",
    "make_ensemble",
    "member_seed",
    "pretrain",
    "ray_runtime",
    "remote_workers",
    "require_tff",
    "server_optimizer",
    "share_cores",
    "simulate",
    "simulate_chains",
    "simulate_parties",
    "summarise_clients",
    "to_arrays",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"tfp_bfl.federated.{_LATER[name]}"), name)
    raise AttributeError(f"module 'tfp_bfl.federated' has no attribute {name!r}")
