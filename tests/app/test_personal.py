"""`meta_learning` and `meta_vd` from the command line: their runs, and the model of each client."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import call, json_of, lines_of, refusal, summary_of
from tests.units import in_units
from tfp_bfl.app.one_run import build, client_scores
from tfp_bfl.app.options.config import make_config
from tfp_bfl.options.methods import method_of

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

TINY = [
    *("run", "--dataset", "breast_cancer", "--model", "mlp", "--partition", "iid", "--clients", "3", "--rounds", "3"),
    *("--local-epochs", "1", "--num-samples", "3", "--engine", "local"),
]
META_VD = [*TINY, "--algorithm", "meta_vd", "--pruning-threshold", "0.9", "--initial-stddev", "0.1"]

TRAINED = {"local_epochs": 1, "batch_size": 32}
MIDDLE = {"middle": 2 * np.log(0.1)}


def model_fn():
    return bfl.models.mlp("variational_dropout", (30,), 2, initial_stddev=0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "meta_vd"
    assert call(*META_VD, "--evaluate-clients", "--output", folder) == 0
    return folder


@pytest.fixture(scope="module")
def program():
    """The process, the clients and the result of the same run by hand."""
    source = bfl.data.load("breast_cancer")
    clients = source.partition(bfl.data.iid(3), seed=0)
    process = bfl.algorithms.meta_vd(model_fn, num_clients=3, variance_options=MIDDLE, threshold=0.9, **TRAINED)
    return process, clients, bfl.simulate(process, clients, rounds=3, seed=0, engine="local")


@pytest.fixture
def answer(tmp_path):
    test = bfl.data.load("breast_cancer", split="test").select(np.arange(20))

    def predict(model):
        folder, features = model, in_units(test)
        if isinstance(model, tf.keras.Model):
            folder = tmp_path / f"keras_{id(model)}"
            bfl.export.save(model, folder)
            features = test.features
        loaded = bfl.export.load(folder)  # Whose variables live as long as it does.
        return loaded.predict(features, num_samples=10, seed=1)["probabilities"].numpy()

    return predict


def options_of(monkeypatch, algorithm, **options):
    given = {}
    monkeypatch.setattr(bfl.algorithms, algorithm, lambda model_fn, **options: given.update(options))
    config = make_config(None, {"algorithm": algorithm, "dataset": "breast_cancer", "model": "mlp", **options})
    build.process(config, bfl.data.load("breast_cancer"), lambda: None)
    return given


def test_options_reach_the_recipes(monkeypatch):
    given = options_of(monkeypatch, "meta_vd", clients=7, embedding_size=3, uncapped=True, variance_range="clamped")
    assert (given["num_clients"], given["learner"], given.get("threshold")) == (7, "plain", None)
    assert given["variance_options"] == {"embedding_size": 3, "ranged": "clamped", "parametrization": "log_variance"}
    assert given["server_options"] == {"capped": False, "absent_decay": False}
    assert given["learning_rate"] == 0.02
    given = options_of(monkeypatch, "meta_vd", initial_rate=0.3, parametrization="log_alpha")
    assert given["variance_options"] == {"initial_rate": 0.3, "ranged": "smooth", "parametrization": "log_alpha"}
    given = options_of(monkeypatch, "meta_vd", initial_stddev=0.1, pruning_threshold=0.8)
    assert given["variance_options"] == {
        **{"middle": pytest.approx(2 * np.log(0.1)), "ranged": "smooth", "parametrization": "log_variance"}
    }
    assert given["threshold"] == 0.8 and given["server_options"]["capped"]
    assert options_of(monkeypatch, "meta_vd", logit_rate=3.0)["logit_rate"] == 3.0
    given = options_of(monkeypatch, "meta_learning", server_optimizer="sgd", server_momentum=0.9, kl_weight=0.5)
    assert (given["learner"], given["rule"], given["kl_weight"]) == ("maml", "naive_weighted_average", 0.5)
    assert given["server_optimizer"].name == "sgd" and "num_clients" not in given
    assert given["learning_rate"] == 0.1


@pytest.mark.parametrize(("learner", "steps"), [("plain", 20), ("maml", 8), ("hessian_free_maml", 8)])
def test_steps_of_a_learner(learner, steps):
    options = {"algorithm": "meta_learning", "learner": learner, "batch_size": 10, "local_epochs": 2}
    assert method_of("meta_learning").steps(make_config(None, options), 100) == steps


def test_options_reach_the_model():
    source = bfl.data.load("digits")
    build_model = lambda **options: build.model_fn(make_config(None, options), source)()
    conv_net = build_model(model="conv_net", width=4, algorithm="meta_vd", variational_initializer="uniform")
    weights = bfl.weights.get_weights(conv_net)
    assert np.abs(weights.posterior.mean[0]).max() <= 0.25
    assert [x.shape for x in weights.posterior.mean] == [(16, 8)] and weights.point[0].shape == (3, 3, 1, 4)
    np.testing.assert_allclose(weights.posterior.variance[0], np.exp(-8.5), rtol=1e-5)
    mlp = build_model(model="mlp", kind="variational_dropout", variational_layers="dense_1,dense_2")
    assert [x.shape for x in bfl.weights.get_weights(mlp).posterior.mean] == [(64, 32), (32, 10)]
    np.testing.assert_allclose(bfl.weights.get_weights(mlp).posterior.variance[0], np.exp(-8.5), rtol=1e-5)
    (wider,) = bfl.weights.get_weights(build_model(model="conv_net", initial_stddev=0.1)).posterior.variance
    np.testing.assert_allclose(wider, 0.01, rtol=1e-5)
    (flipout,) = bfl.weights.get_weights(build_model(model="conv_net")).posterior.variance
    np.testing.assert_allclose(flipout, 9e-6, rtol=1e-5)


def test_a_run_learns_and_tells_what_it_exchanged(run, program):
    rounds, summary = lines_of(run / "metrics.jsonl"), summary_of(run)
    by_hand = program[2].rounds
    for row, other in zip(rounds, by_hand, strict=True):
        assert row["nll"] == pytest.approx(other["nll"], rel=1e-4) and row["upload_bits"] == other["upload_bits"]
    assert rounds[-1]["nll"] < rounds[0]["nll"] and summary["accuracy"] > 0.7
    assert summary["upload_mb"] == pytest.approx(sum(row["upload_bits"] for row in by_hand) / 8 / 2**20)
    assert summary["pruned_weights"] == by_hand[-1]["pruned_weights"] / 3 > 0
    page = (run / "report.html").read_text()
    assert "Upload" in page and "Pruned weights per client" in page
    assert summary["dropout_rate_median"] == pytest.approx(by_hand[-1]["dropout_rate_median"], rel=1e-3)
    card = (run / "saved_model" / "model_card.md").read_text()
    for text in (page, card):
        assert "Dropout rates of clients, 95 % quantile" in text and "standard deviation over clients" in text


@pytest.mark.parametrize("client", [1, 3])
def test_the_exported_model_of_a_client_is_the_clients(run, program, answer, tmp_path, client):
    process, _, result = program
    assert call("export", run, tmp_path / "own", "--client", client) == 0
    own = bfl.weights.predictive_model(model_fn(), process.personal_weights(result.state, client))
    np.testing.assert_allclose(answer(tmp_path / "own"), answer(own), rtol=1e-3, atol=1e-5)
    another = bfl.weights.predictive_model(model_fn(), process.personal_weights(result.state, 2))
    assert np.abs(answer(tmp_path / "own") - answer(another)).max() > 1e-3
    info = bfl.export.read_info(tmp_path / "own")
    assert (info.data["client"], info.data["client_in_training"]) == (client, client < 3)
    assert info.data["dataset"] == "breast_cancer" and info.configuration["algorithm"] == "meta_vd"
    card = (tmp_path / "own" / "model_card.md").read_text()
    assert f"the personal model of client {client} of a federation" in card
    assert ("held out of training" in card) == (client == 3)
    assert "personal model of client" not in (run / "saved_model" / "model_card.md").read_text()


@pytest.mark.deep(after="test_personal.py")
def test_the_metrics_on_a_clients_card_are_of_its_own_model(run, program, tmp_path):
    process, _, result = program
    assert call("export", run, tmp_path / "own", "--client", "0") == 0
    test = bfl.data.load("breast_cancer", split="test")
    own = bfl.weights.predictive_model(model_fn(), process.personal_weights(result.state, 0))
    scores = bfl.evaluation.evaluate(own, test.features, test.labels, num_samples=3, seed=0).metrics
    assert bfl.export.read_info(tmp_path / "own").metrics == pytest.approx(scores, rel=1e-3, abs=1e-6)


def test_scores_of_the_clients_are_those_of_a_program(run, program):
    process, clients, result = program
    shards = bfl.data.load("breast_cancer", split="test").partition(bfl.data.like(clients), seed=0)
    scores = bfl.algorithms.personal.evaluate_clients(
        process,
        result,
        clients,
        shards,
        lambda model, *examples: bfl.evaluation.evaluate(model, *examples, num_samples=3).metrics,
        adaptation=bfl.algorithms.personal.work.meta_learning(model_fn, local_epochs=1, batch_size=64),
        most_examples=64,
    )
    written = lines_of(run / "clients.jsonl")
    assert [row["client"] for row in written] == [0, 1, 2]
    for row, score in zip(written, scores, strict=True):
        assert row["num_examples"] == score.num_examples
        assert row["before"]["test_nll"] == pytest.approx(score.before["test_nll"], rel=1e-3)
        assert row["after"]["test_nll"] == pytest.approx(score.after["test_nll"], rel=1e-3)
        assert row["after"]["test_nll"] != row["before"]["test_nll"]
    summary = summary_of(run)
    accuracies = [row["after"]["accuracy"] for row in written]
    assert summary["adapted_client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["adapted_client_accuracy_least"] == pytest.approx(min(accuracies))


@pytest.mark.deep(after="test_personal.py")
@pytest.mark.parametrize("noise", ["none", "another"])
def test_clients_are_scored_without_noise_or_with_anothers(noise, run, tmp_path):
    folder = tmp_path / noise
    assert call(*META_VD, "--evaluate-clients", "--client-noise", noise, "--output", folder) == 0
    assert (folder / "predictions.npz").exists()
    for own, row in zip(lines_of(run / "clients.jsonl"), lines_of(folder / "clients.jsonl"), strict=True):
        assert row["before"]["test_nll"] != own["before"]["test_nll"]
        assert (row["before"]["epistemic"] == pytest.approx(0, abs=1e-7)) == (noise == "none")


@pytest.fixture(scope="module")
def meta_learnt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "meta_learning"
    options = ["--algorithm", "meta_learning", "--server-optimizer", "sgd", "--server-momentum", "0.5"]
    assert call(*TINY, *options, "--evaluate-clients", "--output", folder) == 0
    return folder


def test_meta_learning_runs_and_scores_what_it_adapts_to(meta_learnt):
    summary = summary_of(meta_learnt)
    assert summary["accuracy"] > 0.8 and "upload_mb" not in summary
    scores = lines_of(meta_learnt / "clients.jsonl")
    assert all(row["after"]["test_nll"] < row["before"]["test_nll"] for row in scores)


def test_what_is_no_clients_model_is_one_sentence_and_status_2(meta_learnt, run, tmp_path, capsys):
    for folder, message in [
        (meta_learnt, "meta_learning makes one model for all clients, and only meta_vd and p"),
        (run / "saved_model", "is a model, not the folder of a run"),
        (tmp_path, "is neither the folder of a complete run"),
    ]:
        assert message in refusal(capsys, "export", folder, tmp_path / "own", "--client", "0")
    assert call("export", run, tmp_path / "own", "--client", "-1") == 2
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "There are 4 clients, but the server step personal (sgd, learning rate 1) has a place for 3"),
        (["--normalization", "batch", "--model", "lenet", "--dataset", "digits"], "BatchNorm depends on the batch"),
        (["--parametrization", "log_alpha", "--initial-stddev", "0.1"], "initial_stddev is a standard deviation, and"),
        (["--initial-rate", "0.3", "--initial-stddev", "0.1"], "initial_stddev and initial_rate both say where"),
        (["--parametrization", "log_alpha", "--pruning-threshold", "0.99"], "The pruning threshold is 0.99, but log"),
        (
            [
                *("--parametrization", "log_alpha", "--variances", "constant_variances", "--initial-rate", "0.3"),
                *("--pruning-threshold", "0.8"),
            ],
            "The pruning threshold is 0.8, but constant log alpha of -0.847 gives dropout rates up to 0.3, so that",
        ),
        (["--variances", "common_variances", "--absent-decay"], "common_variances has none: leave it out."),
        (["--variances", "constant_variances", "--uncapped"], "constant_variances learns none."),
        (["--variances", "constant_variances", "--variance-range", "clamped"], "ranged restricts learned logits, and"),
        (["--variances", "free_variances", "--embedding-size", "2"], "no option of variances 'free_variances' 'embedd"),
        (["--variational-layers", "dens"], "no layer for variational_layers 'dens'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(options, message, capsys, tmp_path, monkeypatch):
    if not options:  # As the command line gives every client a place, one is taken away.
        meta_vd = bfl.algorithms.meta_vd
        fewer = lambda model_fn, num_clients, **rest: meta_vd(model_fn, num_clients=num_clients - 1, **rest)
        monkeypatch.setattr(bfl.algorithms, "meta_vd", fewer)
        options = ["--clients", "4"]
    assert message in refusal(capsys, *TINY, "--algorithm", "meta_vd", *options, "--output", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.deep(after="tests/app/test_personal.py")
def test_personal_posteriors_are_exported_and_unknown_clients_get_the_common_one(answer, tmp_path):
    whole = [*TINY, "--algorithm", "p_fed_bayes", "--evaluate-clients", "--output", str(tmp_path / "run")]
    assert call(*whole) == 0
    for client in (0, 1, 3):
        assert call("export", tmp_path / "run", tmp_path / f"{client}", "--client", f"{client}") == 0
    own, other, stranger = (answer(tmp_path / f"{client}") for client in (0, 1, 3))
    assert np.abs(own - other).max() > 1e-3
    np.testing.assert_allclose(stranger, answer(tmp_path / "run" / "saved_model"), atol=1e-6)
    assert len(lines_of(tmp_path / "run" / "clients.jsonl")) == 3


@pytest.mark.long
@pytest.mark.deep(after="tests/app/test_personal.py")
def test_augmented_images_and_tables_that_are_none(tmp_path, capsys):
    small = "--rounds 1 --local-epochs 1 --num-samples 2 --clients 2 --engine local --model lenet --kind deterministic"
    digits = ["run", "--dataset", "digits", *small.split(), "--algorithm", "fed_opt"]
    nlls = []
    for name, extra in (("plain", []), ("cropped", ["--augmentation", "crop_and_flip:2"])):
        assert call(*digits, *extra, "--output", tmp_path / name) == 0
        nlls.append(lines_of(tmp_path / name / "metrics.jsonl")[0]["nll"])
    assert nlls[0] != nlls[1]
    capsys.readouterr()
    of_table = [*TINY, "--augmentation", "crop_and_flip:2", "--output", tmp_path / "table"]
    assert "crop_and_flip is of images" in refusal(capsys, *of_table)


def test_clients_who_are_never_in_training_are_scored_apart(tmp_path, capsys):
    options = ["--algorithm", "meta_vd", "--dataset", "breast_cancer", "--model", "mlp", "--clients", "3"]
    options += ["--unseen-clients", "2", "--evaluate-clients", "--rounds", "1", "--num-samples", "2"]
    assert call("run", *options, "--engine", "local", "--output", tmp_path / "run") == 0
    written, summary = (lines_of(tmp_path / "run" / "clients.jsonl"), json_of(tmp_path / "run/summary.json"))
    assert [row["client"] for row in written] == [0, 1, 2, 3, 4]
    for whose, rows in {"client": written[:3], "unseen_client": written[3:]}.items():
        accuracies = [row["before"]["accuracy"] for row in rows]
        assert summary[f"{whose}_accuracy"] == pytest.approx(np.mean(accuracies))
        assert summary[f"{whose}_accuracy_least"] == pytest.approx(min(accuracies))
        assert f"adapted_{whose}_accuracy" in summary
    rounds = lines_of(tmp_path / "run" / "metrics.jsonl")
    held = sum(row["num_examples"] for row in written)
    assert held == bfl.data.load("breast_cancer").num_examples > rounds[0]["num_examples"]
    assert rounds[0]["num_clients"] == 3


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"algorithm": "meta_learning", "kl_weight": 0.05}, {"kl_weight": 0.05, "kl_reduction": "sum"}),
        ({"algorithm": "meta_vd", "kl_reduction": "mean"}, {"kl_weight": 1.0, "kl_reduction": "mean"}),
        (
            {"algorithm": "meta_vd", "class_weight": "benign=3"},
            {"kl_weight": 1.0, "kl_reduction": "sum", "likelihood": "class_weighted:1,3"},
        ),
        ({"algorithm": "p_fed_bayes"}, {"kl_weight": 0.0}),
    ],
)
def test_the_step_of_adaptation_is_by_the_loss_of_training(options, wanted, monkeypatch):
    given = {}
    monkeypatch.setattr(
        bfl.algorithms.personal.work, "meta_learning", lambda model_fn, **options: given.update(options)
    )
    config = make_config(None, {"dataset": "breast_cancer", "model": "mlp", **options})
    clients = bfl.data.load("breast_cancer").partition(bfl.data.iid(3), seed=0)
    client_scores.one_step(config, types.SimpleNamespace(model_fn=None), clients)
    assert {name: given[name] for name in ("kl_weight", "kl_reduction", "likelihood") if name in given} == wanted
