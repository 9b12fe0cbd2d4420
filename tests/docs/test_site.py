"""The documentation site as it is built: signatures, links, formulas, titles, search, navigation."""

import html.parser
import json
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest

from tests import browser

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "docs"
FEWEST_SIGNATURES = 500
WIDTHS = [360, 768, 1024, 1280, 1366, 1440, 1920]  # pixels
SOUGHT = {"gpu": "docs/gpu.html", "cite": "docs/cite.html", "temperature": "docs/uncertainty.html"}
# The order of what a search finds: guides, notebooks, the API, studies, the rest.
KINDS = ["docs/(?!generated/)", "notebooks/", "docs/generated/", "(?:experiments|benchmarks)/(?!.*results/)", ""]
MOST_ENTRIES = 45  # of the sidebar
RAW = re.compile(r"\.\. (?:auto\w+|currentmodule|py:\w+|toctree|code-block|note|rubric|math)::")
COMMAND = ["-m", "sphinx", "-c", "docs", "-b", "html", "-j", "2", "-q", "-W", "--keep-going", ".", str(SITE)]

pytestmark = [pytest.mark.long, pytest.mark.deep(after="tests/docs/test_reference.py")]


class Page(html.parser.HTMLParser):
    """The targets of a page's links, and the places that links can lead to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = set(), {""}
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.links |= {found[name] for name in ("href", "src") if found.get(name)}
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}


@pytest.fixture(scope="module")
def pages():
    """The built pages. Sphinx builds only those that are older than their sources."""
    subprocess.run([sys.executable, *COMMAND], cwd=ROOT, check=True, timeout=1700)
    return {path: Page(path) for path in sorted(SITE.glob("**/*.html"))}


def test_the_reference_shows_signatures(pages):
    reference = [page.text for path, page in pages.items() if path.parent.name == "generated"]
    assert sum(text.count('<dt class="sig sig-object') for text in reference) >= FEWEST_SIGNATURES


def test_no_page_shows_a_directive(pages):
    written = {path: RAW.search(page.text) for path, page in pages.items() if "_modules" not in path.parts}
    assert not {path: match[0] for path, match in written.items() if match}


def test_no_link_is_dead(pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            target = urllib.parse.urlsplit(link)
            if target.scheme or target.netloc:
                continue
            to = (path.parent / urllib.parse.unquote(target.path)).resolve() if target.path else path
            place = urllib.parse.unquote(target.fragment)
            if not to.exists() or (to in pages and place not in pages[to].places):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert not dead, "\n".join(dead)


def test_guides_and_reference_link_each_other(pages):
    guide, reference = (SITE / "docs" / name for name in ("concepts.html", "generated/tfp_bfl.rules.linear_pool.html"))
    assert any("generated/tfp_bfl.rules.linear_pool.html" in link for link in pages[guide].links)
    assert any("concepts.html" in link for link in pages[reference].links)


@browser.needs_chromium
def test_pages_fit_their_window_and_search_finds(pages, tmp_path):
    """All guides and packages, and every twentieth page of a function."""
    paths = [str(path.relative_to(SITE)) for path in pages if "_modules" not in path.parts]
    functions = [path for path in paths if re.fullmatch(r"docs/generated/tfp_bfl\.\w+\.\w+\.html", path)]
    few = sorted({*paths} - {*functions} | {*functions[::20]})
    found = browser.measure(SITE, few, WIDTHS, list(SOUGHT), tmp_path)
    assert not found["wide"]
    for word, page in SOUGHT.items():
        assert any(page in link for link in found["search"][word]), f"no search for {word!r} finds {page}"


@browser.needs_chromium
def test_search_finds_guides_first(pages, tmp_path):
    found = browser.measure(SITE, [], WIDTHS, ["csv", "FedAvg", "linear_pool"], tmp_path)["search"]
    for word in ("csv", "FedAvg"):
        kinds = [next(i for i, kind in enumerate(KINDS) if re.match(kind, link)) for link in found[word]]
        assert kinds == sorted(kinds) and len({*kinds}) > 2, found[word]
    assert {"docs/own_data.html", "docs/tables.html"} <= {*found["csv"][:4]}
    assert found["linear_pool"][0].startswith("docs/generated/tfp_bfl.rules.linear_pool.html")


def test_every_page_has_a_title(pages):
    index = json.loads(re.search(r"{.*}", (SITE / "searchindex.js").read_text(), re.DOTALL)[0])
    titles = dict(zip(index["docnames"], index["titles"]))
    assert len(titles) > 800 and [name for name, title in titles.items() if not title or "no title" in title] == []


def test_the_sidebar_is_short(pages):
    front = pages[SITE / "docs" / "index.html"].text
    assert 20 < front.count('<li class="toctree-l1') <= MOST_ENTRIES


def test_pages_have_neighbours_and_breadcrumbs(pages):
    """Check a function and a table of results, which are in no table of contents."""
    crumbs = lambda page: re.findall('href="(.*?)"', re.search('class="breadcrumbs".*?</nav>', page.text)[0])
    rule = pages[SITE / "docs" / "generated" / "tfp_bfl.rules.linear_pool.html"]
    assert crumbs(rule) == ["../index.html", "../api.html", "tfp_bfl.rules.html"]
    neighbours = [re.search(rf'class="{side}-page" href="(.*?)"', rule.text)[1] for side in ("prev", "next")]
    assert all(link.startswith("tfp_bfl.rules.") for link in neighbours) and len({*neighbours}) == 2
    table = pages[SITE / "experiments" / "heads" / "results" / "scores.html"]
    assert crumbs(table) == ["../../../docs/index.html", "../../README.html", "../README.html"]


def test_notebooks_can_be_downloaded_and_pages_describe_themselves(pages):
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"{notebook.name}" in pages[SITE / "notebooks" / f"{notebook.stem}.html"].links
        assert (SITE / "notebooks" / notebook.name).read_bytes() == notebook.read_bytes()
    front = pages[SITE / "docs" / "index.html"]
    assert '<meta name="description" content="Bayesian federated learning' in front.text
    assert any("favicon" in link for link in front.links) and any("copy.js" in link for link in front.links)
    assert {"quickstart.html", "choosing.html", "api.html"} <= front.links
    for caption in ("Tutorials", "How-to guides", "Explanation", "Reference"):
        assert f'<span class="caption-text">{caption}</span>' in front.text
