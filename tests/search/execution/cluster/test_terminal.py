"""Leave nothing of Ray behind in a terminal."""

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

SESSION = """
import sys
from pathlib import Path
from rich.live import Live
from searchlight.search.reporting.console.tables import create_console

with Live("a search", console=create_console(sys.stderr), transient=True):
    from searchlight.search.execution.cluster.connection import ray_session
    with ray_session(Path(sys.argv[1])):
        from ray import tune
print("all is well")
"""


@pytest.mark.slow
def test_last_line_in_a_terminal_is_the_last_that_was_printed(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SESSION, str(tmp_path)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    written = b""
    with suppress(OSError):  # it has ended
        while data := os.read(ours, 65536):
            written += data
    os.close(ours)
    assert process.wait() == 0, written
    assert written.endswith(b"all is well\r\n"), written[-200:]
