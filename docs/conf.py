"""The documentation site: `make docs`. Its sources' root is the repository's: links work here as on a Git host."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_extensions")]

project = "tfp_bfl"
author = "the authors of tfp_bfl"
release = version = re.search(r"^version = (.+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",  # and with it myst_parser
    "sphinx_click",
    "mathml",
    "docstrings",
    "pages",
    "reference",
    "tables",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "experiments/**.md",
    "benchmarks/**.md",
]
exclude_patterns = ["docs/_*", ".venv", ".venvs", "build", "runs", "demo", "benchmarks/.peers"]
source_suffix = dict.fromkeys((".md", ".ipynb"), "myst-nb") | {".rst": "restructuredtext"}

myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # `nox -s notebooks` runs them, and saves what they show
nb_merge_streams = True

# What stands between single backticks in docstrings is a name that may have a page here, or code.
default_role = "py:obj"
autosummary_generate = False  # docs/_extensions/reference.py writes the pages
# The options of metadata routing are of scikit-learn, which documents them.
_ROUTING = ",".join(f"set_{method}_request" for method in ("fit", "predict", "predict_proba", "score"))
autodoc_default_options = {"members": True, "exclude-members": _ROUTING}
autodoc_member_order = "bysource"
autodoc_typehints = "both"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Fields", "params_style"), "Source", "Sources"]

highlight_language = "text"  # blocks that name no language are commands and equations
html_theme = "furo"
html_title = f"tfp_bfl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_search_scorer = str(Path(__file__).parent / "_extensions" / "scorer.js")
html_favicon = "_static/favicon.svg"
html_extra_path = ["_root"]
html_show_sphinx = False
html_show_copyright = False
smartquotes = False  # `--option` stays as it is typed
html_copy_source = False
pygments_style = "tango"


def setup(app):
    """Keep the given signature of an object that has one, such as a recipe: its source shows other parameters."""
    listeners = app.events.listeners["autodoc-before-process-signature"]
    for i, (_, defaults_of_source, _) in enumerate(listeners):
        if defaults_of_source.__name__ == "update_defvalue":

            def update(app, obj, bound, update=defaults_of_source):
                return None if hasattr(obj, "__signature__") else update(app, obj, bound)

            listeners[i] = listeners[i]._replace(handler=update)
