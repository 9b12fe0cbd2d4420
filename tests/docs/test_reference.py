"""The API reference has a page for every public function and class, and guides and reference link each other."""

import importlib.util
import inspect
import pathlib
import re

import pytest

import tfp_bfl as bfl

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("reference", DOCS / "_extensions" / "reference.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)
PAGES = dict(reference.pages())


def test_every_function_and_class_has_one_page():
    for package in reference.packages():
        module = importlib.import_module(package)
        for name in reference.public_names(package):
            thing = getattr(module, name)
            if callable(thing) and not inspect.ismodule(thing):
                home = reference.full_name(f"{package}.{name}")
                kind = "class" if inspect.isclass(thing) else "function"
                assert f".. auto{kind}:: {home}\n" in PAGES[home]
                assert f"   ~{home}\n" in PAGES[package], f"{package} has no row for {name}"


def test_what_two_packages_export_has_its_page_in_the_first():
    assert bfl.rules.Rule is bfl.contracts.Rule
    assert reference.full_name("bfl.rules.Rule") == "tfp_bfl.contracts.Rule" and "tfp_bfl.rules.Rule" not in PAGES


def test_names_on_pages_exist():
    """Only the class of an object's attribute is looked up; the command line has a file named bfl.fish.

    `layers.keras_3` has the names of `layers`, which are there without Keras 3 too.
    """
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md"), *(DOCS.parent / "experiments").rglob("*.md")]
    names = {name for page in pages for name in re.findall(r"\bbfl((?:\.\w+)+)", page.read_text())} - {".fish"}
    absent = set()
    for name in names:
        thing = bfl
        for part in name[1:].replace("layers.keras_3", "layers").split("."):
            if inspect.ismodule(thing) and not hasattr(thing, part):
                absent.add(f"bfl{name}")
            thing = getattr(thing, part, None)
    assert "bfl.simulate" in {f"bfl{name}" for name in names} and not absent


def test_a_page_names_the_guides_that_mention_it():
    assert ":doc:`/docs/quickstart`" in PAGES["tfp_bfl.evaluation.evaluate"]
    assert ":doc:`/docs/quickstart`" in PAGES["tfp_bfl.federated.simulate"]  # as bfl.simulate
    assert ":doc:`/docs/concepts`" in PAGES["tfp_bfl.rules.linear_pool"]  # as linear_pool
    assert "Guides" not in PAGES["tfp_bfl.errors.Error"]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ('bfl.data.load("digits")', "tfp_bfl.data.load"),
        ("bfl.simulate", "tfp_bfl.federated.simulate"),
        ("data.load", "tfp_bfl.data.load"),
        ("linear_pool", "tfp_bfl.rules.linear_pool"),
        ("linear_pool()", "tfp_bfl.rules.linear_pool"),
        ("total", None),  # a word, more often an argument than the function
        ("linear_pool = 3", None),
        ("no_such_name", None),
    ],
)
def test_code_of_a_guide_finds_its_page(code, name):
    assert reference.find(PAGES, code) == name


def test_the_list_of_pages_for_programs_names_pages_that_exist():
    places = re.findall(r"\]\(docs/(.*?)\.html\)", (DOCS / "_root" / "llms.txt").read_text())
    assert len(places) > 10 and all((DOCS / f"{place}.md").is_file() for place in places)
