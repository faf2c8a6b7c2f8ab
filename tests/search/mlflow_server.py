"""A real MLflow server on loopback, in a process of its own, that can go away and come back."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

ADMIN = ("admin", "correct-horse-1")  # who is made at the first start with basic auth


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class MlflowServer:
    """A server whose runs and artifacts lie in `folder`.

    Args:
        store: Where the runs are instead, as in `mlflow server --backend-store-uri`.
        auth: Asks for a user and a password, see ADMIN.
        port: A free one by default.
        host: The address that it listens on.
    """

    def __init__(
        self, folder: Path, store: str = "", auth: bool = False, port: int | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.url = f"http://{host}:{self.port}"
        self._auth = auth
        self._command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(self.port)]
        self._command += ["--workers", "1", "--backend-store-uri", store or f"sqlite:///{folder / 'server.db'}"]
        self._command += ["--artifacts-destination", str(folder / "artifacts")]
        self._command += ["--app-name", "basic-auth"] if auth else []
        self._process: subprocess.Popen | None = None

    def start(self) -> "MlflowServer":
        """Returns once it answers, seconds later."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        environment["MLFLOW_DISABLE_TELEMETRY"] = "true"
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # eight processes that evaluate language models
        if self._auth:
            settings = self.folder / "auth.ini"
            settings.write_text(
                f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{self.folder / 'auth.db'}\n"
                f"admin_username = {ADMIN[0]}\nadmin_password = {ADMIN[1]}\n"
                "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
            )
            environment["MLFLOW_AUTH_CONFIG_PATH"] = str(settings)
            environment["MLFLOW_FLASK_SERVER_SECRET_KEY"] = "of a test"
        with open(self.folder / "server.log", "a") as log:
            # A session of its own: its workers are children, which would otherwise live on.
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=self.folder
            )
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=2)
                return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.stop()
        raise TimeoutError(f"the MLflow server did not answer within 90 s:\n{self.log()[-3000:]}")

    def stop(self) -> None:
        """At once, as when its machine is lost."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=20)
            self._process = None

    def log(self) -> str:
        return (self.folder / "server.log").read_text()
