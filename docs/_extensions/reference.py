"""Write the pages of the API reference, a page for each public name, and links between them and the guides."""

import functools
import html
import importlib
import inspect
import itertools
import re
import types
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).parent.parent.parent
PACKAGE = re.compile(r"^   (tfp_bfl\.[\w.]+)$", re.MULTILINE)
NAME = re.compile(r"\b(?:tfp_)?bfl((?:\.\w+)+)")
ORDER: list[str] = []  # the pages of the reference, as they are read
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
ALIASES = {
    "tfp_bfl.report": "tfp_bfl.bench.reports.report",
    "tfp_bfl.run": "tfp_bfl.app.one_run.program.run",
    "tfp_bfl.simulate": "tfp_bfl.federated.simulate",
}


def packages() -> list[str]:
    """Return the packages that docs/api.md lists."""
    return PACKAGE.findall((ROOT / "docs" / "api.md").read_text())


def public_names(package: str) -> list[str]:
    """Return the names of a package: its `__all__`, else the names that the module itself defines."""
    module = importlib.import_module(package)
    own = [n for n, x in vars(module).items() if n[0] != "_" and getattr(x, "__module__", None) == package]
    return list(getattr(module, "__all__", own))


def functions_and_classes(package: str) -> tuple[list[str], list[str]]:
    """Return the names of a package that have a page: its functions, and its classes."""
    module = importlib.import_module(package)
    found = {name: getattr(module, name) for name in public_names(package)}
    classes = [name for name, thing in found.items() if inspect.isclass(thing)]
    functions = [n for n, x in found.items() if callable(x) and not isinstance(x, types.ModuleType)]
    return [name for name in functions if name not in classes], classes


@functools.cache
def homes() -> dict[str, str]:
    """Return, for the full name of each function and class, the name under which it has its page.

    A thing that two packages export has its page in the first of them.
    """
    found: dict[str, str] = dict(ALIASES)
    first: dict[int, str] = {}
    for package in packages():
        module = importlib.import_module(package)
        for name in itertools.chain(*functions_and_classes(package)):
            found[f"{package}.{name}"] = first.setdefault(id(getattr(module, name)), f"{package}.{name}")
    interop = "tfp_bfl.sites.interop."
    found |= {f"tfp_bfl.sites.interop.{name.removeprefix(interop)}": found[name] for name in found if interop in name}
    return found


def mentions() -> dict[str, list[str]]:
    """Return, for each full name that a guide mentions, the pages of these guides."""
    found: dict[str, list[str]] = {}
    for page in sorted((ROOT / "docs").glob("**/*.md")):
        if "generated" in page.parts or page.name == "api.md":
            continue
        text = page.read_text()
        names = {full_name(match[0]) for match in NAME.finditer(text)}
        names |= {find(set(homes().values()), code) or "" for code in INLINE.findall(text)}
        for name in sorted(names):
            found.setdefault(name, []).append("/" + str(page.relative_to(ROOT).with_suffix("")))
    return found


def full_name(name: str) -> str:
    """Return the name of the page for a name such as `bfl.simulate` or `bfl.data.load`."""
    full = "tfp_" + name.removeprefix("tfp_")
    return homes().get(full, full)


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def object_page(package: str, name: str, is_class: bool, guides: list[str]) -> str:
    """Return the page of a function or a class, in reStructuredText."""
    text = f":orphan:\n\n{_title(name)}:py:mod:`{package}`\n\n"
    text += f".. auto{'class' if is_class else 'function'}:: {package}.{name}\n"
    if guides:
        text += "\n.. rubric:: Guides\n\n" + "".join(f"- :doc:`{guide}`\n" for guide in guides)
    return text


def package_page(package: str) -> str:
    """Return the page of a package: its docstring, and tables of its functions and classes with links."""
    text = f"{_title(package)}.. automodule:: {package}\n   :no-members:\n"
    for title, names in zip(("Functions", "Classes"), functions_and_classes(package)):
        if names:
            lines = "".join(f"   ~{homes()[f'{package}.{name}']}\n" for name in names)
            text += f"\n{title}\n{'-' * len(title)}\n\n.. autosummary::\n   :nosignatures:\n\n{lines}"
    return text


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    guides = mentions()
    for package in packages():
        yield package, package_page(package)
        functions, classes = functions_and_classes(package)
        for name in functions + classes:
            full = f"{package}.{name}"
            if homes()[full] == full:
                yield full, object_page(package, name, name in classes, guides.get(full, []))


def _link_neighbours(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Link each page with the one before and the one after it; those of functions are in no table of contents."""
    if page not in ORDER:
        return
    place = ORDER.index(page)
    for key, name in zip(("prev", "next"), (ORDER[place - 1 : place], ORDER[place + 1 : place + 2])):
        for target in name:
            title = html.escape(app.env.titles[target].astext())
            context[key] = {"link": app.builder.get_relative_uri(page, target), "title": title}


def _write(app: Sphinx) -> None:
    folder = ROOT / "docs" / "generated"
    folder.mkdir(exist_ok=True)
    written = dict(pages())
    ORDER[:] = ["docs/api", *(f"docs/generated/{name}" for name in written)]
    for path in folder.iterdir():
        if path.stem not in written or path.suffix != ".rst":
            path.unlink()
    for name, text in written.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:  # Sphinx reads again what is newer
            path.write_text(text)


def find(objects: Collection[str], text: str) -> str | None:
    """Return the documented name that a piece of code names: `bfl.data.load("digits")`, `ModelRule`, `linear_pool`."""
    name = re.match(r"[\w.]*", text)[0].rstrip(".")  # type: ignore[index]
    for candidate in (full_name(name), full_name(f"tfp_bfl.{name}")):
        if candidate in objects:
            return candidate
    if "." in name or not re.search(r"_|[a-z][A-Z]", name) or name != text.removesuffix("()"):
        return None
    found = sorted((x for x in objects if x.endswith("." + name)), key=len)
    return found[0] if found else None


class LinkCode(SphinxPostTransform):
    """Links code of the guides that names a function or a class with the page of that name."""

    default_priority = 100

    def run(self, **_: Any) -> None:
        page = self.env.docname
        if not page.startswith("docs/") or page.startswith("docs/generated/"):
            return
        objects = self.env.get_domain("py").objects
        for node in list(self.document.findall(nodes.literal)):
            name = find(objects, node.astext())
            if name and not isinstance(node.parent, (nodes.reference, nodes.title)):
                node.replace_self(_reference(self.app, page, name, node))


def _reference(app: Sphinx, page: str, name: str, content: nodes.Node) -> nodes.Node:
    entry = app.env.get_domain("py").objects[name]
    return make_refnode(app.builder, page, entry.docname, entry.node_id, content.deepcopy(), name)


def _resolve(app: Sphinx, env: Any, node: Any, content: nodes.Node) -> nodes.Node | None:
    """Resolve a name of another package that stands between backticks in a docstring."""
    name = find(env.get_domain("py").objects, node["reftarget"]) if node.get("refdomain") == "py" else None
    return _reference(app, node["refdoc"], name, content) if name else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", _write)
    app.connect("missing-reference", _resolve)
    app.connect("html-page-context", _link_neighbours)
    app.add_post_transform(LinkCode)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
