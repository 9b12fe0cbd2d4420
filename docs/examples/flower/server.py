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
    print(f"rounds {done + 1} to {server.round}: accuracy {accuracy(server.arrays):.3f}")


def accuracy(arrays, num_draws=32):
    """Return the accuracy of the mean prediction of networks drawn from the posterior."""
    model, generator, probabilities = make_model(), torch.Generator().manual_seed(0), 0
    for _ in range(num_draws):  # Bayes
        for name, w in model.named_parameters():
            mean, variance = (torch.tensor(arrays[f"{kind}/{name}"]) for kind in ("mean", "variance"))
            w.data = mean + variance.sqrt() * torch.randn(mean.shape, generator=generator)  # Bayes
        probabilities = probabilities + model(FEATURES[TEST]).softmax(-1).detach()
    return (probabilities.argmax(-1) == LABELS[TEST]).float().mean().item()


if __name__ == "__main__":
    FOLDER, ROUNDS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(server_app, client_app, num_supernodes=NUM_CLIENTS)
