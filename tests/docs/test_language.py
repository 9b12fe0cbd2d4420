"""The language of docstrings, option help and pages: standard terms, sentences that open with a verb or a noun."""

import ast
import re

import pytest

from experiments import claims
from tests.own_files import ROOT, is_test, python_files
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.options.methods import fields

NOT_FIRST = {
    *("What", "Whether", "Who", "Whose", "Those", "Of", "How", "That", "Which", "Why", "Where", "Without", "Its"),
    *("As", "Such", "Nothing", "Everything", "Also"),
}
# Properties and flags are documented as conditions.
CONDITIONS = {"Whether"}
PAGES = sorted(str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md"))
BANNED = (
    r"\btold\b",
    r"\bone's own\b",
    r"\bforeign images\b",
    r"\bgoes on\b",
    r"\bbroke off\b",
    r"\bdefences?\b",
    r"\bmends?\b",
    r"\bcould not be told\b",
    r"\bthe verdict\b",
    r"\bcolder\b",
    r"\bwide start\b",
    r"\borders mistakes\b",
    r"\bshares? out\b",
    r"\bwhat is kept\b",
)
BANNED_IN_PROGRAMS = (*BANNED, r"\blearnt\b", r"\bstrangers?\b", r"\bwho (is|are)\b", r"\btells?\b")
MOST_COLUMNS = 120
MOST_WORDS = 15
CHANGELOG = (ROOT / "CHANGELOG.md").read_text().splitlines()


# The library, and the programs of its studies and benchmarks.
FILES = [path for root in ("tfp_bfl", "experiments", "benchmarks", "tests") for path in python_files(root)]
SOURCES, TESTS = ([path for path in FILES if is_test(path) == tests] for tests in (False, True))
# Openings of a noun phrase: documents a class, a module or a property, but not a function.
ARTICLES = {"The", "A", "An", "Each", "Every", "All", "One", "Both", "Another"}


def docstrings(paths=SOURCES):
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
                is_property = any("property" in ast.unparse(d) for d in getattr(node, "decorator_list", ()))
                place = f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}"
                yield place, "property" if is_property else type(node).__name__, ast.get_docstring(node)


def test_docstrings_of_tests_use_the_fields_terms():
    tests = docstrings(TESTS)
    found = {(place, word): text for place, _, text in tests for word in BANNED if re.search(word, text)}
    assert found == {}


def test_docstrings_open_with_a_verb_or_a_noun():
    found = {
        place: text.split("\n")[0]
        for place, kind, text in docstrings()
        if text.split()[0].strip(",.") in NOT_FIRST - (CONDITIONS if kind == "property" else set())
    }
    assert found == {}


def test_docstrings_of_functions_open_with_a_verb():
    found = {
        place: text.split("\n")[0]
        for place, kind, text in docstrings()
        if kind == "FunctionDef" and text.split()[0].strip(",.") in ARTICLES
    }
    assert found == {}


def own_nodes(function):
    """Yield the nodes of a function's body, without those of the functions inside it."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def returns_something(function):
    """Return whether a function returns or yields a value, as far as its annotation or its statements say."""
    if isinstance(function.returns, ast.Constant) and function.returns.value is None:
        return False
    nodes = list(own_nodes(function))
    # Protocols and abstract methods have a docstring alone, or raise.
    if all(isinstance(node, (ast.Expr, ast.Constant, ast.Pass)) for node in nodes):
        return True
    if isinstance(function.body[-1], ast.Raise):
        return True
    results = (ast.Return, ast.Yield, ast.YieldFrom)
    return any(isinstance(node, results) and getattr(node, "value", None) is not None for node in nodes)


def test_docstrings_of_classes_and_of_functions_without_a_result_do_not_say_return():
    found = {
        f"{name_of(path)}: {node.name}": ast.get_docstring(node).split("\n")[0]
        for path in [*SOURCES, *python_files("docs"), *TESTS]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and (ast.get_docstring(node) or "").startswith("Return ")
        if isinstance(node, ast.ClassDef) or not returns_something(node)
    }
    assert found == {}


def test_a_value_in_a_function_inside_is_not_that_of_the_function():
    outer = ast.parse("def outer():\n    def inner():\n        return 1\n    inner()").body[0]
    assert not returns_something(outer) and returns_something(outer.body[0])


def sentences(path):
    """Yield the string constants of a program that have a space: docstrings, help, messages and printed text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            # Without the names of code and of arguments.
            yield re.sub(r"`[^`\n]*`|^ *[\w, ]+: ", "", node.value, flags=re.MULTILINE)


