"""`tfp-bfl laplace` and `last-layer`: posteriors for a finished run of federated averaging; clients leave and join."""

import functools
import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.app.test_revise import run
from tests.kit import call, refusal, summary_of
from tests.units import in_units
from tfp_bfl.algorithms.held import Held
from tfp_bfl.app.one_run import after
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(30)  # three runs serve the tests of the file

RUN = "run --algorithm fed_opt --model mlp --partition iid --clients 3 --rounds 2 --engine local --num-samples 4"
DATA = {"laplace": "breast_cancer", "last-layer": "diabetes"}
COMMANDS = pytest.mark.parametrize("command", DATA)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return functools.cache(lambda data: run([*RUN.split(), "--dataset", data], folder / data))


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    options = [*RUN.split(), "--dataset", "breast_cancer", "--hold-out", "0.3"]
    return run(options, tmp_path_factory.mktemp("runs") / "held_out")


@pytest.fixture(scope="module")
def posteriors(averaged):
    @functools.cache
    def found(command):
        folder = averaged(DATA[command]).parent / command
        given = ["--temperature", 1] if command == "laplace" else []
        assert call(command, averaged(DATA[command]), *given, "--output", folder) == 0
        return folder

    return found


def predicted(folder, command):
    loaded, test = bfl.export.load(bfl.export.find(folder)), bfl.data.load(DATA[command], split="test")
    found = loaded.predict(in_units(test), num_samples=4, seed=0)
    return found["probabilities" if command == "laplace" else "mean"].numpy()


@pytest.mark.deep(after="tests/app/test_laplace.py")
@COMMANDS
def test_the_folder_is_complete_and_predicts(averaged, posteriors, command):
    folder, test = posteriors(command), bfl.data.load(DATA[command], split="test")
    assert {p.name for p in folder.iterdir()} == {"config.yaml", "clients.npz", "saved_model", "summary.json"}
    found, state = summary_of(folder), Held.load(folder / "clients.npz")
    assert found["clients"] == ["0", "1", "2"] and found["epistemic"] > 1e-4
    assert summary_of(averaged(DATA[command]))["epistemic"] == 0
    approximation = state.settings.approximate(state.rows, state.weights)
    assert approximation.log_marginal_likelihood == pytest.approx(found["log_marginal_likelihood"])
    if command == "laplace":
        right = predicted(folder, command).argmax(1) == test.labels
        assert right.mean() == pytest.approx(found["accuracy"]) and found["accuracy"] > 0.8
        assert found["structure"] == "last_layer"
        assert sum(int(x.num_examples) for x in state.rows.values()) == len(bfl.data.load("breast_cancer").labels)
    else:
        assert found["rmse"] < test.target.stddev and found["rounds"] == 1 and found["distance"] == 0
        assert approximation.noise_stddev * test.target.scale == pytest.approx(found["noise_stddev"])
        assert 10 < found["noise_stddev"] < test.target.stddev
        assert "exact posterior of the last layer" in (folder / "saved_model" / "model_card.md").read_text()


@pytest.mark.deep(after="tests/app/test_laplace.py")
@COMMANDS
def test_clients_leave_and_join(posteriors, command, tmp_path, capsys):
    folder = posteriors(command)
    assert call("clients", "show", folder) == 0
    assert "share of the " in capsys.readouterr().out
    assert call("clients", "remove", folder, "1", "--output", tmp_path / "two") == 0
    assert "2 clients: " in capsys.readouterr().out
    two, three = summary_of(tmp_path / "two"), summary_of(folder)
    assert two["clients"] == ["0", "2"] and two.keys() == three.keys() - {"warnings"}
    assert all(two[name] == three[name] for name in ("temperature", "temperature_by"))
    assert two["log_marginal_likelihood"] > three["log_marginal_likelihood"]
    assert "temperature_by" in bfl.export.read_info(tmp_path / "two" / "saved_model").configuration
    assert np.abs(predicted(tmp_path / "two", command) - predicted(folder, command)).max() > 1e-4
    assert call("clients", "add", tmp_path / "two", folder, "1", "--output", tmp_path / "three") == 0
    again = predicted(tmp_path / "three", command)
    np.testing.assert_allclose(again, predicted(folder, command), rtol=1e-4, atol=1e-4)


@pytest.mark.deep(after="tests/app/test_laplace.py")
def test_a_diagonal_has_linearised_scores(averaged, tmp_path, capsys):
    given = ["--structure", "diagonal", "--prior-by-layer", "--temperature", "0.5"]
    assert call("laplace", averaged("breast_cancer"), *given, "--output", tmp_path / "diagonal") == 0
    found = summary_of(tmp_path / "diagonal")
    assert len(found["prior_stddev"]) > 1 and found["temperature"] == 0.5 and found["linearised_test_nll"] > 0
    assert f"linearised: accuracy {found['linearised_accuracy']:.4f}" in capsys.readouterr().out


@pytest.mark.deep(after="tests/app/test_laplace.py")
@COMMANDS
def test_a_run_with_dropout_predicts_without_it(command, tmp_path):
    start = run([*RUN.split(), "--dataset", "breast_cancer", "--kind", "mc_dropout"], tmp_path / "dropout")
    assert summary_of(start)["epistemic"] > 1e-4
    assert call(command, start, "--temperature", 1e-6, "--output", tmp_path / "cold") == 0
    assert summary_of(tmp_path / "cold")["epistemic"] < 1e-5
    info = bfl.export.read_info(tmp_path / "cold" / "saved_model")
    assert info.configuration["weights"].endswith(", without dropout")
    assert call("clients", "remove", tmp_path / "cold", "1", "--output", tmp_path / "two") == 0
    assert summary_of(tmp_path / "two")["epistemic"] < 1e-5


