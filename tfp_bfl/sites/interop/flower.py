"""A `Server` as a strategy of Flower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfp_bfl.sites.interop.server import Server

if TYPE_CHECKING:
    from tfp_bfl.sites.interop.bayesian_strategy import BayesianStrategy


def flower_strategy(server: Server, *, client_key: str | None = None, **options: object) -> BayesianStrategy:
    """Return a strategy of Flower that pools the means and variances of its clients by a `Server`.

    Clients get the arrays "mean/NAME", "variance/NAME" and "point/NAME" in an ArrayRecord. They reply with arrays of
    the same names and with their number of examples in a MetricRecord. Cohorts, evaluation and keys are those of
    Flower's FedAvg. Replies with an error or a fault are left out of their round and named in the log. With a server
    that has a folder, `start` resumes from the last round in it, and runs what is left of `num_rounds`.

    Args:
      server: the server, with the first arrays; leave out the `initial_arrays` of `start`.
      client_key: name of the metric by which a client states its name, such as "partition-id"; None for Flower's number
        of the node, which is another one in each run. Nodes that state the same name are left out of the round.
      **options: of `flwr.serverapp.strategy.FedAvg`, such as fraction_train.

    Raises:
      MissingDependency: Flower is not installed.

    The program of docs/frameworks.md is an example.
    """
    from tfp_bfl.sites.interop.bayesian_strategy import BayesianStrategy

    return BayesianStrategy(server, client_key=client_key, **options)
