"""What a search starts and leaves on the machine."""

import time
from pathlib import Path

import psutil


class Traces:
    """The processes of a search that runs, and the folder that its Ray has for itself in `temporary`."""

    def __init__(self, process, temporary: Path):
        self.temporary = temporary
        self.started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(self.started) > 5
        assert len(list(temporary.iterdir())) == 1

    def check_gone(self):
        wait_for_nothing(lambda: [pid for pid in self.started if is_running(pid)] + list(self.temporary.iterdir()))


def wait_for_nothing(left):
    """Until `left()` is empty, for 30 seconds at most."""
    deadline = time.monotonic() + 30
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
