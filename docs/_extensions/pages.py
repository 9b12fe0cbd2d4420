"""Complete the pages of the site: a description, and on the pages of notebooks a link that downloads the notebook."""

import html
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent.parent
MOST_LETTERS = 160  # that search engines show


def description(doctree: nodes.document) -> str:
    """Return the first paragraph of a page as plain text, cut after a word."""
    text = next((" ".join(p.astext().split()) for p in doctree.findall(nodes.paragraph) if p.astext().strip()), "")
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS].rsplit(" ", 1)[0] + " ..."


def _complete(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if doctree is None:
        return
    context["metatags"] += f'<meta name="description" content="{html.escape(description(doctree))}">'
    if page.startswith("notebooks/"):
        name = Path(page).name
        context["body"] = f'<p><a download href="{name}.ipynb">Download this notebook</a></p>' + context["body"]


def _copy_notebooks(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.format == "html":
        for notebook in (ROOT / "notebooks").glob("*.ipynb"):
            shutil.copy(notebook, Path(app.outdir) / "notebooks")


def _dashes_of_parameters(app: Sphinx, doctree: nodes.document) -> None:
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", _complete)
    app.connect("build-finished", _copy_notebooks)
    app.connect("doctree-read", _dashes_of_parameters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
