"""A Bayesian server in Flower for the PyTorch clients of `client.py`: python server.py FOLDER [ROUNDS].

The server writes its state to FOLDER after each round. Run the program again with more rounds, or after it was killed,
and it resumes from there.
"""

import logging
import sys

import torch
from client import FEATURES, LABELS, NUM_CLIENTS, TEST, client_app, make_model
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from torch import nn

import tfp_bfl as bfl  # Bayes

server_app = ServerApp()


@server_app.main()
def main(grid, context):
    """Run the rounds that the folder does not hold, and print the accuracy."""
    mean = {name: w.detach().numpy() for name, w in make_model().named_parameters()}
    server = bfl.interop.Server(mean, 0.01, rule="mean_precision_average", folder=FOLDER)  # Bayes
    nodes = {"min_train_nodes": NUM_CLIENTS, "min_available_nodes": NUM_CLIENTS, "fraction_evaluate": 0.0}
    strategy = bfl.interop.flower_strategy(server, client_key="partition-id", **nodes)  # Bayes
    done = server.round
    strategy.start(grid, num_rounds=ROUNDS)
    (accuracy, nll), (of_means, nll_of_means) = scores(server.arrays), scores(server.arrays, num_draws=0)
    print(f"rounds {done + 1} to {server.round}: accuracy {accuracy:.3f}, NLL {nll:.3f}")
    print(f"of the means alone: accuracy {of_means:.3f}, NLL {nll_of_means:.3f}")


def scores(arrays, num_draws=32):
    """Return accuracy and NLL of the mean prediction of networks drawn from the posterior; of its means without any."""
    model, generator, mean = make_model(), torch.Generator().manual_seed(0), 0
    for _ in range(max(num_draws, 1)):
        for name, w in model.named_parameters():
            mu, variance = (torch.tensor(arrays[f"{kind}/{name}"]) for kind in ("mean", "variance"))
            noise = torch.randn(mu.shape, generator=generator) if num_draws else torch.zeros_like(mu)  # Bayes
            w.data = mu + variance.sqrt() * noise  # Bayes
        mean = mean + model(FEATURES[TEST]).softmax(-1).detach() / max(num_draws, 1)
    truth = LABELS[TEST]
    return (mean.argmax(-1) == truth).float().mean().item(), nn.functional.nll_loss(mean.log(), truth).item()


if __name__ == "__main__":
    FOLDER, ROUNDS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(server_app, client_app, num_supernodes=NUM_CLIENTS)
