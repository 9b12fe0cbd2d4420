import base64
import html.parser
import io
import itertools
import xml.etree.ElementTree

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.kit import plain, refuses
from tfp_bfl import plots
from tfp_bfl.plots import sections, style
from tfp_bfl.plots.page import Picture

VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}
EVIL = "<script>alert(1)</script>"


class Page(html.parser.HTMLParser):
    """Collects a page's tags, attributes, headings and text, and fails where tags don't nest."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.alts, self.open, self.texts, self.heads = [], [], [], [], [], []
        self.feed(plain(text))
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.alts += [dict(attrs).get("alt", "") for _ in range(tag == "img")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())
        if self.open and self.open[-1] in ("h1", "h2", "h3", "h4"):
            self.heads.append((int(self.open[-1][1]), data.strip()))


def run(name="first", seed=0, **changes):
    rng = np.random.default_rng(seed)
    entropy = np.linspace(0, 1, 12)
    fields = {
        "name": name,
        "config": {"model": {"name": "lenet", "classes": [EVIL, "dog"]}, "augment": False, "seed": seed},
        "summary": {
            **{"accuracy": np.float32(0.8123), "test_nll": tf.constant(0.61), "ece": 0.02, "epistemic_share": 0.25},
            **{"brier": tf.constant(0.125), "worker_mb": 129, "seconds": 23.4},
        },
        "rounds": [{"round": 1, "nll": 1.23456}, {"round": 2, "nll": float("nan"), "accuracy": 0.8123}],
        "probabilities": np.stack([1 - entropy / 2, entropy / 2], axis=1),
        "labels": np.array([0, 1] * 6),
        "uncertainties": {"entropy": entropy, "aleatoric": entropy / 2, "epistemic": entropy / 3},
        "class_names": (EVIL, "dog"),
        "features": rng.integers(0, 256, (12, 5, 4, 1), dtype=np.uint8),
        "label_counts": np.array([[3, 0], [1, 5]]),
        "warnings": ["The posterior has collapsed & says nothing."],
    }
    return plots.RunResults(**{**fields, **changes})


def page(path, *runs, **options):
    return Page(plots.write_report(path, runs, **options).read_text("utf-8"))


@pytest.fixture
def undrawn(monkeypatch):
    """For what a page says beside its figures, of which most of its time goes into drawing."""
    monkeypatch.setattr(sections, "picture", lambda figure, caption="": Picture(caption, "data:,", "not drawn"))


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "one.html"
    return plots.write_report(path, [run()], title=f"A run {EVIL}").read_text("utf-8")


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "two.html"
    return plots.write_report(path, [run(), run(EVIL, 1)]).read_text("utf-8")


def headings(read):
    return [text for _, text in read.heads]


def table(read, first, number=None):
    """The text from the cell `first` on."""
    return [text for text in read.texts[read.texts.index(first) :] if text][:number]


def test_holds_the_values_and_escapes_them(of_one):
    read = Page(of_one)
    for value in ("81.2%", "0.610", "0.020", "25.0%", "0.1250", "model.name", "lenet", "no", "1.235", "nan", "129 MB"):
        assert value in read.texts, value
    assert f"{EVIL}, dog" in read.texts
    assert "The posterior has collapsed & says nothing." in read.texts
    assert read.texts.count(f"A run {EVIL}") == 2
    assert f"{EVIL} 100\u00a0%" in read.texts and "is dog" in read.texts
    assert "script" not in read.tags


def test_is_self_contained_and_can_be_read_without_the_pictures(of_two):
    read = Page(of_two)
    assert not {"link", "iframe", "object", "script"} & set(read.tags)
    kinds = [link.split(",")[0] for link in read.links]
    assert set(kinds) == {"data:image/svg+xml;base64", "data:image/png;base64"}
    assert not any(forbidden in of_two for forbidden in ("http:", "https:", "url(", "@import"))
    # Each picture says what it shows, and no level of heading is left out.
    assert len(read.alts) == len(read.links) and all(len(alt) > 15 for alt in read.alts)
    assert any("Calibration: ECE" in alt for alt in read.alts)
    levels = [level for level, _ in read.heads]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_figures_follow_the_colours_of_the_page(of_one):
    read = Page(of_one)
    drawings = [base64.b64decode(link.split(",")[1]).decode() for link in read.links if "svg" in link[:20]]
    assert len(drawings) == 4
    for drawing in drawings:
        assert "prefers-color-scheme: dark" in drawing
        # A colour that is written otherwise than the rules expect would stay dark on dark.
        ink = style.INK.lower()
        assert f'style="fill: {ink}"' in drawing and f'[style*="fill: {ink}"]' in drawing


def test_images_are_those_of_the_test_set(of_one):
    given, read = run(), Page(of_one)
    contents = (base64.b64decode(link.split(",")[1]) for link in read.links if "png" in link[:20])
    images = [np.asarray(Image.open(io.BytesIO(content))) for content in contents]
    order = [*range(6), *range(11, 5, -1)]  # Of twelve each is in one group.
    assert len(images) == len(order)
    for image, number in zip(images, order):
        np.testing.assert_array_equal(image, given.features[number, ..., 0])


def test_baselines_and_classes_are_beside_the_model(tmp_path, undrawn):
    frequencies = {"class frequencies": {"accuracy": 0.125, "test_nll": 2.0}}
    summary = {"accuracy": 0.75, "test_nll": 0.5, "baselines": frequencies}
    one = run(config={}, summary=summary, rounds=[], features=None, label_counts=None, warnings=[])
    text = (page(tmp_path / "r.html", one) and (tmp_path / "r.html").read_text()).replace("<wbr>", "")
    assert "Baselines" in text and ">2.000<" in text and "Balanced accuracy" in text and "AUROC" in text
    other = one._replace(name="second", summary={**summary, "test_nll": 0.7})
    page(tmp_path / "two.html", one, other)
    both = (tmp_path / "two.html").read_text()
    # The baselines of the same data stand there once.
    assert both.count(">2.000<") == 1 and ">0.700<" in both


def test_the_least_of_a_run(tmp_path):
    least = run(config={}, summary={"accuracy": None}, rounds=[], features=None, label_counts=None, warnings=[])
    read = page(tmp_path / "r.html", least)
    classes = ["Classes", "Scores of each class", "Confusion matrix"]
    assert headings(read) == ["first", *classes, "Retention curves", "Reliability diagram"]
    assert "details" not in read.tags and read.tags.count("dl") == 1


def test_several_runs_show_what_differs(undrawn, tmp_path):
    config = {"model": {"name": "mlp"}, "augment": False}
    second = run("second", 1, summary={"accuracy": 0.9, "test_nll": 0.7}, config=config)
    read = page(tmp_path / "r.html", run(), second)
    assert read.texts.count("first and second") == 2
    found = headings(read)
    for heading in ("Results", "Options that differ", "Learning curves", "Reliability diagrams", "Common options"):
        assert found.count(heading) == 1
    options = table(read, "model.name", 11)
    assert options == [
        "model.name",
        "model.classes",
        "seed",
        "first",
        "lenet",
        f"{EVIL}, dog",
        "0",
        "second",
        "mlp",
        *["\u2013"] * 2,
    ]
    assert table(read, "augment")[:2] == ["augment", "no"] and "second" not in table(read, "augment")[:3]
    scores = table(read, "Accuracy", 14)
    assert scores[:5] == ["Accuracy", "NLL", "ECE", "Epistemic fraction", "Brier score"]
    assert scores[5:7] == ["first", "0.8123"] and scores[11:13] == ["second", "0.9000"]
    assert "first: The posterior has collapsed & says nothing." in read.texts


def test_over_seeds_bold_is_what_they_all_say(undrawn, tmp_path):
    """Accuracies paired by seed differ by .1 +- .001; the NLLs by as much in the mean, but as they like."""
    scores = lambda *pairs: {i: dict(zip(("accuracy", "test_nll"), pair)) for i, pair in enumerate(pairs)}
    one = plots.Repeated("one", scores((0.8, 0.5), (0.7, 0.7), (0.9, 0.6)))
    two = plots.Repeated("two", scores((0.9, 0.6), (0.801, 0.3), (0.999, 0.6)))
    path = plots.write_report(tmp_path / "r.html", [run("one"), run("two")], repeated=[one, two])
    text = path.read_text()
    read = Page(text)
    assert table(read, "Accuracy")[:5] == ["Accuracy", "NLL", "one", "3", "0.8000 ± 0.1000"]
    text = plain(text)
    assert "<strong>0.9000 ± 0.0990</strong>" in text and "<strong>+0.1000 [+0.0975, +0.1025]</strong>" in text
    assert text.count("<strong>") == 2 and "Results" not in headings(read)
    # On other data a difference would say nothing.
    apart = [one._replace(data="wine"), two._replace(data="digits")]
    text = plain(plots.write_report(tmp_path / "a.html", [run("one"), run("two")], repeated=apart).read_text())
    assert "0.9000 ± 0.0990" in text and "<strong>" not in text
    # Nor does one of a single seed each.
    better = run("second", summary={"accuracy": 0.7, "test_nll": 0.5, "ece": 0.02, "entropy": 0.1})
    assert "<strong>" not in plots.write_report(tmp_path / "r.html", [run(), better]).read_text()


CLIENTS = [
    {"client": "Ulm & Bonn", "n": 4, "accuracy": 0.5, "accuracy_low": 0.15, "accuracy_high": 0.85, "p_value": 0.04},
    {"client": "Aachen", "n": 8, "accuracy": 0.75, "accuracy_low": 0.4, "accuracy_high": 0.9, "p_value": 1.0},
    {"client": "Basel", "n": 0},
]
NAMES = ("Aachen", "Ulm & Bonn")


def test_clients_have_the_scores_of_their_own_rows_by_name(undrawn, tmp_path):
    rounds = [{"round": 1, "nll": 1.0, "faulty_clients": {"1": "NaN"}}]
    summary = {**run().summary, "clients": CLIENTS}
    read = page(tmp_path / "r.html", run(summary=summary, rounds=rounds, client_names=NAMES))
    cells = table(read, "client")
    assert cells[:6] == ["client", "training rows", "test rows n", "accuracy", "p", "faulty rounds"]
    assert cells[6:12] == ["Ulm & Bonn", "6", "4", "0.500 [0.150, 0.850]", "0.04", "1"]
    assert cells[12:18] == ["Aachen", "3", "8", "0.750 [0.400, 0.900]", "1", "0"]
    assert cells[18:24] == ["Basel", "\u2013", "0", "\u2013", "\u2013", "0"]
    assert not any("no scores of single clients" in text for text in read.texts)


def test_numbers_have_the_errors_of_their_clients(undrawn, tmp_path):
    rows = [{"client": "Ulm", "n": 4, "rmse": 2.5, "rmse_low": 1.5, "rmse_high": 3.0, "coverage": 0.75}]
    summary = {"rmse": 2.0, "clients": rows}
    numbers = {name: np.arange(12.0) for name in ("mean", "stddev", "aleatoric", "epistemic", "low", "high")}
    labels = np.arange(12.0)
    read = page(tmp_path / "r.html", run(summary=summary, numbers=numbers, labels=labels, probabilities=None))
    assert table(read, "Ulm")[:4] == ["Ulm", "4", "2.5 [1.5, 3]", "0.750"]


def test_artificial_clients_have_sizes_and_no_scores(undrawn, tmp_path):
    rounds = [{"round": 1, "nll": 1.0, "faulty_clients": {"1": "NaN"}}]
    read = page(tmp_path / "r.html", run(rounds=rounds))
    cells = table(read, "client")
    assert cells[:4] == ["client", "examples", "classes", "faulty rounds"]
    assert cells[4:12] == ["0", "3", "1", "0", "1", "6", "2", "1"]
    assert any("there are no scores of single clients" in text for text in read.texts)
    many = page(tmp_path / "b.html", run(label_counts=np.array([[1, 1]] * 300)))
    assert "199" in many.texts and "200" not in many.texts
    assert any("The first 200 clients" in text for text in many.texts)


@pytest.mark.deep(after="tests/plots/test_report.py")
def test_runs_share_a_table_of_clients(undrawn, tmp_path):
    first = [{**CLIENTS[0], "test_nll": 0.25}, *CLIENTS[1:]]
    summaries = [{**run().summary, "clients": rows} for rows in (first, CLIENTS[1:])]
    read = page(tmp_path / "a.html", run(summary=summaries[0]), run("second", 1, summary=summaries[1]))
    cells = table(read, "client")
    assert cells[:3] == ["client", "first", "second"]
    assert cells[3:6] == ["Ulm & Bonn", "0.500 [0.150, 0.850]", "\u2013"]
    assert cells[6:9] == ["Aachen", "0.750 [0.400, 0.900]", "0.750 [0.400, 0.900]"]
    titles = ["Clients: accuracy", "Clients: NLL"]
    assert [text for text in read.texts if text.startswith("Clients: ")] == titles and "0.250" in read.texts


@pytest.mark.deep(after="tests/bench/test_reports.py")
def test_out_of_distribution(tmp_path):
    outside = {"entropy": np.full(6, 0.95), "epistemic": np.full(6, 0.01)}
    inside = {**run().uncertainties, "epistemic": np.zeros(12), "mutual_information": np.arange(12) / 99}
    beyond = {"entropy": np.full(6, 0.95), "epistemic": np.zeros(6), "mutual_information": np.ones(6)}
    sure = run("sure", uncertainties=inside, out_of_distribution=beyond)
    read = page(tmp_path / "r.html", run(out_of_distribution=outside), sure, out_of_distribution="mn<ist>")
    # 11 of 12 are surer than 0.95 by entropy; of the epistemic values 1 of 12 lies below 0.01.
    scores = table(read, "AUROC of the entropy", 20)
    assert scores[2:6:2] == ["AUROC of the epistemic part", "AUROC of the mutual information"]
    # The first run did not record the mutual information.
    areas = ["0.917 [0.640, 0.983]", "0.083 [0.017, 0.360]", "\u2013", "1.000 [0.757, 1.000]"]
    assert scores[6:13] == ["first", areas[0], "0.857", areas[1], "0.353", "\u2013", "\u2013"]
    assert scores[13:19] == ["sure", areas[0], "0.857", "\u2013", "\u2013", areas[3]]
    assert any("from mn<ist>," in text and "is 0.33." in text for text in read.texts)


def test_names_that_would_break_a_page_or_a_picture(tmp_path):
    names = ["_hidden", "$\\frac{$", "a\x01b -- \n", "\udcff", EVIL, "x" * 300]
    read = page(tmp_path / "r.html", *(run(name, i, warnings=()) for i, name in enumerate(names)))
    for link in read.links:
        if "svg" in link[:20]:
            xml.etree.ElementTree.fromstring(base64.b64decode(link.split(",")[1]))
    assert "script" not in read.tags and EVIL in read.texts


def test_the_same_run_gives_the_same_file_in_a_new_folder_too(of_one, tmp_path):
    path = tmp_path / "new" / "report.html"
    assert plots.write_report(path, [run()], title=f"A run {EVIL}").read_text("utf-8") == of_one


def test_bad_arguments(tmp_path):
    path = tmp_path / "r.html"
    refuses("must be a file", plots.write_report, tmp_path, [run()])
    refuses("list of sentences", plots.write_report, path, [run(warnings="collapsed")])
    refuses("at least one run", plots.write_report, path, [])
    refuses("name of its own", plots.write_report, path, [run(), run()])
    refuses("path comes first: the file to write, and here is a RunResults", plots.write_report, run(), path)
    assert not path.exists()
