"""End the processes that began in Ray's session, and remove its folder: with real processes."""

import io
import os
import subprocess
import sys

import pytest

from searchlight.search.execution.cluster import session_cleanup

WAITS = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
# Its parent ends at once, and it has a session of its own.
DAEMON = """
import subprocess, sys
subprocess.Popen(sys.argv[1:], start_new_session=True)
"""


@pytest.fixture
def begun(tmp_path):
    """Starts a process with a variable PYTHONPATH and a file for its errors. All of them end with the test."""
    started = []

    def begin(pythonpath, errors, *command):
        with open(errors, "w") as file:
            pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(pythonpath)}
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, env=environment, text=True)
        started.append(process)
        return process, process.stdout.readline()

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("last_line", ["ended", ""])
def test_processes_of_a_session_end_with_it_and_no_others(begun, tmp_path, monkeypatch, last_line):
    session, other = tmp_path / "session", tmp_path / "other"
    session.mkdir(), other.mkdir()
    program, _ = begun(session / "modules", other / "a", *WAITS)
    daemon, _ = begun(session / "modules", other / "b", sys.executable, "-c", DAEMON, *WAITS)
    reader, _ = begun(other / "modules", session / "c", *WAITS)  # such as an editor of a log
    stranger, _ = begun(tmp_path / "session-2" / "modules", other / "d", *WAITS)
    monkeypatch.setattr(session_cleanup, "GRACE_S", 0.0)
    monkeypatch.setattr(session_cleanup.sys, "stdin", io.StringIO(last_line))
    session_cleanup.clean(session)
    assert program.wait(timeout=30) == -9
    assert daemon.stdout.read() == "", "the pipe is closed, since no process has it open"
    assert (reader.poll(), stranger.poll()) == (None, None)
    assert not session.exists()
