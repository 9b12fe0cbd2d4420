"""The settings of the study of exact heads: data only."""

CLIENTS, CLASSES_PER_CLIENT = 10, 2
SEEDS = (0, 1, 2, 3, 4)
# Rounds count the message of sums; those of "softmax" are scored at 6 and 21. "private": clip norm and noise.
EXACT = {
    "softmax": {"head": "softmax", "rounds": [6, 21]},
    "gaussian": {"head": "gaussian", "rounds": [2]},
    "ridge": {"head": "ridge", "rounds": [2]},
}
HEADS = {
    **EXACT,
    "fed_avg": {"head": "fed_avg"},
    **{f"{head}, {bits} bits": {**EXACT[head], "sum_bits": bits} for head in ("gaussian", "ridge") for bits in (10, 8)},
    "gaussian of 512 projections": {**EXACT["gaussian"], "projected": 512},
    **{f"{head}, epsilon 3": {"head": head, "rounds": [1], "private": [20.0, 1.39]} for head in ("gaussian", "ridge")},
    **{f"{head} of each client alone": {**EXACT[head], "alone": True} for head in ("gaussian", "ridge")},
}
FEDAVG = {"rounds": (5, 20, 40), "rates": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), "batch_size": 32}
NUM_SAMPLES = 100
CELLS = {f"{name}, seed={seed}": {**head, "seed": seed} for seed in SEEDS for name, head in HEADS.items()}
EVERY = {
    **CELLS,
    "class frequencies": {"head": "frequencies"},
    **{f"{name}, pooled, seed=0": {**head, "seed": 0, "pooled": True} for name, head in EXACT.items()},
}
# First less second, both as row and rounds, paired by seed.
DIFFERENCES = (
    (("softmax", 6), ("fed_avg", 20)),
    (("softmax", 6), ("fed_avg", 40)),
    (("softmax", 21), ("fed_avg", 40)),
    (("softmax", 21), ("softmax", 6)),
    *(((head, 2), ("fed_avg", rounds)) for head in ("gaussian", "ridge") for rounds in FEDAVG["rounds"]),
    (("ridge", 2), ("gaussian", 2)),
    (("softmax", 6), ("gaussian", 2)),
    *(((f"{head}, {bits} bits", 2), (head, 2)) for head in ("gaussian", "ridge") for bits in (10, 8)),
    (("gaussian of 512 projections", 2), ("gaussian", 2)),
    *(((f"{head}, epsilon 3", 1), (head, 2)) for head in ("gaussian", "ridge")),
    *(((f"{head} of each client alone", 2), (head, 2)) for head in ("gaussian", "ridge")),
)
