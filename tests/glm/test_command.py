"""The command `tfp-bfl glm`, from a table to its report."""

import csv
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

from tests.kit import call, facts_of, json_of
from tfp_bfl import glm
from tfp_bfl.app.cli import cli
from tfp_bfl.glm.command import FAMILIES
from tfp_bfl.glm.design import Outcome, read_design


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Patients of 12 hospitals: an outcome, a count, and a time with an event."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("glm") / "patients.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "sex", "ill", "visits", "days", "died"])
        for row in range(240):
            age, male, site = rng.normal(60, 10), rng.integers(2), row % 12
            eta = 0.04 * (age - 60) + 0.5 * male + 0.3 * np.sin(site)
            ill, visits = rng.random() < 1 / (1 + np.exp(-eta)), rng.poisson(np.exp(eta))
            died, days = rng.random() < 0.7, rng.exponential(100 * np.exp(-eta))
            sex = ["Female", "Male"][male]
            cells = [f"h{site}", f"{age:.1f}", sex, "NY"[ill], visits, f"{days:.2f}", int(died)]
            writer.writerow("" if row == 5 and j == 1 else cell for j, cell in enumerate(cells))
    return path


def run(*arguments):
    return CliRunner().invoke(cli, ["glm", *map(str, arguments)])


def output_of(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def predictions(folder):
    return list(csv.DictReader((folder / "predictions.csv").open()))


def test_the_command_of_a_report_repeats_the_fit(table, tmp_path):
    given = ["--outcome", "ill", "--family", "bernoulli", "--client-column", "hospital", "--only", "age,sex"]
    assert call("glm", table, *given, "--output", tmp_path / "first of two") == 0
    facts = facts_of(tmp_path / "first of two" / "report.html")
    assert facts["Data"] == str(table) and facts["Outcome"] == "ill"
    program, *command, output = shlex.split(facts["Command"])
    assert (program, output) == ("tfp-bfl", str(tmp_path / "first of two"))
    assert call(*command, tmp_path / "second") == 0
    one, two = (json_of(tmp_path / name / "posterior.json") for name in ("first of two", "second"))
    assert one == two


def test_a_report_with_table_and_posterior(table, tmp_path):
    out = tmp_path / "ill"
    given = ["--outcome", "ill", "--family", "bernoulli", "--client-column", "hospital", "--only", "age,sex"]
    result = run(table, *given, "--one-message", "--prior-stddev", "2.5", "--output", out)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("bernoulli: 239 rows, ") and "12 clients" in lines[0]
    assert lines[1].startswith("Event: ill = Y (")
    assert lines[2] == "1 row left out with an empty cell: --missing indicate keeps them."
    assert [line.split()[0] for line in lines[4:7]] == ["(intercept)", "age", "sex[Male]"]
    assert "One message is" in result.output
    posterior = json_of(out / "posterior.json")
    rows = list(csv.DictReader((out / "coefficients.csv").open()))
    assert posterior["names"] == [row["coefficient"] for row in rows]
    assert float(rows[1]["mean"]) == posterior["mean"][1]
    page = (out / "report.html").read_text()
    assert "odds ratio" in page and page.count("<img") == 1 and "h11" not in posterior["names"]
    assert "bernoulli model of ill" in page
    assert "exists" in str(run(table, *given, "--output", out).exception)
    design = read_design(table, Outcome("ill", "bernoulli"), "hospital", only=["age", "sex"])
    assert str(glm.fit(design.clients, "bernoulli", names=design.names, prior_stddev=2.5).table()) in result.output


@pytest.mark.parametrize(
    ("levels", "new", "options"),
    [
        (["TRUE", "FALSE", "unknown"], ["TRUE", "FALSE"], []),
        (["TRUE", "FALSE"], ["TRUE", "FALSE", "unknown"], []),
        (["01", "02", "A1"], ["01", "02"], []),
        (["007", "7", "12"], ["007", "7"], ["--categorical", "group"]),
        (["08:00", "12:00", "night"], ["08:00", "12:00"], []),
    ],
)
def test_levels_are_those_of_the_fit_whatever_else_a_file_holds(tmp_path, levels, new, options):
    """The reader of files takes a column of TRUE and FALSE, or of 01 and 02, for another type than text."""
    rows = [f"{levels[k % len(levels)]},{(k % len(levels)) * 10 + k // len(levels) % 4}" for k in range(60)]
    (tmp_path / "fit.csv").write_text("\n".join(["group,y", *rows]) + "\n")
    (tmp_path / "new.csv").write_text("\n".join(["group,site", *(f"{x},s" for x in new)]) + "\n")
    given = ["--outcome", "y", "--predict", tmp_path / "new.csv", *options, "--output", tmp_path / "out"]
    output_of(tmp_path / "fit.csv", *given)
    found = [row["linear predictor"] for row in predictions(tmp_path / "out")]
    for level, value in zip(new, found):
        if level in levels:
            assert float(value) == pytest.approx(levels.index(level) * 10 + 1.5, abs=0.3)


def test_dates_are_predicted_as_the_numbers_that_they_are(tmp_path):
    """Rows with dates and --date-unit, and the same rows with the years since 1970 as numbers."""
    rng = np.random.default_rng(1)
    days = rng.integers(10_000, 20_000, 60)
    for name, number in (("fit", 50), ("new", 10)):
        rows = days[:50] if name == "fit" else days[50:]
        noise = rng.normal(size=number)
        columns = {"dates": [str(np.datetime64(int(day), "D")) for day in rows], "numbers": rows / 365.2425}
        for form, cells in columns.items():
            lines = [f"{k % 5},{cell},{day / 1e4 + x}" for k, (cell, day, x) in enumerate(zip(cells, rows, noise))]
            (tmp_path / f"{name}_{form}.csv").write_text("\n".join(["hospital,seen,level", *lines]) + "\n")
    found = {}
    for form, unit in (("dates", ["--date-unit", "years"]), ("numbers", [])):
        given = ["--outcome", "level", "--client-column", "hospital", *unit, "--output", tmp_path / form]
        output_of(tmp_path / f"fit_{form}.csv", *given, "--predict", tmp_path / f"new_{form}.csv")
        rows = predictions(tmp_path / form)
        found[form] = [float(row["linear predictor"]) for row in rows]
    assert len(found["dates"]) == 10 and found["dates"] == pytest.approx(found["numbers"], rel=1e-9)
    assert np.std(found["dates"]) > 0.01


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--outcome", "visits", "--family", "poisson", "--random", "(intercept)"],
            ["Sd between clients", "rate ratio"],
        ),
        (["--outcome", "days", "--event", "died", "--family", "cox"], ["hazard ratio"]),
        (["--outcome", "days", "--event", "died", "--family", "cox", "--stratified"], ["hazard ratio"]),
        (["--outcome", "age", "--drop", "days"], ["Residual sd"]),
    ],
)
def test_families(table, options, words):
    only = [] if "--drop" in options else ["--only", "age,sex"]
    output = output_of(table, "--client-column", "hospital", *only, *options)
    for word in words:
        assert word in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--outcome", "ill", "--family", "binomial"], "There is no family 'binomial'"),
        (["--outcome", "ill", "--level", "95"], "--level is 95"),
        (["--outcome", "days", "--family", "cox", "--event", "died", "--random", "age"], "but the family is cox"),
        (["--outcome", "age", "--stratified"], "--stratified is for the family cox"),
        (["--outcome", "age", "--random", "(intercept)"], "give --client-column"),
        (["--outcome", "weight"], "There is no column 'weight'"),
        (["--outcome", "ill", "--predict", "new.csv"], "give --output"),
    ],
)
def test_bad_input_is_one_sentence(table, options, message):
    result = run(table, *options)
    assert result.exit_code != 0 and message in str(result.exception)


