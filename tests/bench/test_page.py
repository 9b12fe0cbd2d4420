"""The page of a benchmark: complete without a script, escaped, self-contained; in a browser where there is one."""

import html.parser
import re

import pytest

from tests import browser
from tests.bench import made_up
from tests.kit import plain, refuses
from tfp_bfl.bench import page, reading, scatter, summary

EVIL = '<script>alert("x")</script>&\u202e' + "long" * 30


def mixed():
    """Classification and regression, a missing score, a failed cell, and a name that is no text for HTML."""
    records = made_up.records()
    del records[0]["scores"]["ece"]
    records = [r for r in records if (r["setting"], r["method"], r["seed"]) != ("heart", "laplace", 1)]
    records.append(made_up.failed("heart", "laplace", 1, f"The loss is not finite {EVIL}"))
    for record in records:
        if record["method"] == "fed_pa":
            record["method"] = EVIL
            record.get("cost", {})["upload_mb"] = 40.0
    return records


def written(tmp_path, records, reference=None):
    path = page.write_page(made_up.write(tmp_path, records), tmp_path / "new" / "page.html", reference)
    return path.read_text(encoding="utf-8")


class Reader(html.parser.HTMLParser):
    """Collect the elements of a page, and the text of the rows of its table of results."""

    def __init__(self, text):
        super().__init__()
        text = plain(text)
        self.elements, self.rows, self.open, self.in_results = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "line", "path", "circle", "polygon"):
            self.open.append(tag)
        if tag == "table":
            self.in_results = dict(attrs).get("class") == "results"
        if tag == "tr" and self.in_results:
            self.rows.append([])
        if tag in ("td", "th") and self.in_results:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag
        if tag == "table":
            self.in_results = False

    def handle_data(self, data):
        if self.in_results and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


def test_the_table_has_all_values_without_a_script(tmp_path):
    records = mixed()
    reader = Reader(written(tmp_path, records))
    head, *rows = reader.rows
    assert not reader.open and len(rows) == 16 and len({len(row) for row in (head, *rows)}) == 1
    bench = reading.arrange(reading.read(tmp_path))
    place = head.index("NLL")
    for row in rows:
        (setting,) = [s for s in bench.settings if row[1] == s]
        (method,) = [m for m in bench.methods if row[0] == page.shorten(m) + setting]
        assert row[place] == summary.mean_text(bench.scores(setting, method).values("test_nll"))
    assert rows[3][head.index("Seeds")] == "2, 1 failed"


