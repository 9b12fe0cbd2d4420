"""Opening files that may be anything."""

import os

import pytest

from tests.kit import refuses
from tfp_bfl import files


def test_content(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_regular(tmp_path / "a", "file", 5) == b"12345"
    with files.open_regular(str(tmp_path / "a"), "file") as file:
        assert file.read(2) == b"12"


def test_a_larger_file(tmp_path):
    (tmp_path / "a").write_bytes(b"123456")
    refuses("is too large: it may have at most 5 bytes", files.read_regular, tmp_path / "a", "file", 5)


def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "a")
    refuses("must be a regular file", files.read_regular, tmp_path / "a", "file", 5)


@pytest.mark.parametrize("path", ["/dev/zero", "/proc", "nowhere", "a\0b", 10**6, "/proc/self/mem"])
def test_what_can_t_be_read(path):
    refuses(r"The file .* can't be read: .*\.", files.read_regular, path, "file", 5)


def test_names_stay_on_one_line():
    assert files.name("a b/ü.png") == "a b/ü.png"
    assert files.name("a\nb") == r"'a\nb'"
