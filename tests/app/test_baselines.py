"""Baselines of a run without edges, the warning of a model that is worse, and what a summary records of classes."""

from types import SimpleNamespace

import numpy as np

import tfp_bfl as bfl
from tfp_bfl.app.one_run import pipeline

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(300, 3)).astype(np.float32)
CLASSES = (FEATURES @ [1.0, -2.0, 0.0] + RNG.normal(size=300) > 0.5).astype(np.int64)


def split(labels, **facts):
    parts = slice(200), slice(200, None)
    return (
        bfl.data.Source("t", name, FEATURES[part], labels[part], **facts)
        for name, part in zip(("train", "test"), parts)
    )


def test_a_model_that_is_no_worse_is_not_warned_of():
    train, test = split(CLASSES, class_names=("no", "yes"))
    found = pipeline.baselines(train.partition(bfl.data.iid(5), seed=0), test)
    sure = np.where(np.eye(2)[CLASSES[200:]] == 1, 0.9, 0.1)
    assert pipeline.worse_than(SimpleNamespace(probabilities=sure), found, test) == []
    assert pipeline.is_better(SimpleNamespace(probabilities=sure), found[0], test)
    assert not pipeline.is_better(SimpleNamespace(probabilities=1 - sure), found[0], test)
    (warning,) = pipeline.worse_than(SimpleNamespace(probabilities=1 - sure), found, test)
    assert "its NLL is 2.303" in warning


def test_a_summary_records_the_classes():
    _, test = split(CLASSES, class_names=("no", "yes"))
    final = SimpleNamespace(probabilities=np.tile(np.array([[0.8, 0.2]], np.float32), (100, 1)))
    number = int((test.labels == 1).sum())
    assert pipeline.of_classes_in(final, test) == {
        "classes": {
            "no": {"examples": 100 - number, "recall": 1.0, "precision": 1 - number / 100},
            "yes": {"examples": number, "recall": 0.0, "precision": 0.0},
        },
        "confusion_matrix": [[100 - number, 0], [number, 0]],
    }
    found = pipeline.sensitivity_in(final, test)
    assert found["sensitivity"] == 0 and found["sensitivity_high"] > 0 and found["specificity"] == 1