def test_texts_are_escaped_and_short_and_nothing_is_requested_from_elsewhere(tmp_path):
    text = written(tmp_path, mixed())
    reader = Reader(text)
    scripts = [attrs for tag, attrs in reader.elements if tag == "script"]
    assert len(scripts) == 1 and text.count("<script") == 1 and "alert(" in text
    assert "\u202e" not in text and "&lt;script&gt;" in text
    assert all(len(row[0]) <= 40 + len("diabetes") for row in reader.rows)
    assert not [name for _, attrs in reader.elements for name in attrs if name.startswith("on")]
    assert not [tag for tag, _ in reader.elements if tag in ("link", "img", "iframe", "object", "embed", "base")]
    addresses = [attrs[name] for _, attrs in reader.elements for name in ("href", "src", "action") if name in attrs]
    assert addresses and all(address.startswith("#") for address in addresses)
    (policy,) = [attrs["content"] for _, attrs in reader.elements if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    links = {attrs["href"][1:] for tag, attrs in reader.elements if tag == "a"}
    assert len(ids) == len(set(ids)) and links and links <= set(ids)


def test_points_are_labelled_links_in_figures_that_state_what_they_leave_out(tmp_path):
    text = written(tmp_path, mixed())
    titles = re.findall(r"<figure><figcaption>(.*?)</figcaption><svg class=\"scatter", text)
    assert titles == [
        *("Accuracy against bytes", "RMSE against bytes", "NLL against time, classification"),
        *("NLL against time, regression", "Calibration against heterogeneity"),
    ]
    points = [attrs for tag, attrs in Reader(text).elements if (attrs.get("class") or "").startswith("point")]
    assert len(points) == 12 + 4 + 12 + 4 + 12
    assert all(point["aria-label"] == point["data-label"] and point["href"] for point in points)
    assert "fed_avg in heart: Accuracy 0.797 ± 0.008; Upload and download (MB) 2.400" in points[0]["aria-label"]
    records = made_up.records(settings=("heart", "digits"))
    for record in records:
        if record["method"] == "fed_pa":
            del record["cost"]["download_mb"]
    assert "6 points. Not shown for lack of a value: 2." in written(tmp_path, records)


def test_the_clients_of_a_cell_have_their_rows_and_both_kinds_of_errors(tmp_path):
    record, *others = made_up.records(settings=("heart",))
    ends = {"sensitivity_low": 0.25, "sensitivity_high": 0.75}
    record["scores"]["clients"] = [{"client": "Ulm", "n": 1200, "accuracy": 0.5, "sensitivity": 0.625, **ends}]
    text = written(tmp_path, [record, *others])
    row = re.sub(r"<[^>]+>|\s", " ", text[text.index("Clients on their own test rows") :]).split()[8:18]
    assert row == ["Client", "n", "Accuracy", "Sensitivity", "Ulm", "1,200", "0.500", "0.625", "[0.250,", "0.750]"]


def test_ranks_have_a_figure_a_score_or_a_reason(tmp_path):
    text = written(tmp_path, mixed())
    assert text.count('<svg class="ranks"') == 4  # NLL, accuracy, ECE and Brier score.
    assert "RMSE has no ranks: average ranks need two settings or more, and 1 has the score." in text
    assert "Worst rank for lack of a value: laplace in heart." in text
    text = written(tmp_path, made_up.records(settings=("heart",)))
    assert 'class="ranks"' not in text
    assert "There are no ranks: average ranks need two settings or more, and the benchmark has one." in text


def test_failures_are_listed_with_reasons_also_alone(tmp_path):
    assert '<p class="how">None.</p>' in written(tmp_path, made_up.records())
    text = written(tmp_path, mixed())
    assert '<p class="how">None.</p>' not in text and "Seed 1 failed: The loss is not finite &lt;script&gt;" in text
    text = written(tmp_path, [made_up.failed("heart", method, 0, "No memory.") for method in made_up.METHODS])
    assert "No cell has both values of a figure." in text and text.count("No memory.") == 8


def test_the_header_states_what_was_run_and_the_same_records_give_the_same_page(tmp_path):
    text = written(tmp_path, mixed(), reference="laplace")
    assert "4 settings, 4 methods, 3 seeds," in text and "reference method, laplace." in text
    refuses("no method 'nothing'", written, tmp_path, mixed(), reference="nothing")
    assert written(tmp_path, mixed()) == written(tmp_path, mixed())


@pytest.mark.parametrize(
    ("values", "is_log", "zero"),
    [
        ([1.0, 19.0], False, False),
        ([1.0, 20.0], True, False),
        ([0.0, 1.0, 300.0], True, True),
        ([0.0, 1.0], False, False),
        ([-1.0, 100.0], False, False),
        ([3.0], False, False),
        ([0.0], False, False),
        ([1e-9, 1e9], True, False),
    ],
)
def test_axes_hold_their_values_and_ticks_in_order(values, is_log, zero):
    found = scatter.axis(values)
    assert (found.is_log, found.zero) == (is_log, zero)
    places = [found.place(value) for value in sorted({*values, *found.ticks})]
    assert all(0 <= place <= 1 for place in places) and places == sorted(places) and len(set(places)) == len(places)
    assert 2 <= len(found.ticks) <= 10


def test_settings_have_distinct_markers():
    drawn = {(number % scatter.COLOURS, scatter.marker(number, 0, 0)) for number in range(30)}
    assert len(drawn) == 30


SCRIPT = """
  frame.style.width = "375px";
  await load(PAGE);
  const page = frame.contentDocument, root = page.documentElement;
  const all = (selector) => [...page.querySelectorAll(selector)];
  const event = (name) => new frame.contentWindow.Event(name, { bubbles: true });
  for (const width of [320, 375, 1280]) {
    frame.style.width = width + "px";
    if (root.scrollWidth > width) found.wide = [width, root.scrollWidth];
  }
  frame.style.width = "375px";
  const form = page.querySelector("form").elements;
  const shown = () => all(".results tbody tr").filter((row) => !row.hidden);
  const values = () => shown().map((row) => Number(row.cells[2].dataset.value));
  found.rows = shown().length;
  found.columns = all(".results thead th").filter((head) => head.offsetWidth).length;
  const head = all(".results thead th button")[2];
  head.click(); found.up = values();
  head.click(); found.down = values();
  form.method.value = "SWAG"; form.method.dispatchEvent(event("input"));
  form.setting.value = "1"; form.setting.dispatchEvent(event("change"));
  found.filtered = shown().map((row) => row.innerText);
  found.points = all(".point").filter((point) => point.style.display !== "none").length;
  form.score.value = ""; form.score.dispatchEvent(event("change"));
  found.differences = all("[data-part=difference]").filter((cell) => !cell.hidden).length;
  const point = all(".point").find((one) => one.style.display !== "none");
  point.focus();
  point.dispatchEvent(new frame.contentWindow.FocusEvent("focus")); // A frame in the background has no focus.
  found.tip = page.querySelector(".tip").hidden ? "" : page.querySelector(".tip").textContent;
  point.dispatchEvent(event("click"));
  found.dialog = page.querySelector("dialog").open && page.querySelector("dialog").innerText;
  found.again = all("[id]").length - new Set(all("[id]").map((one) => one.id)).size;
"""


@pytest.mark.deep(after="tests/bench/test_page.py")
@browser.needs_chromium
def test_the_page_works_in_a_browser_at_the_width_of_a_phone(tmp_path):
    written(tmp_path, mixed())
    found = browser.ask(SCRIPT, tmp_path, PAGE=(tmp_path / "new" / "page.html").as_uri())
    assert "wide" not in found
    assert found["rows"] == 16 and found["columns"] == 3
    assert found["up"] == sorted(found["up"]) and found["down"] == sorted(found["up"], reverse=True)
    assert len(found["filtered"]) == 1 and "fl_swag\ndigits" in found["filtered"][0]
    assert found["points"] == 3 and found["differences"] == 0
    assert found["tip"].startswith("fl_swag in digits: Accuracy") and "Scores by seed" in found["dialog"]
    assert found["again"] == 0
