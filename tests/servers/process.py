"""What the servers of tests have in common: a process on a port of its own, that can go away and come back."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from searchlight.trainables.ports import find_free_ports

ANSWER_S = 90


class ServerProcess:
    """A server at `url`, whose log is in `folder`."""

    def __init__(self, folder: Path, host: str, port: int | None) -> None:
        self.folder, self.host = folder, host
        self.port = port or find_free_ports(host=host)[0]
        self.url = f"http://{host}:{self.port}"
        self._process: subprocess.Popen | None = None

    def launch(self, command: Sequence[str], env: Mapping[str, str], answers: Callable[[], bool]) -> None:
        """Returns once it answers, seconds later."""
        with open(self.folder / "server.log", "a") as log:
            # A session of its own: its workers are children, which would otherwise live on.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True, cwd=self.folder
            )
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError):  # nobody listens yet
                if answers():
                    return
            time.sleep(0.1)
        self.stop()
        raise TimeoutError(f"{self.url} did not answer within {ANSWER_S} s:\n{self.log()[-3000:]}")

    def stop(self) -> None:
        """At once, as when its machine is lost."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=20)
            self._process = None

    def log(self) -> str:
        return (self.folder / "server.log").read_text()
