"""What a search starts and leaves on the machine, and how tests wait for it."""

import contextlib
import re
import time
from pathlib import Path

import psutil
import pytest


def wait_until(condition, process=None, seconds=300):
    """Return the first result of `condition` that is true. Fail after `seconds`, or once `process` has ended."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            pytest.fail(f"the process ended with code {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            pytest.fail(f"the condition was not true within {seconds} s")
        time.sleep(0.05)
    return found


def contains(file: Path, text: str, times: int = 1) -> bool:
    return file.exists() and file.read_text().count(text) >= times


def find_actors(process, title):
    """Return the living processes under a search whose name begins with `title`, as Ray names its actors."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and (child.cmdline() or [""])[0].startswith(f"ray::{title}"):
                found.append(child)
    return found


class Traces:
    """The processes of a search that runs, and the folder that its Ray has for itself in `temporary`."""

    def __init__(self, process, temporary: Path):
        self.temporary = temporary
        self.started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(self.started) > 5
        assert len(list(temporary.iterdir())) == 1

    def find_reachable(self):
        """Return the addresses at which other machines can reach the processes."""
        processes = [*map(psutil.Process, filter(is_running, self.started))]
        assert any("RayTrainWorker" in " ".join(process.cmdline()) for process in processes)
        sockets = [socket for process in processes for socket in process.net_connections("inet")]
        listening = [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN]
        assert len(listening) > 5
        return [address for address in listening if not address.ip.removeprefix("::ffff:").startswith("127.")]

    def find_servers(self):
        """Return the servers of Ray that no search on one machine uses, and which delay its begin."""
        commands = [" ".join(psutil.Process(pid).cmdline()) for pid in filter(is_running, self.started)]
        assert any("gcs_server" in command for command in commands)
        return re.findall(r"\b(?:dashboard|log_monitor|monitor)\.py", "\n".join(commands))

    def check_gone(self):
        wait_until(lambda: not any(map(is_running, self.started)) and not list(self.temporary.iterdir()), seconds=30)


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
