"""The data of a configuration: read, checked, and shared out to clients and server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import backbone
from tfp_bfl.app.options.config import RunConfig, names_in
from tfp_bfl.app.options.given_data import GivenData, named, read_given, recorded
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.refusals import OF_DATA
from tfp_bfl.data.cohorts import check_cohort_size
from tfp_bfl.data.equal_partitions import GIVEN
from tfp_bfl.data.sizes import parse_size
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.methods import serves

# Of what the server sets aside for pre-training, on which it sees when to stop.
VALIDATION_SHARE = 0.2
# Options that decide how many examples each client has, and which cohorts there can be.
_OF_CLIENTS = (
    *("partition", "clients", "unseen_clients", "cohort_size", "examples_per_client"),
    *("pretrain_share", "hold_out", "seed"),
)


def is_own(config: RunConfig) -> bool:
    """Return whether a configuration is of data that may name their clients: in files, in memory, or embedded."""
    by_name = bfl.data.is_own(config.dataset) or bfl.data.names_clients(config.dataset)
    return by_name or recorded(config.dataset) is not None or names_code(config.dataset)


def load(config: RunConfig, given: GivenData | None = None) -> bfl.data.OwnData:
    """Return the training and the test data of a configuration, and the clients that they name themselves.

    With a backbone its features stand in the place of images.
    """
    return backbone.of_data(config, _load(config, given))


def _load(config: RunConfig, given: GivenData | None) -> bfl.data.OwnData:
    size = parse_size(config.image_size)
    if given is not None and not recorded(config.dataset):
        raise InvalidArgument(f"The data of this run are {config.dataset}, which it reads: leave dataset out.")
    if names_code(config.dataset):
        made = named(config.dataset, config.parameters)
        return made.read(dict(config)).at_size(size)
    if recorded(config.dataset):
        return read_given(given, config.dataset, dict(config)).at_size(size)
    if bfl.data.is_own(config.dataset):
        return bfl.data.read_own(
            config.dataset,
            config.label,
            config.client_column,
            config.test_data,
            config.task,
            names_in(config.drop),
            config.separator,
            only=names_in(config.only),
            categorical=names_in(config.categorical),
            date_unit=config.date_unit,
            image_size=size,
            text_features=config.text_features,
            series_column=config.series_column,
            time_column=config.time_column,
        )
    train, test = (bfl.data.load(config.dataset, s, config.data_dir, size) for s in ("train", "test"))
    return bfl.data.OwnData(train, test, train.clients, train.client_names)


def peek(config: RunConfig) -> bfl.data.Source:
    """Return one example or more of a named dataset, of which only shapes and classes count."""
    return backbone.of_source(
        config, bfl.data.peek(config.dataset, config.data_dir, config.image_size), shape_alone=True
    )


def regresses(config: RunConfig) -> bool:
    """Return whether the labels of a configuration's data are numbers."""
    if is_own(config):
        return config.task == "regression"
    return _regresses(config.dataset, config.data_dir, config.image_size)


@functools.cache
def _regresses(dataset: str, data_dir: str | None, size: str | None) -> bool:
    return bfl.data.peek(dataset, data_dir, size).target is not None


def key(config: RunConfig) -> tuple[Any, ...]:
    """Return all that says which data a run is of."""
    own = tuple(config.parameters.items()) if names_code(config.dataset) else ()
    return (*(getattr(config, name) for name in ("dataset", "data_dir", "image_size", "backbone", *OF_DATA)), *own)


def each(
    configs: Iterable[tuple[str, RunConfig]],
) -> Iterator[tuple[list[tuple[str, RunConfig]], bfl.data.OwnData | None]]:
    """Yield the configurations of each dataset, and the data where these may name clients, each read once."""
    groups: dict[tuple[Any, ...], list[tuple[str, RunConfig]]] = {}
    for where, config in configs:
        groups.setdefault(key(config), []).append((where, config))
    for group in groups.values():
        first = group[0][1]
        if is_own(first):
            yield group, load(first)
        else:
            bfl.data.peek(first.dataset, first.data_dir, first.image_size)
            yield group, None


def check(
    configs: Iterable[tuple[str, RunConfig]], use: Callable[[bfl.data.Clients, int], object] | None = None
) -> dict[tuple[Any, ...], str]:
    """Read the data of configurations, each dataset once, and check that they have the clients of the options.

    The clients of datasets that do not name any are not checked, since sets of images are large. `use` is tried with
    the clients of a configuration and its seed. Returned is `key` -> digest of data that may name clients.
    """
    digests = {}
    for group, data in each(configs):
        if data is None:
            continue
        digests[key(group[0][1])] = bfl.data.digest(data)
        checked = set()
        for where, config in group:
            server = config.unlabelled_share if serves("unlabelled_share", config.algorithm) else None
            of_clients = (*(getattr(config, name) for name in _OF_CLIENTS), server)
            if of_clients in checked:
                continue
            checked.add(of_clients)
            try:
                settled = with_clients(config, data)
                if use is not None:
                    use(shares(settled, data.train, data.clients).clients, config.seed)
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}{error}") from None
    return digests


def with_clients(config: RunConfig, data: bfl.data.OwnData) -> RunConfig:
    """Return the configuration with the number of clients that the data name, if they are the run's."""
    if config.partition != GIVEN or data.clients is None:
        _partition(config, data.train)  # Here, before TensorFlow is imported.
        return config
    number = data.clients.num_clients - config.unseen_clients
    if "clients" in config.model_fields_set and config.clients != number:
        raise InvalidArgument(
            f"clients is {config.clients}, but {data.train.name} names {number}: leave it out, or give another "
            "partition."
        )
    check_cohort_size(number, config.cohort_size)
    return config.model_copy(update={"clients": number})


def _partition(config: RunConfig, train: bfl.data.Source) -> bfl.data.Clients:
    number = config.clients + config.unseen_clients
    return train.partition(bfl.data.parse_partition(config.partition, number), seed=config.seed)


class Shares(NamedTuple):
    """The partition of the training data: what is None the run does not have.

    `unseen` are clients who never train. On `server` the server pre-trains, by `held_out` it sees when to stop, and
    `calibration` are examples for that, one client each. `unlabelled` are features without their labels [U, ...].
    """

    clients: bfl.data.Clients
    server: bfl.data.Clients | None = None
    held_out: bfl.data.Clients | None = None
    unlabelled: Any = None
    calibration: bfl.data.Clients | None = None
    unseen: bfl.data.Clients | None = None


def shares(config: RunConfig, train: bfl.data.Source, given: bfl.data.Clients | None = None) -> Shares:
    """Return the training data as a configuration partitions them; `given` are the clients that the data name."""
    clients = given if config.partition == GIVEN and given is not None else _partition(config, train)
    if config.examples_per_client:
        clients = clients.limit(config.examples_per_client, seed=config.seed)
    server = held_out = unlabelled = calibration = unseen = None
    if config.unseen_clients:
        clients, unseen = clients.split(clients.num_clients - config.unseen_clients)
    left = 1.0  # Each of these is a share of all the data.

    def take(share: float) -> bfl.data.Clients:
        nonlocal clients, left
        taken, clients = clients.set_aside(share / left, seed=config.seed)
        left -= share
        return taken

    if config.pretrain_share:
        server = take(config.pretrain_share)
        held_out, server = server.set_aside(VALIDATION_SHARE, seed=config.seed)
    if serves("unlabelled_share", config.algorithm):
        unlabelled = take(config.unlabelled_share).examples(0).features
    if config.hold_out:
        calibration = take(config.hold_out)
    return Shares(clients, server, held_out, unlabelled, calibration, unseen)
