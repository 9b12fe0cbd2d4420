"""README and the ways to cite: the program is short and prints what stands below it, and versions agree."""

import configparser
import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MOST_LINES = 12
PROGRAM, OUTPUT = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
setup = configparser.ConfigParser()
setup.read(ROOT / "setup.cfg")


def entry(text):
    return re.search(r"```bibtex\n(.*?)```", text, re.DOTALL)[1]


def test_the_first_screen_installs_by_pip_and_shows_a_short_program():
    assert README.index("pip install .") < README.index("```python") < README.index("![Learning curve")
    assert len(PROGRAM.splitlines()) <= MOST_LINES
    compile(PROGRAM, "README.md", "exec")


def test_the_quickstart_has_the_same_program():
    page = (ROOT / "docs" / "quickstart.md").read_text()
    training = PROGRAM.split("scores = ")[0]
    assert training in re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    for name, value in (line.split() for line in OUTPUT.splitlines()):
        assert f"'{name}': {float(value)}" in page


def test_links_of_the_readme_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    assert len(links) > 30
    assert not [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()]


def test_citations_agree():
    version = setup["metadata"]["version"]
    assert entry(README) == entry((ROOT / "docs" / "cite.md").read_text())
    assert f"version = {{{version}}}" in entry(README)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version and citation["license"] == setup["metadata"]["license"]
    assert citation["title"].startswith("tfp_bfl")


@pytest.mark.long
@pytest.mark.deep(after="tests/docs/test_readme.py")
def test_the_program_prints_what_stands_below_it(capsys, tmp_path, monkeypatch):
    """Other processors round otherwise: scores agree to 0.03."""
    monkeypatch.chdir(tmp_path)
    exec(compile(PROGRAM, "README.md", "exec"), {"__name__": "__main__"})
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    shown = dict(line.split() for line in OUTPUT.splitlines())
    assert {k: float(v) for k, v in printed.items()} == pytest.approx({k: float(v) for k, v in shown.items()}, abs=0.03)
    assert (tmp_path / "saved" / "saved_model.pb").exists()
