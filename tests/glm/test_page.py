"""The programs of the pages print what they show."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def printed(blocks, capsys):
    """Return what programs print, one after another."""
    names, outputs = {}, []
    for program, _ in blocks:
        exec(program, names)
        outputs.append(capsys.readouterr().out)
    return outputs


@pytest.mark.parametrize(("page", "number"), [("glm", 5), ("client_heads", 4), ("survival", 2)])
def test_the_programs_print_what_the_page_shows(page, number, capsys, tmp_path, monkeypatch):
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S)
    assert len(blocks) == text.count("```python") == number
    monkeypatch.chdir(tmp_path)
    assert printed(blocks, capsys) == [shown for _, shown in blocks]
