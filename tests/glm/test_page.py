"""The programs of the page print what it shows."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "glm.md"
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(), re.S)


def printed(blocks, capsys):
    """Return what programs print, one after another."""
    names, outputs = {}, []
    for program, _ in blocks:
        exec(program, names)
        outputs.append(capsys.readouterr().out)
    return outputs


def test_the_programs_print_what_the_page_shows(capsys):
    assert len(BLOCKS) == PAGE.read_text().count("```python") == 3
    assert printed(BLOCKS, capsys) == [shown for _, shown in BLOCKS]