def test_sentences_of_programs_use_the_fields_terms():
    found = {
        (name_of(path), word): text
        for path in SOURCES
        for text in sentences(path)
        for word in BANNED_IN_PROGRAMS
        if re.search(word, text, re.IGNORECASE)
    }
    assert found == {}


def test_help_of_programs_is_a_noun_phrase_or_an_imperative():
    helps = [
        (name_of(path), node.value.value)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    ]
    assert len(helps) > 90
    assert [(place, text) for place, text in helps if text.split()[0] in NOT_FIRST] == []


def test_sentences_of_programs_say_site_and_not_party():
    # But for the names of files and options, and for what checkpoints and records contain.
    word = re.compile(r"(?<![\w./=-])part(y|ies)(?![\w.=])", re.IGNORECASE)
    recorded = (" parties of ", "5 parties, examples")
    found = [(name_of(path), x) for path in SOURCES for x in sentences(path) if word.search(x) and x not in recorded]
    assert found == []


def test_help_is_a_noun_phrase_or_an_imperative():
    every = {**RunConfig.model_fields, **fields()}
    helps = {name: field.description for name, field in every.items() if field.description}
    assert len(helps) > 100
    assert {name: text for name, text in helps.items() if text.split()[0] in NOT_FIRST} == {}
    assert {name: text for name, text in helps.items() if not text.endswith(".")} == {}


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_the_fields_terms(page):
    # Without the targets of links and the names of code.
    text = re.sub(r"\]\([^)]*\)|`[^`\n]*`", "]", (ROOT / "docs" / f"{page}.md").read_text())
    assert [word for word in BANNED if re.search(word, text)] == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_pages_are_short(page):
    text = re.sub(r"\$\$.*?\$\$", "", (ROOT / "docs" / f"{page}.md").read_text(), flags=re.DOTALL)  # Without equations.
    lines = text.splitlines()
    prose = [x for x in lines if not x.startswith(("|", "$", "![")) and "http" not in x]
    assert [line for line in prose if len(line) > MOST_COLUMNS] == []


