"""What TensorFlow's libraries write while they are imported: kept by a command, shown by a program or if they fail."""

import os
import subprocess
import sys

import pytest

NATIVE = "WARNING: All log messages before absl\\nI0000 oneDNN is on\\nE0000 no such instruction\\n"
# Stands for TensorFlow: native lines, a line of Python's, and what each test adds.
PACKAGE = f"import os, sys\nos.write(2, b'{NATIVE}')\nprint('from Python', file=sys.stderr)\n"
PROGRAM = "import sys\nfrom tfp_bfl.logs import catch_native_lines, write_native_lines\n"


def imported(folder, program, then="", **environment):
    """Return the status, the standard error and the temporary files of a program that imports `tensorflow`."""
    temporary = folder / "temporary"
    for each in (folder / "tensorflow", temporary):
        each.mkdir()
    (folder / "tensorflow" / "__init__.py").write_text(PACKAGE + then)
    done = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}{program}"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", str(folder)]), "TMPDIR": str(temporary), **environment},
    )
    return done.returncode, done.stderr, list(temporary.iterdir())


def test_a_command_writes_native_lines_to_a_file_alone(tmp_path):
    log = tmp_path / "tensorflow.log"
    program = "catch_native_lines()\nimport tensorflow, os\nos.write(2, b'later\\n')\n"
    assert imported(tmp_path, f"{program}write_native_lines({str(log)!r})") == (0, "from Python\nlater\n", [])
    assert log.read_text() == NATIVE.replace("\\n", "\n")


@pytest.mark.parametrize(
    ("program", "environment"),
    [("import tensorflow", {}), ("catch_native_lines(); import tensorflow", {"TF_CPP_MIN_LOG_LEVEL": "0"})],
)
def test_a_program_and_who_asks_for_them_see_native_lines(tmp_path, program, environment):
    status, error, left = imported(tmp_path, program, **environment)
    assert (status, left) == (0, []) and error == NATIVE.replace("\\n", "\n") + "from Python\n"


@pytest.mark.parametrize("end", ["raise ImportError('no sign')", "os.abort()"])
def test_an_import_that_fails_or_kills_the_process_shows_the_errors(tmp_path, end):
    status, error, left = imported(tmp_path, "catch_native_lines(); import tensorflow", end)
    assert status and left == [] and "E0000 no such instruction\n" in error
    assert ("I0000" in error) is ("ImportError: no sign" in error) is (end != "os.abort()")


def test_without_a_folder_for_temporary_files_they_are_shown(tmp_path):
    program = "import tempfile\ntempfile.tempdir = '/nowhere'\ncatch_native_lines()\nimport tensorflow\n"
    status, error, _ = imported(tmp_path, program)
    assert status == 0 and "I0000 oneDNN is on\n" in error