@pytest.mark.deep(after="tests/app/test_laplace.py")
def test_noise_is_in_units_of_the_label(averaged, tmp_path, capsys):
    given = ["--noise-stddev", "50", "--prior-stddev", "0.5", "--temperature", "0.5"]
    assert call("last-layer", averaged("diabetes"), *given, "--output", tmp_path / "given") == 0
    assert "noise standard deviation 50; prior standard deviation 0.5;" in capsys.readouterr().out
    assert summary_of(tmp_path / "given")["temperature"] == 0.5


@COMMANDS
@pytest.mark.parametrize("has_rows", [False, True])
def test_the_temperature_is_chosen_and_stated(averaged, held_out, command, has_rows, tmp_path, capsys):
    """By held-out rows, else a default."""
    folder = held_out if has_rows else averaged("breast_cancer")
    assert call(command, folder, "--output", tmp_path / "chosen") == 0
    found, out = summary_of(tmp_path / "chosen"), capsys.readouterr().out
    assert f"posterior temperature {found['temperature']:g}: {found['temperature_by']}" in out
    assert found["temperature"] in (after.GRID if has_rows else [0.01])
    assert ("the run has no held-out rows" if not has_rows else "held-out rows, of") in found["temperature_by"]
    info = bfl.export.read_info(tmp_path / "chosen" / "saved_model").configuration
    assert info["temperature"] == found["temperature"] and info["temperature_by"] == found["temperature_by"]
    card = (tmp_path / "chosen" / "saved_model" / "model_card.md").read_text()
    assert found["temperature_by"] in card
    if found["temperature"] != 1:
        assert f"covariance is {found['temperature']:g} times the Bayesian one" in " ".join(card.split())


@COMMANDS
def test_the_temperature_scales_the_covariance_alone(averaged, command, tmp_path):
    found, means = {}, {}
    for temperature in (0.001, 1.0):
        output = tmp_path / str(temperature)
        given = ["--temperature", temperature, "--output", output]
        assert call(command, averaged("breast_cancer"), *given) == 0
        found[temperature] = summary_of(output)
        means[temperature] = Held.load(output / "clients.npz").pool().posterior.mean
        assert found[temperature]["temperature_by"] == "given"
    for name in ("prior_stddev", "log_marginal_likelihood", "effective_parameters", "distance"):
        assert found[0.001][name] == found[1.0][name]
    for a, b in zip(means[0.001], means[1.0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert found[0.001]["epistemic"] < 0.1 * found[1.0]["epistemic"]


def test_a_run_of_the_algorithm_is_the_command(averaged, posteriors, tmp_path):
    """On the command line and in Python; the options are the same."""
    start = averaged("breast_cancer")
    options = ["--algorithm", "laplace", "--start", start, "--temperature", 1, "--structure", "last_layer"]
    assert call("run", *options, "--output", tmp_path / "run") == 0
    found = bfl.run(tmp_path / "python", algorithm="laplace", start=start, temperature=1.0)
    assert summary_of(tmp_path / "run") == found.summary == summary_of(posteriors("laplace"))


@pytest.mark.deep(after="tests/app/test_laplace.py")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("laplace {tmp}", "is not the folder of a complete run"),
        ("last-layer {tmp}", "is not the folder of a complete run"),
        ("laplace {posterior}", "has a posterior already"),
        ("laplace {run} --structure kron", "structure 'kron'"),
        ("laplace {run} --temperature 0", "temperature"),
        ("laplace {run} --prior-by-layer", "prior_by_layer is for"),
        ("last-layer {run} --noise-stddev 0", "noise_stddev"),
        ("run --algorithm laplace", "laplace finds a posterior at the weights"),
        ("run --start {run}", "give the algorithm laplace or last_layer"),
        ("run --start {run} --algorithm laplace --local-epochs 3", "option of laplace 'local_epochs'"),
        ("run --start {run} --algorithm laplace --rounds 3", "option of laplace 'rounds'"),
        ("run --start {run} --algorithm laplace --seeds 0..2", "leave --seeds out"),
        ("run --structure diagonal", "structure is an option of laplace"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(averaged, posteriors, command, words, tmp_path, capsys):
    folders = {"tmp": tmp_path, "posterior": posteriors("laplace"), "run": averaged("breast_cancer")}
    arguments = [part.format(**folders) for part in command.split()]
    assert words in refusal(capsys, *arguments, "--output", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_exists_and_a_start_alone_are_refused(averaged, posteriors, tmp_path, capsys):
    output = ["--output", posteriors("laplace")]
    assert "exists already" in refusal(capsys, "laplace", averaged("breast_cancer"), *output)
    with pytest.raises(InvalidArgument, match="give the algorithm laplace or last_layer"):
        bfl.run(tmp_path / "new", start=averaged("breast_cancer"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "variational", "kind": "flipout"}, "is a run of kind 'flipout'"),
        ({"algorithm": "fed_ag"}, "has found a posterior already"),
        ({"algorithm": "fed_sgld"}, "ends with more than one network"),
        ({"algorithm": "fed_opt", "class_weight": "balanced"}, "was trained with class weights, and"),
    ],
)
def test_runs_that_end_otherwise_are_refused(options, words, tmp_path, capsys, monkeypatch):
    config = make_config(None, {"dataset": "breast_cancer", "model": "mlp", "clients": 3, **options})
    (tmp_path / "config.yaml").write_text(config.record(), encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps({}), encoding="utf-8")
    first = lambda process, *given: process.predictive_weights(process.local.initialize())
    monkeypatch.setattr(after, "final_weights", first)
    for command in DATA:
        assert words in refusal(capsys, command, tmp_path, "--output", tmp_path / "new")
