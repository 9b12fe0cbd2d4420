"""The cells of the study of heads that belong to clients: federations, splits and models."""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]
FOLDER, SPLITS, NUM_FEATURES, TEST_SHARE = "natural", range(5), 40, 0.3
# Of the control, as in the benchmark: for standardised columns.
PRIOR_STDDEV = 2.5
# REML takes twice the time, and with more clients hardly differs. Slopes need more clients than heart disease has, and
# the largest federations have none for their time.
FEW_CLIENTS, FOR_SLOPES = 100, range(10, 500)
# File and options of `bfl.data.read_own`; heart disease is in the library.
FEDERATIONS: dict[str, Options] = {
    "heart": {},
    "contraception": {
        **{"file": "contraception.csv", "label": "use", "client": "district"},
        **{"drop": ("rownames", "woman"), "categorical": ("livch",)},
    },
    "radon": {
        **{"file": "radon.csv", "label": "log.radon", "client": "county", "task": "regression"},
        "drop": ("rownames", "county.name"),
    },
    "schools": {
        **{"file": "hsb82.parquet", "label": "mAch", "client": "school", "task": "regression"},
        "drop": ("rownames", "cses"),
    },
    "exams": {
        **{"file": "chem97.parquet", "label": "score", "client": "school", "task": "regression"},
        "drop": ("rownames", "lea", "student", "gcsecnt"),
    },
    "lecturers": {
        **{"file": "insteval.parquet", "label": "y", "client": "d", "task": "regression"},
        "drop": ("rownames", "s"),
    },
}
CONTROL = "linear, client intercepts"
MODELS = {
    "linear, pooled": "linear_pooled",
    CONTROL: "linear",
    "linear, client intercepts, fitted prior": "linear_fitted",
    "features, pooled": "features_pooled",
    "features, client intercepts": "features",
    "features, client intercepts and a slope": "slopes",
    "control: noise as features, client intercepts": "noise",
}


def cells() -> dict[str, Options]:
    """Return name -> options of each cell."""
    common = {"features": NUM_FEATURES, "test_share": TEST_SHARE, "prior_stddev": PRIOR_STDDEV}
    every = ({"federation": name, "split": split, **common} for name in FEDERATIONS for split in SPLITS)
    return {f"{cell['federation']},split={cell['split']}": cell for cell in every}
