"""The command line as a user meets it: results on disk, exit statuses, one sentence for what is wrong."""

import os
import re
import shlex
import subprocess
import sys

import click
import numpy as np
import pytest
import tensorflow as tf
import yaml

from tests.kit import call, facts_of, lines_of, refusal, summary_of
from tfp_bfl.app.cli import cli, clients
from tfp_bfl.app.options.config import fields
from tfp_bfl.engines import tff
from tfp_bfl.options.methods import serves

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

FLAGS = "--model mlp --rounds 3 --local-epochs 1 --examples-per-client 40 --num-samples 4 --evaluate-every 2"
SMALL = FLAGS.split()
# Where what is asked for does not depend on the engine.
LOCAL = ("--engine", "local")
SWAG = ["run", "--algorithm", "fl_swag", "--dataset", "breast_cancer", "--model", "mlp", "--partition", "iid"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert call("run", *SMALL, "--output", folder, "--tracker", "tensorboard") == 0
    return folder


def rows(folder):
    return lines_of(folder / "metrics.jsonl")


def without_clock(row):
    return {name: value for name, value in row.items() if "seconds" not in name}


def test_run_folder_is_complete(small_run):
    lines = rows(small_run)
    assert [row["round"] for row in lines] == [1, 2, 3]
    assert ["accuracy" in row for row in lines] == [False, True, True]
    assert {"nll", "kl", "tempered_elbo", "stddev_median", "share_at_floor", "train_seconds"} <= {*lines[0]}
    summary = summary_of(small_run)
    assert {"accuracy", "test_nll", "ece", "mce", "brier", "epistemic_share", "ms_per_step"} <= set(summary)
    # Only the workers of TensorFlow Federated are processes of their own.
    assert (summary["worker_mb"] > 10) == tff.is_installed() and summary["process_mb"] > 100
    assert {path.stem for path in (small_run / "figures").iterdir()} == {
        "learning_curve",
        "reliability_diagram",
        "retention_curves",
        "client_labels",
        "uncertain_examples",
    }
    assert list((small_run / "tensorboard").glob("events.*"))
    page = (small_run / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert (page.count("image/svg+xml"), page.count("image/png")) == (4, 16)


def test_saved_model_of_a_run_predicts(small_run):
    loaded = tf.saved_model.load(str(small_run / "saved_model"))
    answer = loaded.predict(tf.zeros([2, 8, 8, 1]), num_samples=3, seed=0)
    assert answer["probabilities"].shape == (2, 10)
    assert set(answer) >= {"probabilities", "entropy", "aleatoric", "epistemic"}


@pytest.mark.deep(after="test_cli.py")
def test_run_can_be_repeated_from_its_folder(small_run, tmp_path):
    again, facts = tmp_path / "again", facts_of(small_run / "report.html")
    assert facts["Data"].startswith("digits, ") and facts["Outcome"].startswith("10 classes: 0, 1, 2")
    program, *command = shlex.split(facts["Command"])
    assert program == "tfp-bfl" and call(*command, "--output", again) == 0
    assert [without_clock(row) for row in rows(again)] == [without_clock(row) for row in rows(small_run)]
    config = yaml.safe_load((again / "config.yaml").read_text())
    assert config == yaml.safe_load((small_run / "config.yaml").read_text())


def test_existing_folder_is_left_alone(small_run, capsys):
    before = {path: path.stat().st_mtime_ns for path in small_run.rglob("*")}
    assert "exists already" in refusal(capsys, "run", *SMALL, "--output", small_run)
    assert {path: path.stat().st_mtime_ns for path in small_run.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--dataset", "digist"], "did you mean 'digits'"),
        (["run", "--dataset", "breast_cancer", "--model", "lenet"], "lenet takes images"),
        (["run", "--clients", "2000", "--partition", "iid"], "2000 clients can't share"),
        (["run", "--config", "absent.yaml"], "can't be read"),
        (["run", "--pretrain-share", "0.99"], "leaves client"),
        (["run", "--pretrain-share", "0.001"], "set more aside"),
        (["run", "--robust", "median", "--weighting", "max_discrepancy"], "use 'equal', or the robust aggregator clip"),
        ([*SWAG, "--clients", "60"], "Client 0 has 8 examples, but each must have at least 10 here (too few have 60"),
        ([*SWAG, "--collect-every", "19"], "each must have at least 97 here"),
        ([*SWAG, "--local-epochs", "2"], "SWAG needs at least two columns, but of 2 local epochs 1 are burn-in"),
        (["run", "--algorithm", "fed_be", "--unlabelled-share", "0.99"], "leaves client"),
        (["run", "--ruel", "x"], "--rule"),
        (["runn"], "There is no command 'runn': did you mean 'run'"),
        (["train"], "There is no command 'train': did you mean 'run'"),
        (["run", "--lr", "0.1"], "There is no option '--lr': did you mean '--learning-rate'?"),
        (["run", "--mu", "0.1"], "There is no option '--mu': did you mean '--proximal'?"),
        (["run", "--wandb"], "There is no option '--wandb': --help lists those that there are."),
        (["run", "--jobs", "4"], "There is no option '--jobs': --help lists"),
        (
            ["deploy", "run", "a", "--backbone", "b"],
            "no option '--backbone': it belongs to tfp-bfl run, of data in one",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = ["--output", "new"] if arguments[0] == "run" else []
    assert message in refusal(capsys, *arguments, *output)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("output", ["file/sub", "link"])
def test_unusable_output_is_one_sentence_and_status_2(output, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("nowhere")
    assert call("run", *SMALL, "--output", output) == 2
    assert capsys.readouterr().err.startswith(f"tfp-bfl: The run folder {output}")
    assert (tmp_path / "file").read_text() == "kept" and (tmp_path / "link").is_symlink()


def test_overview_has_examples_and_exit_statuses(capsys):
    assert call("--help") == 0
    text = capsys.readouterr().out
    for command in ("run --output my_run", "predict my_run scans/", "export my_run my_model"):
        assert f"  tfp-bfl {command}  " in text
    assert all(re.search(rf"^ *{status}  +\w", text, re.MULTILINE) for status in (0, 1, 2, 130))


@pytest.mark.deep(after="test_cli.py")
def test_a_full_disk_is_one_sentence_and_status_1():
    command = [sys.executable, "-m", "tfp_bfl", "list"]
    with open("/dev/full", "w") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert answer.returncode == 1
    assert answer.stderr.endswith("tfp-bfl: there is no space left on the disk: make some, then try again.\n")
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell, capsys):
    assert call("completion", shell) == 0
    assert f"_TFP_BFL_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_completion_of_another_shell_is_bad_input(capsys):
    assert "'tcsh' is not one of" in refusal(capsys, "completion", "tcsh")


@pytest.mark.deep(after="test_cli.py")
def test_an_option_is_completed_as_the_script_asks():
    asked = {"_TFP_BFL_COMPLETE": "bash_complete", "COMP_WORDS": "tfp-bfl run --ru", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "tfp_bfl"]
    answer = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert answer.stdout == "plain,--rule\n"


@pytest.mark.parametrize(
    "command", [[], *([name] for name in cli.commands), *(["clients", name] for name in clients.commands)]
)
def test_help_fits_a_terminal_of_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert call(*command, "--help") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_what_matters_first_is_first(capsys):
    assert call("run", "--help") == 0
    first = capsys.readouterr().out.split("Options:")[1].split("More options:")[0]
    names = ["dataset", "model", "algorithm", "rule", "rounds", "output"]
    assert re.findall(r"^  --([a-z]+)", first, re.MULTILINE) == names


def test_help_lists_every_option(capsys):
    assert call("run", "--help") == 0
    text = capsys.readouterr().out
    for name in fields():
        assert text.count(f"  --{name.replace('_', '-')} ") == 1
    assert "--config FILE" in text and "--resume RUN" in text and "Examples:" in text
    own = text[text.index("Options of fl_swag:") :]
    own = own[: own.index("\n\n")]
    assert "--max-columns" in own and "--rounds" not in own and "--rule" not in own
    assert "[default: 60; 1 for fl_swag; 2 for head; 30 for" in " ".join(text.split())


@pytest.mark.parametrize("given", [["--algorithm", "fed_prox"], ["--algorithm=FedProx"]])
def test_help_of_one_algorithm_has_its_options_alone(capsys, given):
    assert call("run", *given, "--help") == 0
    text = capsys.readouterr().out
    for name in fields():
        assert text.count(f"  --{name.replace('_', '-')} ") == serves(name, "fed_prox"), name
    assert "Options of fed_prox:" in text and "--proximal NUMBER" in text and "Examples:" in text


def test_help_has_choices_and_types(capsys):
    assert call("run", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "VALUE" not in text
    assert "--engine tff|local|compiled|ray" in text and "--rounds INTEGER" in text and "--learning-rate NUMBER" in text
    assert "One of sgd, momentum, nesterov, adagrad, rmsprop, adam." in text
    assert "mean_precision_average" in text[text.index("--rule NAME") : text.index("--rounds INTEGER")]


def test_choices_are_completed():
    (option,) = [x for x in cli.commands["run"].params if x.name == "server_optimizer"]
    found = option.shell_complete(click.Context(cli.commands["run"]), "ad")
    assert [item.value for item in found] == ["adam", "adagrad"]


def test_list_and_no_arguments(capsys):
    assert call("list") == 0
    listed = capsys.readouterr().out
    assert listed.startswith("algorithms:\n  default         var") and "\n  fl_swag         one round of" in listed
    for choices in (
        "optimizers: sgd (1), adam (0.01), yogi (0.03), adagrad (0.1)\n",
        "kernels: epanechnikov, gaussian\n",
        "bandwidths: silverman, ",
    ):
        assert choices in listed
    assert "log_linear_pool" in listed and "robust aggregators: clip:MAX_NORM, trimmed:SHARE, median" in listed
    assert "dirichlet:ALPHA, lda:ALPHA, pachinko:ALPHA, noniid_datasets:OTHER_INTEREST" in listed
    assert call() == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.deep(after="test_cli.py")
def test_pretraining_updated_priors_and_gathered_weights(tmp_path):
    """With pre-training one round of distributed weight consolidation classifies; without, its accuracy is chance's."""
    options = "--rule distributed_weight_consolidation --weighting max_discrepancy --rounds 2 --num-samples 4"
    options += " --partition iid --pretrain-share 0.3 --update-prior --learning-rate-decay 0.5 --silent-rounds 1"
    options += " --prior-stddev 10"
    assert call("run", *options.split(), *LOCAL, "--output", tmp_path / "run") == 0
    summary = summary_of(tmp_path / "run")
    assert summary["pretrained_epochs"] > 5 and summary["pretrained_accuracy"] > 0.85
    assert 0.8 < summary["pretrained_test_accuracy"] < 1 and 0 < summary["pretrained_test_nll"] < 1
    assert summary["accuracy"] > 0.8
    lines = rows(tmp_path / "run")
    assert all(0.1 <= row["largest_share"] < 1 for row in lines)
    assert all(row["kl"] < 1000 for row in lines)  # to the last posterior; to the layers' own prior some 400,000
    with np.load(tmp_path / "run" / "predictions.npz") as arrays:
        right = arrays["probabilities"].argmax(1) == arrays["labels"]
        assert right.mean() == pytest.approx(summary["accuracy"])
        for name in ("entropy", "aleatoric", "epistemic"):
            assert arrays[name].mean() == pytest.approx(summary[name], rel=1e-4)


@pytest.mark.deep(after="tests/federated/test_faults.py")
def test_a_run_without_a_sound_client_ends_with_status_1(tmp_path, capsys):
    folder = tmp_path / "run"
    options = [*SMALL, "--max-change-norm", "1e-9", "--cohort-size", "2", "--max-retries", "1", "--output", str(folder)]
    options += ["--kind", "deterministic", "--pretrain-share", "0.1", *LOCAL]
    assert call("run", *options) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("tfp-bfl: No training succeeded in round 1, in 2 attempts: every client was faulty")
    assert "change beyond max_change_norm" in error and not (folder / "summary.json").exists()
    assert (folder / "pretraining.json").exists()  # The bound is on clients, not on the server.


def test_module_is_the_entry_point():
    done = subprocess.run([sys.executable, "-m", "tfp_bfl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tfp-bfl") and not done.stderr


def without_tff(folder, *options):
    program = (
        "import sys\n"
        "sys.modules['tensorflow_federated'] = None\n"
        "from tfp_bfl.__main__ import main\n"
        f"sys.argv = ['tfp-bfl', 'run', '--output', {str(folder)!r}, *{options!r}]\n"
        "main()\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.deep(after="tests/federated/test_local.py")
def test_without_tff_a_run_is_this_processs(tmp_path):
    options = ("--dataset", "breast_cancer", "--model", "mlp", "--kind", "deterministic", "--rounds", "1")
    done = without_tff(tmp_path / "new", *options)
    assert done.returncode == 0, done.stderr
    assert summary_of(tmp_path / "new")["worker_mb"] == 0


@pytest.mark.deep(after="tests/federated/test_local.py")
def test_missing_tff_is_one_sentence(tmp_path):
    done = without_tff(tmp_path / "new", "--engine", "tff")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "install" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_a_bad_value_is_answered_before_tensorflow_is_imported():
    program = (
        "import sys\n"
        "from tfp_bfl.app.cli import run_command_line\n"
        "for bad in ('--rounds 0', '--rule foo', '--algorithm fedavgg', '--partition a'):\n"
        "  assert run_command_line(['run', *bad.split()]) == 2 and 'tensorflow' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


@pytest.mark.deep(after="tests/app/test_doctor.py")
def test_doctor_without_tff():
    program = "import sys; sys.modules['tensorflow_federated'] = None; from tfp_bfl.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "doctor"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "optional, not installed: runs use the engine 'local'" in done.stdout
    assert "requirements/py311.lock" in done.stdout
