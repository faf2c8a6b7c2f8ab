"""A real MLflow server for benchmarks."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from searchlight.trainables.ports import find_free_ports

START_S = 300


def wait_until(condition: Callable[[], object], seconds: float) -> object:
    """Return the first result of `condition` that is true.

    Raises:
        TimeoutError: There was none within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was not true within {seconds} s")
        time.sleep(0.1)
    return found


class MlflowServer:
    """A server on a fixed port with its database in `folder`. As a context, it runs inside.

    Args:
        workers: The number of its worker processes. None: MLflow's default.
    """

    def __init__(self, folder: Path, workers: int | None = None) -> None:
        [port] = find_free_ports()
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        self._command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
        self._command += ["--artifacts-destination", f"{folder}/artifacts"]
        self._command += [] if workers is None else ["--workers", str(workers)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # Without the eight processes that evaluate language models.
        env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        env.pop("MLFLOW_TRACKING_URI", None)
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._command, stdout=quiet, stderr=quiet, start_new_session=True, cwd=self.folder, env=env
        )
        wait_until(self._answers, START_S)

    def stop(self) -> None:
        """Kill the server, as when its machine is lost."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=20)
            self._process = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # also Ctrl-C: nothing else would end the server
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"{self.url}/health", timeout=2)
            return True
        return False
