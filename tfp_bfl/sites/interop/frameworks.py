"""A `Server` as a recipe of NVIDIA FLARE, and as a strategy of Flower; `MissingDependency` says what to install."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files.code import function_of
from tfp_bfl.sites.interop.pooling import Server

if TYPE_CHECKING:
    from tfp_bfl.sites.interop.bayesian_recipe import BayesianRecipe
    from tfp_bfl.sites.interop.bayesian_strategy import BayesianStrategy

# How `flare_recipe` takes the server.
SERVER = "server='FILE.py:FUNCTION', where the function returns an interop.Server"


def flare_recipe(
    server: str,
    train_script: str,
    *,
    num_rounds: int,
    min_clients: int,
    train_args: str = "",
    timeout: int = 0,
    name: str = "tfp_bfl",
) -> BayesianRecipe:
    """Return a recipe of NVIDIA FLARE that pools the means and variances of its clients by a `Server`.

    In each round all connected clients get the arrays "mean/NAME", "variance/NAME" and "point/NAME" as `params` of an
    FLModel, and return arrays of the same names with `meta={"num_examples": N_k}`. Answers with an error or a fault are
    left out of their round and named in the log. With a server that has a folder, a job that is run again resumes from
    the last round in it. At the end the job's folder at the server holds `posterior.npz`, the arrays that predict.

    Args:
      server: "FILE.py:FUNCTION"; the file is sent to FLARE's server, which calls the function without arguments. It
        returns an `interop.Server`, whose folder is an absolute path.
      train_script: the program of the clients, which uses `nvflare.client`; it is sent to them.
      num_rounds: number of rounds in all.
      min_clients: number of clients without which the job does not start, and smallest number of answers of a round. A
        round of fewer leaves the server as it is, and counts as run.
      train_args: arguments of the program.
      timeout: seconds that a round waits for its clients; then the answers that are there are pooled. 0 to wait for all
        clients.
      name: of the job.

    Returns:
      A `nvflare.recipe.spec.Recipe`: `recipe.execute(SimEnv(num_clients=3))` simulates it.

    The program of docs/frameworks.md is an example.
    """
    if not isinstance(server, str):
        raise InvalidArgument(f"server is {shown(server)}, but must be a text: give {SERVER}.")
    function_of(server, SERVER)
    if not pathlib.Path(train_script).is_file():
        raise InvalidArgument(f"There is no file {path_name(train_script)}: give the program of the clients.")
    check_count(num_rounds, "num_rounds")
    check_count(min_clients, "min_clients")
    check_count(timeout, "timeout", least=0)
    from tfp_bfl.sites.interop.bayesian_recipe import BayesianRecipe

    return BayesianRecipe(server, train_script, num_rounds, min_clients, train_args, timeout, name)


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

    The program of docs/frameworks.md is an example.
    """
    from tfp_bfl.sites.interop.bayesian_strategy import BayesianStrategy

    return BayesianStrategy(server, client_key=client_key, **options)
