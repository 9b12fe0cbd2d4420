"""The command line: `tfp-bfl` or `python -m tfp_bfl`."""

import os
import sys

from tfp_bfl.app.interrupts import STATUS, prompt_interrupts
from tfp_bfl.errors import missing_package
from tfp_bfl.logs import catch_native_lines


def main() -> None:
    """Run the command line; errors that the library foresees are one sentence, exit status 2 for bad input, else 1."""
    catch_native_lines()
    with prompt_interrupts():
        try:
            from tfp_bfl.app.cli import run_command_line
        except ModuleNotFoundError as error:
            sys.exit(f"tfp-bfl: {missing_package(error.name)}")
        status = run_command_line(sys.argv[1:])
    if status == STATUS:
        # Threads of TensorFlow that still work abort the process where the interpreter ends beside them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
