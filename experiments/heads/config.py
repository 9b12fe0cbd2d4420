"""The settings of the study of exact heads: data only."""

CLIENTS, CLASSES_PER_CLIENT = 10, 2
# Rounds of softmax count the message of sums.
HEADS = {
    "gaussian": {"head": "gaussian", "rounds": 2},
    "ridge": {"head": "ridge", "rounds": 2},
    "softmax, 6 messages": {"head": "softmax", "rounds": 6},
    "softmax, 21 messages": {"head": "softmax", "rounds": 21},
    "gaussian of 512 random projections": {"head": "gaussian", "rounds": 2, "projected": 512},
    "gaussian of 700 random projections": {"head": "gaussian", "rounds": 2, "projected": 700},
}
SEEDS = (0, 1, 2)
FEDAVG = {"rounds": (5, 20, 40), "rates": (3e-4, 1e-3, 3e-3, 1e-2), "batch_size": 32}
NUM_SAMPLES = 50
EVERY = {
    **{f"{name}, seed={seed}": {**head, "seed": seed} for name, head in HEADS.items() for seed in SEEDS[:1]},
    **{f"pooled {head}": {"head": head, "rounds": 2, "seed": 0, "pooled": True} for head in ("gaussian", "ridge")},
    **{f"alone {head}": {"head": head, "rounds": 2, "seed": 0, "alone": True} for head in ("gaussian", "ridge")},
    **{f"fed_avg, seed={seed}": {"head": "fed_avg", "seed": seed} for seed in SEEDS},
}
