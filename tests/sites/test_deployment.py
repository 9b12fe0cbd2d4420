"""A federation of sites with configuration files and messages as bytes, without NVIDIA FLARE."""

import functools
import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import fails, json_of, lines_of, refuses, summary_of
from tests.sites import channel
from tests.sites.channel import OPTIONS, run
from tfp_bfl.app.options import own_model
from tfp_bfl.files.arrays import stored_arrays
from tfp_bfl.sites.deployment.channel import ROUND, SCORE
from tfp_bfl.sites.deployment.demo import HOSPITALS
from tfp_bfl.sites.deployment.jobs import make_job, to_json
from tfp_bfl.sites.deployment.member import VersionFiles
from tfp_bfl.sites.deployment.party_file import FILE, SECRET, read_file
from tfp_bfl.sites.deployment.site import Site, check
from tfp_bfl.sites.deployment.submit import submit, write_job

pytestmark = pytest.mark.cpu_seconds(60)  # each test has sites that build a model


class Channel(channel.Channel):
    """The hospitals in this process."""

    def __init__(self, folder, lies=None):
        super().__init__({name: Site(folder / name / "local") for name in HOSPITALS}, lies)


def last_scored(channel):
    """The weights that were last sent for scores."""
    return stored_arrays([content for task, _, content in channel.sent if task == SCORE][-1], "message", 2**30)


def central_scores(channel, **options):
    """Score the weights that were last sent on the test data of all sites in one place; return these labels too."""
    sites, weights = [channel.sites[name] for name in sorted(HOSPITALS)], last_scored(channel)
    model, config = sites[0]._process.model_fn(), sites[0]._config
    spec = bfl.weights.predictive_spec(model, weights)
    model = bfl.weights.predictive_model(model, bfl.sites.from_arrays(weights, spec))
    features, labels = (np.concatenate([getattr(x._held, name) for x in sites]) for name in ("features", "labels"))
    return bfl.evaluation.evaluate(model, features, labels, config.num_samples, config.seed, **options), labels


def predicted(folder, done, label, task="classification", **options):
    """Predict the test data of all sites by name with the exported model; return these data too."""
    files = [folder / name / "local" / "patients.csv" for name in sorted(HOSPITALS)]
    tests = [bfl.data.read_own(file, label, task=task).test for file in files]
    raw = [t.features * [c.stddev for c in t.columns] + [c.mean for c in t.columns] for t in tests]
    model = bfl.export.load(done / "saved_model")
    return model.predict(np.concatenate(raw).astype(np.float32), **options), tests


def test_a_run_leaves_what_a_simulation_does_and_scores_from_sums(hospitals):
    channel = Channel(hospitals)
    done = run(hospitals, channel, options={**OPTIONS, "tracker": "tensorboard"})
    assert list((done / "tensorboard").glob("events.*"))
    summary, rounds = summary_of(done), lines_of(done / "metrics.jsonl")
    assert summary["num_clients"] == 3 and len(rounds) == 2
    for name in ("seconds", "train_seconds"):
        assert summary[name] == pytest.approx(sum(row[name] for row in rounds))
    assert set(summary["parties"]) == set(HOSPITALS) and summary["accuracy"] > 0.7
    assert {row["client"] for row in summary["clients"]} == set(HOSPITALS)
    for row in summary["clients"]:
        assert row["accuracy"] == pytest.approx(summary["parties"][row["client"]]["accuracy"])
        assert row["accuracy_low"] < row["accuracy"] and {"sensitivity", "specificity", "test_nll"} <= row.keys()
    # What they score together is what their model scores on all of their test data in one place.
    central, labels = central_scores(channel)
    for name in ("accuracy", "test_nll", "brier", "ece", "entropy", "aleatoric", "epistemic"):
        assert summary[name] == pytest.approx(central.metrics[name], rel=1e-4, abs=1e-6), name
    sums = dict(np.load(done / "scores.npz"))
    assert all(sums[name] == pytest.approx(sum(sums[f"{n}/{name}"] for n in HOSPITALS)) for name in ("count", "nll"))
    # Retention, and a limit above which to abstain: at the edges of 200 bins of the entropy.
    curve, right = bfl.evaluation.risk_coverage_of(sums), central.probabilities.argmax(-1) == labels
    # The scores above differ in their last digits, so an entropy at an edge may lie on either side of it.
    near = 1e-3
    for limit, coverage, risk in zip(curve.limit, curve.coverage, curve.risk):
        surely, perhaps = central.entropy <= limit - near, central.entropy <= limit + near
        wrong = coverage * risk
        assert surely.mean() - 1e-4 <= coverage <= perhaps.mean() + 1e-4
        assert np.mean(surely & ~right) - 1e-4 <= wrong <= np.mean(perhaps & ~right) + 1e-4
    limit = bfl.evaluation.abstention_limit(*bfl.evaluation.as_examples(sums), coverage=0.8).limit
    assert np.mean(central.entropy <= limit + near) >= 0.8 and np.mean(central.entropy <= limit - 1 / 200) < 0.8
    # And the exported model is that one, by draws of its own.
    answer, _ = predicted(hospitals, done, "diagnosis")
    assert np.mean(answer["label"] == central.probabilities.argmax(-1)) > 0.98
    info = bfl.export.read_info(done / "saved_model")
    assert info.class_names == ["benign", "malignant"] and info.data["parties"] == sorted(HOSPITALS)
    assert info.configuration["rounds"] == 2 and "dataset" not in info.configuration
    page = (done / "report.html").read_text()
    for part in ("Learning curve", "Error rate and coverage", "Reliability diagram", "Sites", *HOSPITALS):
        assert part in page
    assert page.count("data:image/") == 3 and f"{summary['accuracy']:.1%}" in page
    # No message to a site contains an example, a secret or a seed.
    secrets = [(hospitals / n / "local" / SECRET).read_bytes() for n in HOSPITALS]
    assert not any(secret in content for secret in secrets for _, _, content in channel.sent)
    assert oct((hospitals / "north" / "local" / SECRET).stat().st_mode)[-3:] == "600"
    refuses("run first is complete", run, hospitals, Channel(hospitals))
    # But not for whoever submitted it and did not see its end.
    assert run(hospitals, Channel(hospitals), again=True) == done
    assert summary_of(done) == summary


