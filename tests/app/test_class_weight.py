"""Class weights of the training loss, by the option and from Python."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import refusal, summary_of
from tfp_bfl.app.one_run import build
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.class_weights import likelihood

RNG = np.random.default_rng(0)
LABELS = np.repeat([0, 1], [30, 10])
SOURCE = bfl.data.Source("ill", "train", RNG.normal(size=(40, 3)).astype(np.float32), LABELS, ("no, not", "yes"))
CLIENTS = SOURCE.partition(bfl.data.iid(4), seed=0)


@pytest.mark.parametrize(
    ("given", "weights"),
    [("balanced", [2 / 3, 2]), ({"yes": 3}, [1, 3]), ({"no, not": 0.5, "yes": 2.0}, [0.5, 2]), ("yes=3", [1, 3])],
)
def test_weights_are_of_the_classes_of_all_clients(given, weights):
    config = make_config(None, {"algorithm": "fed_opt", "kind": "deterministic", "class_weight": given})
    text = likelihood(config.class_weight, lambda: CLIENTS)["likelihood"]
    np.testing.assert_allclose([float(x) for x in text.partition(":")[2].split(",")], weights, rtol=1e-6)
    assert make_config(None, {**config.recorded()}).class_weight == config.class_weight


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ballanced", "class_weight has 'ballanced', but must be balanced, or CLASS=WEIGHT of the classes no, not,"),
        ("ill=2", "class_weight has 'ill=2', but must be"),
        ("yes=0", "class_weight of yes is 0.0, but must be"),
        ("yes=2, yes=3", "class_weight has the class 'yes' twice: give each class one weight"),
        ("yes=much", "class_weight has 'yes=much', but 'much' is no number"),
    ],
)
def test_weights_that_are_none_are_refused(given, message):
    with pytest.raises(InvalidArgument, match=message):
        likelihood(given, lambda: CLIENTS)


def test_a_summary_states_the_weights(tmp_path):
    options = {"model": "mlp", "rounds": 1, "clients": 2, "partition": "iid", "engine": "local", "num_samples": 2}
    weighted = bfl.run(tmp_path / "run", dataset="breast_cancer", class_weight="malignant=3", **options).folder
    assert summary_of(weighted)["class_weights"] == {"malignant": 3.0, "benign": 1.0}


def test_numbers_have_no_classes(capsys):
    options = ["--dataset", "diabetes", "--model", "mlp", "--class-weight", "balanced"]
    assert "class_weight is of classification, and diabetes" in refusal(capsys, "run", *options, "--partition", "iid")


@pytest.mark.parametrize("algorithm", ["partitioned_vi", "fl_swag", "scaffold"])
def test_algorithms_with_local_training_take_it(algorithm):
    kind = "flipout" if algorithm == "partitioned_vi" else "deterministic"
    options = {"algorithm": algorithm, "kind": kind, "model": "mlp", "class_weight": "balanced", "clients": 4}
    config = make_config(None, options)
    process = build.process(config, SOURCE, lambda: SOURCE.features, clients=lambda: CLIENTS)
    assert process.local is not None


@pytest.mark.deep(after="tests/app/test_class_weight.py")
def test_rare_classes_are_found_more_often(tmp_path):
    """Of 5 % of examples that overlap with the rest, weighted training finds half, and unweighted training none."""
    rng = np.random.default_rng(1)
    labels = (rng.uniform(size=2000) < 0.05).astype(np.int64)
    features = rng.normal(size=(2000, 2)).astype(np.float32) + labels[:, None] * 1.5
    train, test = (
        bfl.data.Source("rare", s, features[p], labels[p], ("no", "yes"))
        for s, p in (("train", slice(1000)), ("test", slice(1000, None)))
    )
    recall = []
    for weights in (None, "balanced"):
        folder = tmp_path / str(weights)
        options = {"algorithm": "fed_opt", "model": "mlp", "kind": "deterministic", "rounds": 5, "local_epochs": 2}
        bfl.run(folder, dataset=train, test_data=test, class_weight=weights, clients=4, engine="local", **options)
        with np.load(folder / "predictions.npz") as found:
            recall.append(np.mean(found["probabilities"].argmax(1)[found["labels"] == 1]))
        summary = summary_of(folder)
        assert summary["test_nll"] > 0
        assert not weights or not any("baseline" in warning or "chance" in warning for warning in summary["warnings"])
    assert recall[0] < 0.2 and recall[1] > recall[0] + 0.3
