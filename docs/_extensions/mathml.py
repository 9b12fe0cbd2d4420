"""Formulas as MathML, which browsers show without a script: the pages can be read offline."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

FRACTION = re.compile(r"(\\[td]?frac)\s*([0-9])\s*([0-9A-Za-z])")
LOGGER = logging.getLogger(__name__)


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_converted(node, as_block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math-block">{_converted(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def braced(formula: str) -> str:
    r"""Return a formula with braces around the parts of fractions such as \frac12, which docutils reads as a number."""
    return FRACTION.sub(r"\1{\2}{\3}", formula)


def _converted(node: nodes.Element, as_block: bool) -> str:
    try:
        return tex2mathml(braced(node.astext()), as_block=as_block)
    except MathError as error:
        LOGGER.warning("formula can't be shown: %s", error, location=node)
        return ""


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
