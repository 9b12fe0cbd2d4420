"""Kills of programs that write rounds."""

import os
import signal
import subprocess
import time


def kill_when(file, command):
    """Run a program until a file is there, and kill it with its children."""
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not file.exists() and killed.poll() is None:
            time.sleep(0.05)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
