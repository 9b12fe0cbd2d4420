"""The programs of the page print what it shows."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "glm.md"
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(), re.S)
ON_WORKERS = [block for block in BLOCKS if 'engine="tff"' in block[0]]


def printed(blocks, capsys):
    """Return what programs print, one after another."""
    names, outputs = {}, []
    for program, _ in blocks:
        exec(program, names)
        outputs.append(capsys.readouterr().out)
    return outputs


def test_the_programs_print_what_the_page_shows(capsys):
    assert len(BLOCKS) == PAGE.read_text().count("```python") == 4
    here = [block for block in BLOCKS if block not in ON_WORKERS]
    assert printed(here, capsys) == [shown for _, shown in here] and len(here) == 3


@pytest.mark.tff
@pytest.mark.deep(after="tests/glm/test_graphs.py")
def test_the_program_on_workers_prints_what_the_page_shows(capsys):
    blocks = [BLOCKS[0], *ON_WORKERS]
    assert printed(blocks, capsys) == [shown for _, shown in blocks] and len(blocks) == 2