@pytest.mark.deep(after="test_deployment.py")
@pytest.mark.parametrize("algorithm, kind", [
    ("fl_swag", bfl.posterior.LowRank), ("fed_ag", bfl.posterior.MeanField), ("fed_sgld", None), ("qlsd", None),
])  # fmt: skip
def test_sites_score_samples_of_a_posterior_over_point_weights(hospitals, algorithm, kind):
    """And so what the run leaves: the sums' epistemic part is that of the exported model, and is there."""
    channel = Channel(hospitals)
    options = {"algorithm": algorithm, "model": "mlp", "num_samples": 60, "rounds": 1 if algorithm == "fl_swag" else 3}
    done = run(hospitals, channel, options={**options, **({} if algorithm == "qlsd" else {"local_epochs": 3})})
    summary = summary_of(done)
    assert set(summary["parties"]) == set(HOSPITALS)
    answer, _ = predicted(hospitals, done, "diagnosis", num_samples=60)
    assert np.mean(answer["epistemic"]) == pytest.approx(summary["epistemic"], rel=0.2, abs=1e-7)
    if kind:
        assert summary["epistemic"] > 1e-6
        deviations = any(name.startswith("posterior/deviations/") for name in last_scored(channel))
        assert deviations == (kind is bfl.posterior.LowRank)


@pytest.mark.deep(after="test_deployment.py")
def test_sites_score_at_the_precision_that_the_run_names(hospitals):
    """bfloat16 has 8 bits of mantissa: the same weights get another loss, by less than a hundredth."""
    channel = Channel(hospitals)
    done = run(hospitals, channel, options={**OPTIONS, "rounds": 1, "evaluation_precision": "bfloat16"})
    summary, names = summary_of(done), ("test_nll", "brier", "entropy", "aleatoric", "epistemic")
    other = {name: central_scores(channel, precision=name)[0].metrics for name in ("bfloat16", "float32")}
    same, single = (max(abs(summary[name] - metrics[name]) for name in names) for metrics in other.values())
    assert 20 * same < single < 0.01


@pytest.mark.parametrize("secure_sums", [False, True])
def test_a_loss_that_sites_withhold_is_left_out(hospitals, secure_sums):
    if secure_sums:
        from tests.certificates import certify

        certify(hospitals, HOSPITALS)
    options = {**OPTIONS, "example_clip_norm": 1.0, "example_noise": 2.0}
    done = run(hospitals, Channel(hospitals), options=options, secure_sums=secure_sums)
    for record in (summary_of(done), *lines_of(done / "metrics.jsonl")):
        assert not {"nll", "tempered_elbo"} & record.keys() and "kl" in record
    page = (done / "report.html").read_text()
    assert "Training NLL" not in page and "ELBO" not in page


