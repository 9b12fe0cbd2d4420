"""Time rounds of Flower's simulation, in which Ray actors train the clients with Keras."""

from __future__ import annotations

import argparse
import functools
import os
from typing import Any

import arguments


def main() -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--actors", type=arguments.at_least(1), default=2, metavar="A", help="processes, one core each")
    parser.add_argument(
        "--reuse-model",
        action="store_true",
        help="keep one compiled model per actor, and reset its weights and optimizer for each client; "
        "without it each client builds its own, as in Flower's quickstart for TensorFlow",
    )
    options = parser.parse_args()
    clients = arguments.load(options)
    if len(set(clients.sizes.tolist())) > 1:
        arguments.refuse("Flower's clients must be of one size here: Keras has one weight of the KL for all of them.")
    stdout = arguments.keep_stdout_clean()
    strategy = _simulate(options, len(clients))
    arguments.report(
        stdout,
        options,
        clients,
        peer="flower, reused model" if options.reuse_model else "flower",
        distribution="flwr",
        clock=strategy.clock,
        peak=strategy.peak,
        final_nll=strategy.nll,
    )


def _simulate(options: argparse.Namespace, num_clients: int) -> Any:
    # Read when Flower, TensorFlow and Ray are loaded, by the actors too.
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

    import flower_client
    import models
    from flwr.client import ClientApp
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    class TimedFedAvg(FedAvg):
        """Takes each round's wall time, from the choice of its clients to the mean of their weights."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.clock = arguments.Clock()
            self.nll: float | None = None
            self.peak = 0.0

        def configure_fit(self, *args: Any, **kwargs: Any) -> Any:
            self.clock.start()
            return super().configure_fit(*args, **kwargs)

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if failures:
                raise RuntimeError(f"{len(failures)} clients failed; the first: {failures[0]}")
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            self.clock.lap()
            self.nll = metrics["nll"]
            if server_round == options.rounds:
                self.peak = arguments.peak_mb()
            return parameters, metrics

    strategy = TimedFedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=num_clients,
        min_available_clients=num_clients,
        initial_parameters=ndarrays_to_parameters(models.build(options.model, options.kind).get_weights()),
        fit_metrics_aggregation_fn=_mean_nll,
    )
    components = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=options.rounds))
    work = flower_client.Work(
        os.path.abspath(options.data), options.model, options.kind, options.batch_size, options.reuse_model
    )
    run_simulation(
        ServerApp(server_fn=lambda _: components),
        ClientApp(client_fn=functools.partial(flower_client.client_fn, work)),
        num_supernodes=num_clients,
        backend_config={
            "init_args": {"num_cpus": options.actors, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    return strategy


def _mean_nll(results: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    return {"nll": sum(count * metrics["nll"] for count, metrics in results) / sum(count for count, _ in results)}


if __name__ == "__main__":
    main()
