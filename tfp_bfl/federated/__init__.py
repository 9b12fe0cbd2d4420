"""The one federated round, the engines that run it, and the driver of simulations.

What needs TensorFlow Federated lies in `tfp_bfl.engines.tff` and is imported when it is first used.
"""

from typing import TYPE_CHECKING

from tfp_bfl.contracts import ServerState
from tfp_bfl.faces import export_later
from tfp_bfl.federated.averaging import Averaged, check_average_rounds
from tfp_bfl.federated.chains import Chains, simulate_chains
from tfp_bfl.federated.checkpoints import Checkpoints
from tfp_bfl.federated.checks import check_clients
from tfp_bfl.federated.draws import Thinning, check_thinning
from tfp_bfl.federated.engines import ENGINES, check_engine, default_engine
from tfp_bfl.federated.ensemble import Ensemble, Members, make_ensemble, member_seed
from tfp_bfl.federated.newcomers import fit_newcomers
from tfp_bfl.federated.notices import chance_warning, collapse_warning, constant_warning
from tfp_bfl.federated.options import Backend, Checkpointing, Cohorts, Monitor, Prediction
from tfp_bfl.federated.personal import ClientScores, evaluate_clients, summarise_clients
from tfp_bfl.federated.pretraining import Pretrained, pretrain
from tfp_bfl.federated.process import BayesianProcess, build_process
from tfp_bfl.federated.round import Round
from tfp_bfl.federated.simulation import SimulationResult, secret_seed, simulate
from tfp_bfl.federated.threads import share_cores
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS, server_optimizer

if TYPE_CHECKING:
    from tfp_bfl.engines.ray.runtime import RayRuntime, ray_runtime
    from tfp_bfl.engines.tff.context import Runtime, local_workers, remote_workers
    from tfp_bfl.engines.tff.installation import require_tff
    from tfp_bfl.engines.tff.workers import Tls
    from tfp_bfl.parties import (
        KEY_BYTES,
        Party,
        PartyEngine,
        SealedEngine,
        SealedParty,
        Transport,
        from_arrays,
        simulate_parties,
        to_arrays,
    )

_PARTIES = ("KEY_BYTES", "Party", "PartyEngine", "SealedEngine", "SealedParty", "Transport")
export_later(
    __name__,
    {
        "RayRuntime": "tfp_bfl.engines.ray.runtime",
        "Runtime": "tfp_bfl.engines.tff.context",
        "Tls": "tfp_bfl.engines.tff.workers",
        "local_workers": "tfp_bfl.engines.tff.context",
        "ray_runtime": "tfp_bfl.engines.ray.runtime",
        "remote_workers": "tfp_bfl.engines.tff.context",
        "require_tff": "tfp_bfl.engines.tff.installation",
        **dict.fromkeys((*_PARTIES, "from_arrays", "simulate_parties", "to_arrays"), "tfp_bfl.parties"),
    },
)

__all__ = [
    "ENGINES",
    "KEY_BYTES",
    "SERVER_OPTIMIZERS",
    "Averaged",
    "Backend",
    "BayesianProcess",
    "Chains",
    "Checkpointing",
    "Checkpoints",
    "ClientScores",
    "Cohorts",
    "Ensemble",
    "Members",
    "Monitor",
    "Party",
    "PartyEngine",
    "Prediction",
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
    "constant_warning",
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
    "secret_seed",
    "server_optimizer",
    "share_cores",
    "simulate",
    "simulate_chains",
    "simulate_parties",
    "summarise_clients",
    "to_arrays",
]