def test_compressed_messages_are_short_ones(hospitals):
    sizes, options = [], {**OPTIONS, "algorithm": "fed_opt"}
    note = lambda reply: sizes.append(len(reply)) or reply
    for name, short in {"whole": {}, "short": {"compressor": "largest:0.01", "error_memory": True}}.items():
        done = run(hospitals, Channel(hospitals, {(ROUND, "west"): note}), name, {**options, **short})
    whole, _, short, _ = sizes
    assert short < 0.2 * whole and summary_of(done)["upload_bits"] < 8 * 3 * short
    assert summary_of(done)["accuracy"] > 0.7
    # The residual stays at the site.
    assert (hospitals / "north" / "local" / "memory" / "short" / "000002.npz").exists()


@pytest.mark.deep(after="test_deployment.py")
def test_a_federation_that_predicts_numbers_has_scores_in_their_units(tmp_path):
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    for number, name in enumerate(HOSPITALS):
        local = tmp_path / name / "local"
        local.mkdir(parents=True)
        rows = np.column_stack([x, y])[number::3]
        head = ",".join([*(f"x{i}" for i in range(10)), "progression"])
        np.savetxt(local / "patients.csv", rows, delimiter=",", header=head, comments="")
        (local / FILE).write_text("data: patients.csv\nlabel: progression\ntask: regression\n", encoding="utf-8")
    options = {"model": "mlp", "rounds": 40, "local_epochs": 2, "evaluate_every": 20}
    done = run(tmp_path, Channel(tmp_path), options=options)
    summary = summary_of(done)
    # What they score together is what the exported model scores on all of their test data.
    answer, tests = predicted(tmp_path, done, "progression", "regression")
    truth = np.concatenate([t.labels * t.target.stddev + t.target.mean for t in tests])
    assert np.sqrt(np.mean((answer["mean"] - truth) ** 2)) == pytest.approx(summary["rmse"], rel=0.02)
    assert summary["rmse"] < 0.9 * truth.std() and 0.7 < summary["coverage"] <= 1
    assert set(summary["parties"]["north"]) == {"rmse", "mae", "test_nll", "coverage", "interval_width", "aleatoric",
                                                "epistemic"}  # fmt: skip
    page = (done / "report.html").read_text()
    for part in ("Learning curve", "Sites", "coverage of 90 % intervals", f"{summary['rmse']:.4g}"):
        assert part in page
    assert "Reliability" not in page


def test_a_site_refuses_what_its_file_forbids(hospitals):
    (hospitals / "west" / "local" / FILE).write_text(
        "data: patients.csv\nlabel: diagnosis\nalgorithms: [fl_swag]\nmax_rounds: 1\n"
    )
    fails(r"quorum is 3 \(west: Its file allows algorithm", run, hospitals, Channel(hospitals), quorum=3)
    site = Site(hospitals / "north" / "local")
    refuses("takes part in no run", site.answer, {})
    job = {"options": OPTIONS, "number": 0, "parties": 3, "run": "a", "schema": {}, "version": bfl.__version__}
    for change, message in (
        ({"run": "../../escape"}, "run's name is"),
        ({"version": "99.1"}, "The server has tfp_bfl 99.1, the site .*: install the same"),
        *(
            ({"options": {name: "evil.py:build"}}, f"{name} is .* run no code")
            for name in ("model", "rule", "algorithm")
        ),
        ({"options": {"dataset": "/etc"}}, "dataset is of runs with all data in one place"),
        ({}, "does not have the required form"),
    ):
        refuses(message, site.begin, json.dumps({**job, **change}))


def job_of(site, options):
    """Return the job of a run of this site and two like it."""
    own = json.loads(site.describe())
    schema = bfl.sites.agree("a", {"north": own})
    job = {"options": {"model": "mlp", **options}, "number": 0, "parties": 3, "run": "a", "schema": to_json(schema)}
    return json.dumps({**job, "version": bfl.__version__})


def test_a_site_knows_from_its_own_process_what_the_rule_uses(hospitals):
    file = hospitals / "north" / "local" / FILE
    plain = file.read_text()
    file.write_text(plain + "allow_single_posteriors: false\n")
    site = Site(hospitals / "north" / "local")
    for options in ({"robust": "median"}, {"rule": "weighted_conflation"}, {"algorithm": "fl_swag"}):
        refuses("uses each message separately", site.begin, job_of(site, options))
    site.begin(job_of(site, {"robust": "clip:3"}))
    assert "The rule mean_precision_average adds it to the other messages" in site.seen
    # Masks leave the server sums alone, whatever the rule would need.
    model_fn = functools.partial(bfl.models.mlp, "flipout", (30,), 2, hidden=(2,))
    site._process = bfl.algorithms.variational(model_fn, secure_sums=30.0)
    assert site._check_rule(30.0).startswith("The server sees the sum of the sites' messages for the rule mean_prec")
    file.write_text(plain + "rules: [conflation, total]\n")
    site = Site(hospitals / "north" / "local")
    refuses("rule conflation or total, not median mean_prec", site.begin, job_of(site, {"robust": "median"}))
    site.begin(job_of(site, {"algorithm": "qlsd", "rounds": 200, "burn_in_rounds": 100}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label: x\n", "party.yaml does not name the data of the site: add a line like 'data: rows.csv'"),
        ("data: none.csv\n", "none.csv"),
        ("data: patients.csv\nlabl: diagnosis\n", "no option 'labl' in .*party.yaml: did you mean 'label'"),
        ("data: patients.csv\nmax_rounds: 0\n", "max_rounds of .*party.yaml is 0, but must be at least 1"),
        ("data: patients.csv\nrules: conflation\n", "rules of .* is 'conflation', but must be a list of names"),
        ("data: patients.csv\nlabel: other\n", "no column 'other' in .*patients.csv for label"),
    ],
)
def test_a_file_that_says_something_else_is_one_sentence(hospitals, text, message):
    (hospitals / "north" / "local" / FILE).write_text(text)
    refuses(message, check, hospitals / "north" / "local")