@pytest.mark.parametrize(
    ("options", "family"),
    [
        (["--outcome", "ill", "--random", "(intercept)"], "bernoulli"),
        (["--outcome", "visits", "--missing", "indicate"], "poisson"),
        (["--outcome", "days", "--event", "died"], "cox"),
    ],
)
def test_predictions_for_known_and_new_clients(table, tmp_path, options, family):
    rows = tmp_path / "new.csv"
    rows.write_text("hospital,sex,age\nh1,Male,60\nh99,Male,60\nh1,Other,60\nh3,Female,40.5\n")
    out = tmp_path / "fit"
    given = ["--family", family, "--client-column", "hospital", "--only", "age,sex", "--output", out, *options]
    output = output_of(table, *given, "--predict", rows)
    assert "4 predictions, 1 of them for new clients." in output
    found = predictions(out)
    assert [row["new client"] for row in found] == ["no", "yes", "no", "no"]
    fills = "--missing" in options
    assert bool(found[2]["mean"]) == fills and ("1 rows have" in output) != fills
    same = float(found[0]["mean"]) == pytest.approx(float(found[1]["mean"]), rel=1e-12)
    assert same != ("--random" in options)
    posterior = json_of(out / "posterior.json")
    coefficients = dict(zip(posterior["names"], posterior["mean"]))
    predictor = coefficients.get("(intercept)", 0.0) + 60 * coefficients["age"] + coefficients["sex[Male]"]
    assert float(found[1]["linear predictor"]) == pytest.approx(predictor)
    low, mean, high = (float(found[1][name]) for name in ("95 % from", "mean", "to"))
    assert low < mean < high