# The benchmark tests no claims.
BENCHMARK = ROOT / "experiments" / "bench" / "README.md"
TABLES = ROOT / "experiments/published/README.md"
STUDIES = [path for path in sorted(ROOT.glob("experiments/*/README.md")) if path not in (BENCHMARK, TABLES)]
READMES = [*STUDIES, BENCHMARK, TABLES, *(ROOT / folder / "README.md" for folder in ("", "experiments", "benchmarks"))]
READMES += sorted([*ROOT.glob("experiments/*/results/**/README.md"), *ROOT.glob("tfp_bfl/*/README.md")])
BANNED_IN_STUDIES = (
    *BANNED,
    *(r"\bdid not hold\b", r"\bdoes not hold\b", r"\bcan(no|')t be told\b", r"\bwhose\b", r"\bnarrow start\b"),
    *(r"\borders? mistakes\b", r"\bsecure sums\b", r"\bthe spread\b", r"\bparties\b", r"\bof one's\b", r"\bas here\b"),
    *(r"\bundefended\b", r"\blearnt\b"),
)
MOST_IN_A_CELL = 60


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_readmes_use_the_fields_terms(path):
    text = re.sub(r"```.*?```|`[^`]*`|^    .*?$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    assert [word for word in BANNED_IN_STUDIES if re.search(word, text, re.IGNORECASE)] == []


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_lines_of_readmes_are_short(path):
    prose = [x for x in path.read_text().splitlines() if not x.startswith(("|", "$", "![", "[![")) and "http" not in x]
    assert [line for line in prose if len(line) > MOST_COLUMNS] == []


@pytest.mark.parametrize("path", STUDIES, ids=name_of)
def test_a_study_has_at_most_eight_claims_with_controls_and_verdicts(path):
    head, *rows = claims.table_under(path.read_text(), "## Claims")
    assert tuple(head) == claims.HEAD and 0 < len(rows) <= 8
    assert [row for row in rows if len(row) != len(claims.HEAD) or not all(row)] == []
    assert [cell for row in rows for cell in row if len(cell.replace("\\", "")) > MOST_IN_A_CELL] == []
    for claim in (claims.Claim(*row) for row in rows):
        verdict, colon, why = claim.verdict.partition(": ")
        assert verdict in claims.VERDICTS and bool(colon) == why.startswith("not measured "), claim
        assert claim.holds in ((claims.NOTHING,) if verdict == "inconclusive" else claims.HOLDS), claim
        assert (claim.holds == "no control") == (claim.control.startswith("none") and verdict != "inconclusive"), claim
        assert re.search(r"\[|no interval|closed form|exact", claim.ours), claim


def test_the_front_page_has_the_claims_and_the_counts_of_the_studies():
    text = claims.PAGE.read_text()
    assert claims.filled(text) == text, "nox -s tables, or experiments.claims.fill_page()"
    assert claims.studies() == [path.parent.name for path in STUDIES]
    assert {match[0] for match in claims.MARK.findall(text)} == {"counts", *claims.studies()}
    assert text.count("<!-- table:") == len(claims.studies()) + 1


def test_claims_are_counted_by_verdict_and_control():
    claim = lambda holds, verdict: claims.Claim("A is better.", "no", "[1, 2]", "none", holds, verdict)
    every = [claim("yes", "supported"), claim("no", "supported"), claim("no", "supported")]
    every += [claim("no control", "contradicted"), claim("-", "inconclusive: not measured at 400 rounds")]
    assert claims.counts(every) == ["3", "1", "2", "0", "1", "0", "0", "1", "1"]
    head, row, total = claims.counts_table({"made": every})
    assert row[0] == "[made](#made)" and total[1:] == row[1:] and len(head) == len(row)


@pytest.mark.parametrize("page", ["docs/choosing_evidence.md", "docs/validation.md"])
def test_claims_of_the_documentation_have_verdicts_and_controls(page):
    tables = re.findall(r"(?m)^(\|.*\| verdict \|.*\n)\|[-|]+\n((?:\|.*\n)+)", (ROOT / page).read_text())
    assert tables
    for head, rows in tables:
        names = [cell.strip() for cell in head.strip().strip("|").split("|")]
        for row in rows.splitlines():
            cells = dict(zip(names, (cell.strip() for cell in row.strip("|").split(" | "))))
            assert cells["verdict"].partition(":")[0] in claims.VERDICTS, row
            holds = (claims.NOTHING,) if cells["verdict"].startswith("inconclusive") else claims.HOLDS
            assert cells["holds against its control"] in holds, row


def test_every_table_with_verdicts_has_a_column_for_the_control():
    paths = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]
    heads = [(name_of(path), line) for path in paths for line in path.read_text().splitlines() if "| verdict |" in line]
    assert len(heads) >= 20
    assert [head for head in heads if "| holds against its control |" not in head[1]] == []


def test_changes_are_added_changed_or_fixed():
    heads = [line for line in CHANGELOG if re.match("#{1,3} ", line)]
    versions = [line for line in heads if line.startswith("## ")]
    assert heads[0] == "# Changelog" and versions
    assert set(heads) - set(versions) <= {"# Changelog", "### Added", "### Changed", "### Fixed"}
    assert [line for line in CHANGELOG if line and not line.startswith(("#", "- "))] == []


def test_a_change_is_a_short_line_in_the_fields_terms():
    changes = [line.removeprefix("- ") for line in CHANGELOG if line.startswith("- ")]
    assert [line for line in changes if len(line.split()) > MOST_WORDS or len(line) + 2 > MOST_COLUMNS] == []
    assert [line for line in changes if line.split()[0] in NOT_FIRST] == []
    assert [(word, line) for word in BANNED for line in changes if re.search(word, line)] == []
