"""Reports of every kind in a browser: no cell cut, no word broken, nothing scrolls sideways, at three widths."""

import datetime
import hashlib
import itertools
import types

import numpy as np
import pytest

import tfp_bfl as bfl
from tests import browser
from tests.bench import made_up
from tests.kit import facts_of
from tests.plots.test_report import run
from tfp_bfl import plots
from tfp_bfl.bench import page as bench_page
from tfp_bfl.evaluation.sums import score_sums, scores_of_sums
from tfp_bfl.glm import report as glm_report
from tfp_bfl.plots import tables
from tfp_bfl.plots.page import About, Table
from tfp_bfl.plots.score_tables import Repeated
from tfp_bfl.sites.deployment.server import sections

WIDTHS = (390, 1024, 1366)
DIGEST = next(d for d in (hashlib.sha256(bytes([i])).hexdigest() for i in range(99)) if d[0] == "8")
COMMAND = f"tfp-bfl glm /data/cardiology/{'patients_of_all_hospitals' * 3}.csv --outcome ill --family bernoulli"
WITH_COMMAND = ("table", "images", "federation", "glm")
SITES = ("north", "south_of_the_river", "Universitätsklinikum Hamburg-Eppendorf")


def rounds(number=12):
    names = ["nll", "kl", "tempered_elbo", "accuracy", "test_nll", "ece", "stddev_q05", "stddev_median", "stddev_q95"]
    row = lambda i: {"round": i + 1, **{name: 1 / (i + 1 + j) for j, name in enumerate(names)}}
    return [{**row(i), "faulty_clients": {"1": "its weights are not finite"} if i else {}} for i in range(number)]


def a_run(name, **changes):
    config = {"dataset": "/data/cardiology/patients_of_all_hospitals.csv", "model": "mlp", "learning_rate": 0.1}
    base = run(name)
    summary = {**base.summary, "data": DIGEST, "brier": 0.125, "macro_recall": 0.7123456, "notes": ["No column left."]}
    summary["clients"] = scores_of_sums({site: sums_of(i) for i, site in enumerate(SITES)})
    summary |= {"baselines": {"class frequencies": {"accuracy": 0.6, "test_nll": 0.65}}}
    about = About(config["dataset"], "2 classes: healthy, ill", "0.1.0", COMMAND)
    fields = {"config": config, "summary": summary, "rounds": rounds(), "class_names": ("healthy", "ill")}
    return base._replace(**fields, about=about, **changes)


def sums_of(seed, number=36):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(2), number)
    own = rng.uniform(size=[3, number])
    evaluated = types.SimpleNamespace(probabilities=p, entropy=own[0], aleatoric=own[1], epistemic=own[2])
    return score_sums(evaluated, rng.integers(2, size=number))


def federation():
    sums = {site: sums_of(i) for i, site in enumerate(SITES)}
    of_site = {"answers": 21, "sent_bytes": 1_234_567, "received_bytes": 7_654_321, "seconds": 12.3}
    traffic = dict.fromkeys(SITES, of_site)
    own = {"probabilities": None, "labels": np.zeros(0, np.int32), "uncertainties": {}, "features": None}
    own["sections"] = list(sections(sums, rounds(), traffic))
    return a_run("federation", label_counts=None, **own)


def linear_model(folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=[200, 3])
    y = (rng.uniform(size=200) < 0.5).astype(float)
    names = ("age_of_the_patient", "chest_pain=atypical angina", "cholesterol")
    clients = [(x[:100], y[:100]), (x[100:], y[100:])]
    fitted = bfl.glm.fit(clients, family="bernoulli", prior_stddev=2.0, names=names)
    glm_report.write_folder(
        folder, fitted, SITES[:2], 0.95, [], {"column": "ill"}, About("patients.csv", command=COMMAND)
    )
    return folder / "report.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    pairs = itertools.product(("variational", "distributed_consolidation"), (0.01, 0.1))
    groups = [f"algorithm={name},learning_rate={rate}" for name, rate in pairs]
    runs = [a_run(name)._replace(config={"algorithm": name, "learning_rate": 0.1}) for name in groups]
    scores = lambda i: [{"accuracy": 0.8 + i / 100 + j / 1000, "test_nll": 0.5, "ece": 0.02} for j in range(2)]
    repeated = [Repeated(name, dict(enumerate(scores(i))), DIGEST) for i, name in enumerate(groups)]
    return {
        "table": plots.write_report(folder / "table.html", [a_run("table", features=None)]),
        "images": plots.write_report(folder / "images.html", [a_run("images")]),
        "comparison": plots.write_report(folder / "comparison.html", runs),
        "sweep": plots.write_report(folder / "sweep.html", runs, repeated=repeated),
        "federation": plots.write_report(folder / "federation.html", [federation()]),
        "bench": bench_page.write_page(made_up.write(folder / "bench", made_up.records()), folder / "bench.html", None),
        "glm": linear_model(folder / "glm"),
    }


