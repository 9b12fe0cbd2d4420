"""Complete the pages of the site: titles of tables of results, breadcrumbs, descriptions, downloads of notebooks."""

import html
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent.parent
MOST_LETTERS = 160  # that search engines show
# From source code to documentation: Sphinx names one package for all names of a file, which several may export.
BACK_LINK = re.compile(r'(generated/(tfp_bfl[\w.]*\.(\w+))\.html#)(?!\2[".])[\w.]*\.\3(?=[".])')


def description(doctree: nodes.document) -> str:
    """Return the first paragraph of a page as plain text, cut after a word."""
    text = next((" ".join(p.astext().split()) for p in doctree.findall(nodes.paragraph) if p.astext().strip()), "")
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS].rsplit(" ", 1)[0] + " ..."


def _title(app: Sphinx, page: str, source: list[str]) -> None:
    """Give a table of results the title of its study and the name of its file."""
    study, is_result, name = page.partition("/results/")
    if is_result and not source[0].startswith("#"):
        title = (ROOT / study / "README.md").read_text().splitlines()[0]
        source[0] = f"{title} (`{name}`)\n\n{source[0]}"


def _off_the_sidebar(app: Sphinx, doctree: nodes.document) -> None:
    """Leave tables of results out of all tables of contents: their study links to them."""
    if "/results/" in app.env.docname:
        app.env.metadata[app.env.docname]["orphan"] = True


def _parents(page: str) -> list[str]:
    """Return the pages above a page that is in no table of contents: one of the API, or a table of results."""
    study, is_result, _ = page.partition("/results/")
    if is_result:
        return list(dict.fromkeys([f"{page.partition('/')[0]}/README", f"{study}/README"]))
    return ["docs/api", page.rpartition(".")[0]] if page.startswith("docs/generated/") else []


def _breadcrumbs(app: Sphinx, page: str, parents: list[dict[str, str]]) -> str:
    """Return links to the front page and to the pages above a page."""
    link = lambda name: (app.builder.get_relative_uri(page, name), html.escape(app.env.titles[name].astext()))
    above = [(parent["link"], parent["title"]) for parent in parents] or [link(name) for name in _parents(page)]
    links = (f'<a href="{target}">{title}</a>' for target, title in [link(app.config.root_doc), *above])
    return f'<nav class="breadcrumbs" aria-label="Breadcrumbs">{" / ".join(links)}</nav>'


def _complete(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if doctree is None:
        if page.startswith("_modules/"):
            context["body"] = BACK_LINK.sub(r"\1\2", context["body"])
        return
    context["metatags"] += f'<meta name="description" content="{html.escape(description(doctree))}">'
    if page.startswith("notebooks/"):
        name = Path(page).name
        context["body"] = f'<p><a download href="{name}.ipynb">Download this notebook</a></p>' + context["body"]
    if page != app.config.root_doc:
        context["body"] = _breadcrumbs(app, page, context["parents"]) + context["body"]


def _copy_notebooks(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.format == "html":
        for notebook in (ROOT / "notebooks").glob("*.ipynb"):
            shutil.copy(notebook, Path(app.outdir) / "notebooks")


def _dashes_of_parameters(app: Sphinx, doctree: nodes.document) -> None:
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _title)
    app.connect("doctree-read", _off_the_sidebar)
    app.connect("html-page-context", _complete)
    app.connect("build-finished", _copy_notebooks)
    app.connect("doctree-read", _dashes_of_parameters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
