"""Checks of a simulation before any work: its options, and whether its clients fit its process."""

import numpy as np

from tfp_bfl.data import ClientData, Parties, answering, cohort
from tfp_bfl.errors import InvalidArgument, check_counts, shown
from tfp_bfl.federated.averaging import check_average_rounds
from tfp_bfl.federated.engines import check_engine
from tfp_bfl.federated.options import Cohorts, SimulationSettings
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.privacy import Privacy


def check_settings(
    process: BayesianProcess, clients: ClientData | Parties, rounds: int, settings: SimulationSettings
) -> SimulationSettings:
    """Return the settings with the seed, the cohort size, the engine and the number of rounds to average filled in."""
    cohorts, seed, checkpoints, monitor, _, prediction, backend = settings
    check_counts(rounds=rounds, evaluate_every=monitor.every, checkpoint_every=checkpoints.every)
    check_counts(0, max_retries=cohorts.max_retries, max_restarts=backend.max_restarts)
    num_averaged = check_average_rounds(process, prediction.average_rounds, rounds)
    if num_averaged > 1 and (monitor.stop or prediction.draws):
        raise InvalidArgument("average_rounds averages the last of all rounds: leave stop and draws out.")
    seed = int(process.round.seed if seed is None else seed)
    if process.privacy:
        cohorts = cohorts._replace(size=_private_size(process.privacy, clients, cohorts))
    check_clients(process, clients, cohorts.size, cohorts.popularity)
    if monitor.evaluate_cohort and isinstance(clients, Parties):
        raise InvalidArgument("evaluate_cohort requires the clients' data, which sites do not send: leave it out.")
    first = cohort(clients.num_clients, cohorts.size, 0, seed, popularity=cohorts.popularity)
    answering(first, cohorts.dropout, 0, seed)
    if not 0 <= seed < 2**31:
        raise InvalidArgument(f"seed must be at least 0 and below 2^31, but is {seed}.")
    burn_in = max(process.burn_in_rounds, prediction.draws.burn_in if prediction.draws else 0)
    if burn_in >= rounds:
        raise InvalidArgument(
            f"burn_in_rounds is {burn_in}, but the run has {rounds} rounds: ask for more rounds, or for fewer of "
            "burn-in."
        )
    if backend.engine is None or isinstance(backend.engine, str):
        default = None if backend.runtime is None else "tff"
        backend = backend._replace(engine=check_engine(backend.engine or default))
    if process.privacy:
        process.privacy.epsilon(clients.num_clients, rounds)  # Raises before work starts if it cannot be computed.
    prediction = prediction._replace(average_rounds=num_averaged, draws=prediction.draws or process.thinning)
    return settings._replace(cohorts=cohorts, seed=seed, prediction=prediction, engine=backend)


def _private_size(privacy: Privacy, clients: ClientData | Parties, cohorts: Cohorts) -> int:
    expected = privacy.cohort_size
    if isinstance(clients, Parties):
        raise InvalidArgument(
            "Differential privacy by client is for simulations: sites know in which rounds they take part, and epsilon "
            "rests on nobody knowing that."
        )
    if cohorts.popularity is not None:
        raise InvalidArgument("popularity draws clients unevenly, and privacy must draw them evenly: leave it out.")
    if cohorts.size not in (None, expected):
        raise InvalidArgument(
            f"cohort_size is {shown(cohorts.size)}, but the process's privacy is of cohorts of {expected}: give that."
        )
    return expected


def check_clients(
    process: BayesianProcess,
    clients: ClientData | Parties,
    cohort_size: int | None = None,
    popularity: float | None = None,
) -> None:
    """Raise InvalidArgument for clients that `simulate` would refuse: too few, too many, or with data unfit."""
    if not isinstance(clients, (ClientData, Parties)):
        raise InvalidArgument(
            f"clients must be Clients, such as Source.partition(...) gives, not {type(clients).__name__}: a process's "
            "own next takes datasets."
        )
    size = cohort_size or clients.num_clients
    if size < process.min_clients:
        raise InvalidArgument(
            f"A round has {size} clients, but the rule, {process.description['rule']}, needs at least "
            f"{process.min_clients}: take larger cohorts, or another rule."
        )
    step, needs = process.server_step.name, process.server_step.needs
    if popularity is not None and needs.is_chain and size < clients.num_clients:
        raise InvalidArgument(
            "popularity draws clients unevenly, and a chain by their gradients would be of another posterior: leave it "
            "out."
        )
    number = process.client_work.needs.num_clients
    if number not in (None, clients.num_clients):
        raise InvalidArgument(
            f"There are {clients.num_clients} clients, but their settings have {number} entries: give one entry for "
            "each client, or one value for all of them."
        )
    if needs.most_clients is not None and clients.num_clients > needs.most_clients:
        raise InvalidArgument(
            f"There are {clients.num_clients} clients, but the server step {step} has a place for "
            f"{needs.most_clients}: build it for so many, or leave the others out of training."
        )
    if needs.most_in_round is not None and size > needs.most_in_round:
        raise InvalidArgument(
            f"A round has {size} clients, but the server step {step} is of {needs.most_in_round} a round: give "
            f"cohort_size={needs.most_in_round}."
        )
    few = np.flatnonzero(clients.sizes < process.min_examples)
    if few.size:
        raise InvalidArgument(
            f"Client {few[0]} has {clients.sizes[few[0]]} examples, but each must have at least "
            f"{process.min_examples} here (too few have {few.size} of {clients.num_clients}): give it more, or "
            "leave it out."
        )
    if clients.source.num_outputs > process.num_outputs:
        raise InvalidArgument(
            f"The model has {process.num_outputs} outputs, but the dataset {clients.source.name} requires "
            f"{clients.source.num_outputs}: build it with num_classes of the data, 2 for numbers to regress on."
        )
    want, have = process.element_spec.features, clients.element_spec.features
    if want != have:
        raise InvalidArgument(
            f"The model takes examples of shape {list(want.shape[1:])} and type {want.dtype.name}, but the clients' "
            f"have shape {list(have.shape[1:])} and type {have.dtype.name}: build the process with "
            "element_spec=clients.element_spec, and the model with input_shape of the data."
        )
    work_warning(process, clients)


def work_warning(process: BayesianProcess, clients: ClientData | Parties) -> str | None:
    """Return the warnings of the client work's own checks of the clients; None without any."""
    checks = process.client_work.needs.checks
    found = [check(clients) for check in checks] if isinstance(clients, ClientData) else []
    return " ".join(filter(None, found)) or None