def test_the_kind_of_a_cell_is_that_of_its_value():
    rows = dict(tables.results([a_run("one")]).rows)
    assert rows["Data"] == [tables.Cell(DIGEST, is_words=True)]
    assert not rows["Brier score"][0].is_words
    settings = dict(tables.settings([a_run("one")._replace(config={"seeds": "0..4", "rate": 0.1, "skip": None})]).rows)
    assert [settings[name][0].is_words for name in ("seeds", "rate", "skip")] == [True, False, False]


def test_wide_tables_are_divided_by_columns_and_lose_nothing():
    cells = lambda row: [tables.Cell(f"{row}.{column}" + "0" * column) for column in range(20)]
    whole = Table("Results", ["run", *map(str, range(20))], [(f"run {row}", cells(row)) for row in range(3)])
    parts = whole.parts
    assert len(parts) > 1 and all(0 < part.width <= 56 and part.head[0] == "run" for part in parts)
    assert [name for part in parts for name in part.head[1:]] == whole.head[1:]
    for row, (name, own) in enumerate(whole.rows):
        assert {part.rows[row][0] for part in parts} == {name}
        assert [cell for part in parts for cell in part.rows[row][1]] == own
    widest = Table("Words", ["run", "a", "b"], [("x", [tables.Cell("9" * 200)] * 2)])
    assert [part.head for part in widest.parts] == [["run", "a"], ["run", "b"]]


@pytest.mark.deep(after="tests/plots/test_report_layout.py")
def test_every_kind_has_a_title_block(pages):
    for name, path in pages.items():
        facts = facts_of(path)
        assert facts["Date"] == datetime.date.today().isoformat() and facts["Version"].startswith("tfp_bfl "), name
        assert facts["Data"] and facts["Outcome"], name
        assert facts.get("Command", COMMAND) == COMMAND and ("Command" in facts) == (name in WITH_COMMAND), name


@pytest.mark.deep(after="tests/plots/test_report_layout.py")
@browser.needs_chromium
def test_every_kind_of_report_fits_three_widths(pages, tmp_path):
    found = browser.layout(pages.values(), WIDTHS, tmp_path)
    assert found["cells"] > 1_000
    assert not found["faults"], "\n".join(map(str, found["faults"]))


@pytest.mark.deep(after="tests/plots/test_report_layout.py")
@browser.needs_chromium
def test_the_measurement_finds_faults(tmp_path):
    style = "td { width: 22px; overflow-wrap: anywhere; } table { table-layout: fixed; width: 22px; }"
    table = f"<style>{style}</style><main><table><tr>{{}}</table></main>"
    cut = '<td style="white-space: nowrap; overflow-wrap: normal">algorithm=x</td>'
    content = {"broken": table.replace("{}", "<td>Balanced</td>"), "cut": table.replace("{}", cut)}
    content["wide"] = '<main><div style="overflow: auto"><p style="width: 2000px">x</p></div></main>'
    pages = [tmp_path / f"{name}.html" for name in content]
    for path, text in zip(pages, content.values()):
        path.write_text(f"<!DOCTYPE html>{text}")
    kinds = {(name, kind) for name, _, kind, _, _ in browser.layout(pages, [390], tmp_path)["faults"]}
    assert {("broken.html", "broken word"), ("cut.html", "cut"), ("wide.html", "sideways")} <= kinds
