"""A real MLflow server on loopback, in a process of its own, that can go away and come back."""

import os
import sys
import urllib.request
from pathlib import Path

from tests.servers.process import ServerProcess

ADMIN = ("admin", "correct-horse-1")  # who is made at the first start with basic auth


class MlflowServer(ServerProcess):
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
        super().__init__(folder, host, port)
        self._auth = auth
        self._command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(self.port)]
        self._command += ["--workers", "1", "--backend-store-uri", store or f"sqlite:///{folder / 'server.db'}"]
        self._command += ["--artifacts-destination", str(folder / "artifacts")]
        self._command += ["--app-name", "basic-auth"] if auth else []

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
        self.launch(self._command, environment, self._answers)
        return self

    def _answers(self) -> bool:
        urllib.request.urlopen(f"{self.url}/health", timeout=2)
        return True
