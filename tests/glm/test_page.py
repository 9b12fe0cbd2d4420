"""The programs of the page print what it shows."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "glm.md"


def test_the_programs_print_what_the_page_shows(capsys):
    names = {}
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == PAGE.read_text().count("```python") == 3
    for program, shown in blocks:
        exec(program, names)
        assert capsys.readouterr().out == shown
