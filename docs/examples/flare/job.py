"""A federation of three clients in FLARE's simulator: python job.py FOLDER [ROUNDS].

The server writes its state to FOLDER after each round. Run the program again with more rounds, or after it was killed,
and it resumes from there.
"""

import os
import pathlib
import sys

import numpy as np
from client import NUM_CLIENTS, rows
from nvflare.recipe import SimEnv

import tfp_bfl as bfl

if __name__ == "__main__":
    here, folder = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[1]).absolute()
    os.environ["ROUNDS"] = str(folder / "rounds")
    recipe = bfl.interop.flare_recipe(
        f"{here / 'server.py'}:make_server",
        str(here / "client.py"),
        num_rounds=int(sys.argv[2]) if len(sys.argv) > 2 else 5,
        min_clients=NUM_CLIENTS,
    )
    recipe.execute(SimEnv(num_clients=NUM_CLIENTS, workspace_root=str(folder / "flare")))

    (result,) = folder.rglob("posterior.npz")
    posterior, (features, labels) = np.load(result), rows(None)
    logit = features @ posterior["mean/weights"] + posterior["mean/bias"]
    variance = features**2 @ posterior["variance/weights"] + posterior["variance/bias"]
    for name, scale in (("posterior", 1 / np.sqrt(1 + np.pi / 8 * variance)), ("means alone", 1)):
        p = 1 / (1 + np.exp(-scale * logit))
        nll = -np.mean(np.log(np.where(labels == 1, p, 1 - p)))
        print(f"{name}: accuracy {np.mean((p > 0.5) == labels):.3f}, NLL {nll:.3f}")
