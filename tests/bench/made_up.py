"""Records of a made-up benchmark, seeded."""

import json

import numpy as np

CLASSES = {"heart": 0.31, "digits": 0.0, "breast": 0.12}
REGRESSION = "diabetes"
METHODS = ("fed_avg", "fed_pa", "fl_swag", "laplace")


def record(setting, method, seed, generator, better=0.0, **changes):
    """One record; `better` improves each score by so much of a point."""
    is_number = setting == REGRESSION
    noise = lambda: float(generator.normal(scale=0.01))
    about = {"dataset": setting, "model": "mlp", "clients": 4, "examples": 500, "test_examples": 100}
    about |= {"task": "regression"} if is_number else {"task": "classification", "heterogeneity": CLASSES[setting]}
    nll = 0.5 - better + noise()
    if is_number:
        scores = {
            "rmse": 50 - 10 * better + noise(),
            "test_nll": 5 + nll,
            "crps": 28 - better + noise(),
            "coverage": 0.9,
        }
    else:
        scores = {"accuracy": 0.8 + better + noise(), "test_nll": nll, "ece": 0.06 - better / 10 + noise() / 10}
        scores |= {"brier": 0.3 - better + noise(), "coverage": 0.9, "set_size": 1.3}
    cost = {"cpu_seconds": 12.0 + seed, "seconds": 20.0, "trial_seconds": 90.0 + METHODS.index(method)}
    cost |= {"upload_mb": 1.2, "download_mb": 1.2, "peak_mb": 900.0}
    name = "rmse" if is_number else "accuracy"
    rounds = [
        {
            "round": n,
            "seconds": 1.0 * n + seed,
            "mb": 0.2 * n,
            "test_nll": scores["test_nll"] + 1 / min(n, 8),
            name: scores[name],
        }
        for n in (2, 4, 6, 8, 10)
    ]
    content = {"setting": setting, "method": method, "seed": seed, "about": about, "trials": 8, "scores": scores}
    content |= {"chosen": {"learning_rate": 0.03}, "cost": cost, "rounds": rounds}
    return {**content, **changes}


def failed(setting, method, seed, reason):
    return {"setting": setting, "method": method, "seed": seed, "about": {}, "failed": reason}


def records(seeds=3, settings=(*CLASSES, REGRESSION), methods=METHODS, seed=0):
    """All cells; `fl_swag` is better than others by far, and the rest are equal but for noise."""
    generator = np.random.default_rng(seed)
    return [
        record(setting, method, number, generator, better=0.15 if method == "fl_swag" else 0.0)
        for setting in settings
        for method in methods
        for number in range(seeds)
    ]


def write(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content), encoding="utf-8")
    return folder
