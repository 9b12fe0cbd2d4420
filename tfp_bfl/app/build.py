"""What a configuration stands for: its model and its process."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.catalogue import ALGORITHMS, serves
from tfp_bfl.app.config import RunConfig

# Of what the server sets aside for pre-training, on which it sees when to stop.
VALIDATION_SHARE = 0.2
BATCH_NORM_EXAMPLES = 500


def model_fn(config: RunConfig, source: bfl.data.Source) -> Callable[[], tf.keras.Model]:
    """Builds the Keras model of a configuration for the examples of `source`."""
    options = {"normalization": config.normalization} if config.normalization else {}
    return lambda: bfl.models.MODELS[config.model](
        kind=config.kind,
        input_shape=source.element_shape,
        num_classes=source.num_classes,
        prior_stddev=config.prior_stddev,
        initial_stddev=config.initial_stddev,
        min_stddev=config.min_stddev,
        dropout_rate=config.dropout_rate,
        precision=config.precision,
        seed=config.seed,
        **options,
    )


class Shares(NamedTuple):
    """Who has which of the training data.

    Fields:
      clients: the federation's.
      server: on which the server pre-trains, one client; None without pre-training.
      held_out: on which it sees when to stop, one client; None without pre-training.
      unlabelled: features that the server holds without their labels [U, ...]; None where it holds none.
    """

    clients: bfl.data.Clients
    server: Optional[bfl.data.Clients] = None
    held_out: Optional[bfl.data.Clients] = None
    unlabelled: Any = None


def shares(config: RunConfig, train: bfl.data.Source) -> Shares:
    """The training data as a configuration shares them out.

    Raises:
      InvalidArgument: a client would be left without any.
    """
    clients = train.partition(bfl.data.parse_partition(config.partition, config.clients), seed=config.seed)
    if config.examples_per_client:
        clients = clients.limit(config.examples_per_client, seed=config.seed)
    server = held_out = unlabelled = None
    if config.pretrain_share:
        server, clients = clients.set_aside(config.pretrain_share, seed=config.seed)
        held_out, server = server.set_aside(VALIDATION_SHARE, seed=config.seed)
    if serves("unlabelled_share", config.algorithm):
        # Both are shares of all the data.
        share = config.unlabelled_share / (1 - (config.pretrain_share or 0))
        others, clients = clients.set_aside(share, seed=config.seed)
        unlabelled = others.examples(0).features
    return Shares(clients, server, held_out, unlabelled)


def batch_norm_examples(config: RunConfig, server: Optional[bfl.data.Clients]) -> Any:
    """Examples of the server's on which BatchNorm's statistics are computed for each draw of all weights; or None."""
    if server is None or config.last_layer:
        return None
    return server.limit(BATCH_NORM_EXAMPLES, seed=config.seed).examples(0).features


def export_info(config: RunConfig, train: bfl.data.Source, metrics: dict[str, Any]) -> bfl.export.Info:
    """What travels with the exported model of a run; paths of this machine stay here."""
    return bfl.export.Info(
        class_names=[name if name.isprintable() else ascii(name) for name in train.class_names],
        configuration={name: x for name, x in config.told().items() if name != "data_dir"},
        metrics=metrics,
        data={
            "dataset": train.name,
            "split": train.split,
            "num_examples": train.num_examples,
            "sha256": train.sha256(),
            "metrics_on": "test",
        },
    )


def process(config: RunConfig, source: bfl.data.Source, unlabelled: Callable[[], Any]) -> bfl.federated.BayesianProcess:
    """The federated process of a configuration.

    Args:
      config: of the run.
      source: one example or more of the training data.
      unlabelled: gives those of `Shares`, if they are asked for.

    Raises:
      InvalidArgument: its options don't fit the data or each other.
    """
    if config.algorithm == "variational":
        return _variational(config, source)
    if config.algorithm == "fl_swag":
        return _fl_swag(config, source)
    return _averaging(config, source, unlabelled)


def pretraining(config: RunConfig, source: bfl.data.Source) -> bfl.federated.BayesianProcess:
    """The process of one client, the server, whose rounds are epochs of the ordinary training of the model."""
    alone = {"rule": "naive_weighted_average", "weighting": "equal", "robust": None, "max_change_norm": None}
    epoch = {"local_epochs": 1, "update_prior": False, "learning_rate_decay": 0.0}
    rate = (
        {} if config.algorithm == "variational" else {"learning_rate": RunConfig.model_fields["learning_rate"].default}
    )
    return _variational(config.model_copy(update={**alone, **epoch, **rate}), source)


def _variational(config: RunConfig, source: bfl.data.Source) -> bfl.federated.BayesianProcess:
    return bfl.algorithms.variational(
        model_fn(config, source),
        rule=config.rule,
        weighting=config.weighting,
        robust=config.robust,
        element_spec=source.element_spec,
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        learning_rate=_learning_rate(config),
        update_prior=config.update_prior,
        pretrained=bool(config.pretrain_share),
        max_change_norm=config.max_change_norm,
    )


def _fl_swag(config: RunConfig, source: bfl.data.Source) -> bfl.federated.BayesianProcess:
    names = (*ALGORITHMS["fl_swag"].options, "local_epochs", "batch_size", "learning_rate")
    options: dict[str, Any] = {name: getattr(config, name) for name in names}
    return bfl.algorithms.fl_swag(model_fn(config, source), element_spec=source.element_spec, **options)


# An option of the configuration -> how the recipes of posterior averaging call it.
_KERNEL = {"kernel": "kernel", "bandwidth": "bandwidth", "bandwidth_scale": "scale"}
_AS_THEY_ARE = ("weighting", "max_change_norm", "proximal", "shrinkage", "step_size", "max_samples")


def _averaging(
    config: RunConfig, source: bfl.data.Source, unlabelled: Callable[[], Any]
) -> bfl.federated.BayesianProcess:
    has = lambda name: name in ALGORITHMS[config.algorithm].options
    options: dict[str, Any] = {name: getattr(config, name) for name in _AS_THEY_ARE if has(name)}
    if has("burn_in_rounds"):
        options["burn_in_rounds"] = config.rounds // 2 if config.burn_in_rounds is None else config.burn_in_rounds
    if has("kernel"):
        options["start"] = config.kernel_start
        options["kernel_options"] = {theirs: getattr(config, ours) for ours, theirs in _KERNEL.items()}
    if has("unlabelled_share"):
        options["features"] = unlabelled()
    return getattr(bfl.algorithms, config.algorithm)(
        model_fn(config, source),
        element_spec=source.element_spec,
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        learning_rate=_learning_rate(config),
        optimizer_fn=lambda: tf.keras.optimizers.SGD(momentum=config.momentum),
        server_optimizer=_server_optimizer(config),
        **options,
    )


def _server_optimizer(config: RunConfig) -> Any:
    if config.server_optimizer is None:
        return None
    momentum = {"momentum": config.server_momentum} if config.server_momentum else {}
    return bfl.servers.server_optimizer(config.server_optimizer, config.server_learning_rate, **momentum)


def _learning_rate(config: RunConfig) -> Any:
    return bfl.clients.exponential_decay(config.learning_rate, config.learning_rate_decay, config.silent_rounds)