@pytest.mark.parametrize("only", ["age,sex,visits", "visits,sex,age"])
def test_predictions_have_the_coefficients_of_their_columns(table, tmp_path, only):
    out = tmp_path / "fit"
    given = ["--outcome", "days", "--client-column", "hospital", "--only", only, "--output", out]
    assert run(table, *given, "--predict", table).exit_code == 0
    posterior = json_of(out / "posterior.json")
    of = dict(zip(posterior["names"], posterior["mean"]))
    with open(out / "predictions.csv") as found, open(table) as rows:
        for row, mine in zip(csv.DictReader(rows), csv.DictReader(found)):
            if row["age"]:
                exact = of["(intercept)"] + of["age"] * float(row["age"]) + of["visits"] * float(row["visits"])
                exact += of["sex[Male]"] * (row["sex"] == "Male")
                assert float(mine["mean"]) == pytest.approx(exact)


@pytest.mark.parametrize("missing", ["drop", "indicate"])
def test_levels_of_rows_without_an_outcome_are_no_levels(tmp_path, missing):
    path, out = tmp_path / "d.csv", tmp_path / "fit"
    rows = [f"{k % 7 + k % 3},{'bcd'[k % 3]}" for k in range(60)]
    path.write_text("y,kind\n,a\n,e\n" + "\n".join(rows) + "\n")
    output_of(path, "--outcome", "y", "--missing", missing, "--predict", path, "--output", out)
    means = [row["mean"] for row in predictions(out)]
    # As an empty cell: no prediction, or that of the mean row.
    assert means[:2] == ["", ""] if missing == "drop" else float(means[0]) == pytest.approx(float(means[1]))
    for k, kind in enumerate("bcd"):
        exact = np.mean([float(row[0]) for row in rows if row[2] == kind])
        assert float(means[2 + k]) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("rows", "says"),
    [("sex\nMale\n", "has no column 'age'"), ("age,sex\nold,Male\n", "is no number"), ("", "Empty CSV file")],
)
def test_rows_that_cannot_be_predicted_are_refused_before_anything_is_written(table, tmp_path, rows, says):
    path, out = tmp_path / "new.csv", tmp_path / "fit"
    path.write_text(rows)
    result = run(table, "--outcome", "days", "--only", "age,sex", "--predict", path, "--output", out)
    assert result.exit_code != 0 and says in str(result.exception) and not out.exists()


def with_clients(path, names, count=160):
    """A table with an outcome that differs between clients, whose names are written as given."""
    rng, sites = np.random.default_rng(3), np.arange(count) % len(names)
    x = rng.normal(size=count)
    y = x + 5.0 * sites + 0.1 * rng.normal(size=count)
    path.write_text("x,site,y\n" + "".join(f"{a},{names[k]},{b}\n" for a, k, b in zip(x, sites, y)))
    return path


@pytest.mark.parametrize(
    ("names", "asked", "wanted"),
    [
        (["1.0", "2.0", "3.0", "4.0"], ["1.0", "2", " 3.00 ", "5.0"], ["1", "2", "3", "4"]),
        (["1", "2", "3", "4"], ["1.0", "2.0", "3.0", "5.0"], ["1", "2", "3", "4"]),
        (["NA", "b", "c", "007"], ["NA", " b", "007", "7"], ["NA", "b", "c", "007"]),
    ],
)
def test_a_client_has_one_name_in_fit_and_predictions(tmp_path, names, asked, wanted):
    table, out = with_clients(tmp_path / "d.csv", names), tmp_path / "out"
    given = ["--outcome", "y", "--client-column", "site", "--random", "(intercept)"]
    output = output_of(table, *given, "--predict", table, "--output", out)
    assert "160 predictions, 0 of them for new clients." in output
    assert set(json_of(out / "posterior.json")["clients"]) == set(wanted)
    found = predictions(out)
    assert [row["client"] for row in found[:4]] == wanted
    rows, again = tmp_path / "new.csv", tmp_path / "again"
    rows.write_text("x,site\n" + "".join(f"0.5,{name}\n" for name in asked))
    assert run(table, *given, "--predict", rows, "--output", again).exit_code == 0
    found = predictions(again)
    assert [row["new client"] for row in found] == ["no", "no", "no", "yes"]
    assert [round(float(row["mean"]) / 5) for row in found[:2]] == [0, 1]


