"""The settings of the study of exact heads: data only."""

CLIENTS, CLASSES_PER_CLIENT = 10, 2
SEEDS = (0, 1, 2, 3, 4)
# Rounds count the message of sums; those of "softmax" are scored at 6 and 21.
HEADS = {
    "softmax": {"head": "softmax", "rounds": [6, 21]},
    "fed_avg": {"head": "fed_avg"},
    "gaussian": {"head": "gaussian", "rounds": [2]},
    "ridge": {"head": "ridge", "rounds": [2]},
    "gaussian of 512 projections": {"head": "gaussian", "rounds": [2], "projected": 512},
}
FEDAVG = {"rounds": (5, 20, 40), "rates": (3e-4, 1e-3, 3e-3, 1e-2), "batch_size": 32}
NUM_SAMPLES = 100
CELLS = {f"{name}, seed={seed}": {**head, "seed": seed} for seed in SEEDS for name, head in HEADS.items()}
EVERY = {
    **CELLS,
    "class frequencies": {"head": "frequencies"},
    **{f"pooled {head}": {"head": head, "seed": 0, "pooled": True} for head in ("ridge", "gaussian", "softmax")},
    "each client alone, ridge, seed=0": {"head": "ridge", "rounds": [2], "seed": 0, "alone": True},
}
# First less second, both as row and rounds, paired by seed.
DIFFERENCES = (
    (("softmax", 6), ("fed_avg", 40)),
    (("softmax", 21), ("fed_avg", 40)),
    (("softmax", 6), ("fed_avg", 20)),
    (("gaussian", 2), ("fed_avg", 20)),
    (("gaussian", 2), ("fed_avg", 40)),
    (("ridge", 2), ("gaussian", 2)),
    (("softmax", 6), ("gaussian", 2)),
    (("gaussian of 512 projections", 2), ("gaussian", 2)),
)
