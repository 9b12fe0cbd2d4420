"""The messages that docs/troubleshooting.md quotes are those of the library."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
# The quoted messages: the first cell of a row, all of it in backticks.
MESSAGES = re.findall(r"^\| `([^`|]+)` \|", PAGE, re.M)
# Of other programs.
FOREIGN = (
    *("WARNING: All log messages before absl::InitializeLog()", "local_workers(max_concurrent_calls=1)"),
    "Only instances of keras.Layer can be added to a Sequential model",
)


def literals():
    """The texts of the library, with NUL in the place of what is filled in."""
    for path in (ROOT / "tfp_bfl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    yield (ROOT / "Makefile").read_text()


TEXTS = list(literals())


@pytest.mark.parametrize("message", [message for message in MESSAGES if message not in FOREIGN])
def test_the_library_has_each_message(message):
    pieces = [re.escape(piece.strip()) for piece in message.split("...") if piece.strip()]
    pattern = re.compile(".*?".join(pieces), re.S)
    assert any(pattern.search(text) for text in TEXTS)


def test_the_page_quotes_messages():
    assert len(MESSAGES) > 50