def test_the_names_of_families_are_those_of_the_library():
    assert {*FAMILIES} == {*glm.FAMILIES, "cox"}


def test_random_features_and_an_export(table, tmp_path):
    given = [table, "--outcome", "visits", "--client-column", "hospital", "--only", "age,sex"]
    of_effects = ["--random", "(intercept)", "--features", "random:3"]
    more = ["--export", tmp_path / "saved", "--leave-out", "h3", "--output", tmp_path / "fit"]
    lines = output_of(*given, *of_effects, *more).splitlines()
    assert "Prior sd, on columns with sd 1: columns " in "".join(lines) and "feature 1" not in "".join(lines)
    assert f"{tmp_path / 'saved'} holds a SavedModel with 11 clients." in lines
    record, content = json_of(tmp_path / "fit" / "posterior.json"), json_of(tmp_path / "saved" / "content.json")
    assert record["names"][1:] == ["age", "sex[Male]", "feature 1", "feature 2", "feature 3"]
    assert content["columns"] == ["age", "sex[Male]"] and "h3" not in content["clients"]
    design = read_design(table, Outcome("visits", "gaussian"), "hospital", only=["age", "sex"])
    options = {"names": design.names, "features": "random:3", "prior_stddev": "fitted"}
    assert record["mean"] == glm.fit_hierarchical(design.clients, **options).posterior.mean.tolist()
    narrow = output_of(*given, *of_effects, "--prior-stddev", "0.1")
    assert "Prior sd" not in narrow
    assert "Prior sd, on columns with sd 1" in output_of(*given, "--random", "(intercept)", "--fitted-prior")


def test_more_than_two_classes(tmp_path):
    rng, path, out = np.random.default_rng(0), tmp_path / "stages.csv", tmp_path / "out"
    rows = [f"{rng.normal():.3f},s{k % 8},{['early', 'late', 'none'][rng.integers(3)]}" for k in range(200)]
    path.write_text("age,site,stage\n" + "\n".join([*rows, "0.5,s1,"]) + "\n")
    given = [path, "--outcome", "stage", "--client-column", "site", "--random", "(intercept)", "--prior-stddev", "2"]
    given += ["--family", "multinomial", "--features", "random:2"]
    more = ["--predict", path, "--output", out, "--export", tmp_path / "saved", "--leave-out", "s3"]
    lines = output_of(*given, *more).splitlines()
    assert lines[0].startswith("multinomial: 200 rows, 3 classes, 8 clients, ")
    assert lines[1].startswith("Classes of stage: early (") and lines[1].endswith("Reference: early.")
    names = ["(intercept): late", "(intercept): none", "age: late", "age: none"]
    (start,) = (i for i, line in enumerate(lines) if line.startswith("coefficient"))
    assert [line[: len(name)] for line, name in zip(lines[start + 1 :], names)] == names
    assert "feature 1" not in "".join(lines)
    record, found = json_of(out / "posterior.json"), predictions(out)
    assert record["classes"] == ["early", "late", "none"] and len(record["effects"][0]) == 2
    total = sum(float(found[0][f"probability of {name}"]) for name in record["classes"])
    assert total == pytest.approx(1) and len(found) == 201
    assert json_of(tmp_path / "saved" / "content.json")["classes"] == record["classes"]
    assert output_of(*given, "--one-message").startswith("multinomial: 200 rows, 3 classes, 8 clients, ")
    alone = output_of(path, *given[1:5], *given[9:11], "--output", tmp_path / "alone", "--prior-stddev", "2")
    assert "Sd between clients" not in alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--features", "random:3"], "--features is for models with --random"),
        (["--fitted-prior"], "--fitted-prior is for models with --random"),
        (["--export", "new"], "--export is for models with --random"),
        (["--random", "(intercept)", "--features", "fourier:3"], "must be random:NUMBER"),
        (["--random", "(intercept)", "--fitted-prior", "--prior-stddev", "1"], "exclude each other"),
        (["--random", "(intercept)", "--leave-out", "h3"], "--leave-out is for --export"),
        (["--random", "(intercept)", "--export", "new", "--leave-out", "h99"], "There is no client 'h99'"),
        (["--random", "(intercept)", "--export", "new", "--output", "new/in"], "--export and --output name one folder"),
        (["--random", "(intercept)", "--features", "random:2000"], "coefficients: use fewer features, or more rows"),
    ],
)
def test_options_of_features_are_refused_in_one_sentence(table, options, message):
    result = run(table, "--outcome", "visits", "--client-column", "hospital", "--only", "age", *options)
    assert message in str(result.exception)