def test_check_describes_the_data_of_a_site_and_prints_what_it_would_send(hospitals):
    assert read_file(hospitals / "north" / "local").data.endswith("north/local/patients.csv")
    sentence, _, content = check(hospitals / "north" / "local").split("\n", 2)
    assert "training examples (30 columns), 2 classes" in sentence
    assert json.loads(content) == json.loads(Site(hospitals / "north" / "local").describe())


def test_a_job_is_json_that_names_two_classes(tmp_path):
    folder = write_job(tmp_path, "first", OPTIONS, quorum=2, deadline=60)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["app/config/config_fed_client.json", "app/config/config_fed_server.json", "meta.json"]
    client, server, _ = (json_of(folder / file) for file in files)
    assert "folder" not in server["workflows"][0]["args"]
    assert [e["executor"]["path"] for e in client["executors"]] == ["tfp_bfl.sites.deployment.flare.Site"]


ONE_PLACE = {"dataset": "m.py:f", "partition": "iid", "popularity": 0.5, "separator": ";"}
CODE = [name for name in own_model.OPTIONS if name != "dataset"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: x}, f"{name} is of runs with all data in one place") for name, x in ONE_PLACE.items()),
        *(({name: "m.py:f"}, f"{name} is 'm.py:f', but sites run no code") for name in CODE),
        ({"algorithm": "fed_be"}, "unlabelled"),
        ({"algorithm": "fsgld"}, "fsgld fits a Gaussian to the data of each client"),
        ({"algorithm": "qlsd", "potential_curvature": 10}, "leave it out, and compare"),
        ({"algorithm": "qlsd", "participation": "0.5,1"}, "participation has 2 entries, but there are 3"),
        ({"date_unit": "hours"}, "unit of dates"),
        ({"ruel": "x"}, "ruel"),
    ],
)
def test_options_that_sites_do_not_have_are_refused(options, message):
    refuses(message, make_job, options, 3)


@pytest.mark.parametrize("option", [{"participation": "0.5,0.75,1"}, {"compressor": "quantiser:4,none,none"}])
def test_a_list_by_site_can_be_submitted(option, tmp_path, monkeypatch):
    """The server knows the number of sites; what follows the check of the options is FLARE."""
    (tmp_path / "tfp_bfl.json").write_text('{"role": "admin", "name": "admin", "host": "localhost"}')

    def check_installed():
        raise RuntimeError("the options were checked")

    monkeypatch.setattr("tfp_bfl.sites.deployment.submit.check_installed", check_installed)
    how = {"quorum": 2, "deadline": 5, "progress": print}
    with pytest.raises(RuntimeError, match="the options were checked"):
        submit(tmp_path, "first", {"algorithm": "qlsd", **option}, tmp_path / "out", **how)


@pytest.mark.parametrize("back", [2, 6])
def test_memory_of_rounds_to_which_no_server_can_go_back_is_deleted(tmp_path, back):
    versions = VersionFiles(tmp_path / "memory", back)
    for number in range(20):
        versions[number] = {"x": np.full(3, number)}
        np.testing.assert_array_equal(versions[number]["x"], number)
        kept = sorted(int(path.stem) for path in (tmp_path / "memory").iterdir())
        assert kept == [*range(max(0, number - back), number + 1)]
    # A server that lost answers still asks for an old one, and what it may go back to from there stays.
    lost = VersionFiles(tmp_path / "lost", back)
    for number in (0, 1, 30, 31):
        lost[number] = {"x": np.zeros(1)}
    assert lost[1] and lost[0] and lost[31]
    assert sorted(int(path.stem) for path in (tmp_path / "lost").iterdir()) == [1, 30, 31]
