"""A real S3 server on loopback, in a process of its own, that can go away and come back, empty."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

START_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class S3Server:
    """moto's server; all that it holds is in its memory.

    Args:
        folder: Where its log goes.
        port: A free one by default.
        host: The address that it listens on.
    """

    def __init__(self, folder: Path, port: int | None = None, host: str = "127.0.0.1") -> None:
        self.folder, self.host = folder, host
        self.port = port or free_port()
        self.url = f"http://{host}:{self.port}"
        self._process: subprocess.Popen | None = None

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment, beside its own, to use this server as if it were AWS."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "of-a-test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-a-test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> "S3Server":
        """Returns once it answers, seconds later."""
        with open(self.folder / "s3.log", "a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "--host", self.host, "--port", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
                start_new_session=True,
                cwd=self.folder,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), socket.create_connection((self.host, self.port), timeout=2):
                return self
            time.sleep(0.1)
        self.stop()
        raise TimeoutError(f"the S3 server did not answer within {START_S} s:\n{self.log()[-3000:]}")

    def stop(self) -> None:
        """At once, as when the network to it is cut."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=20)
            self._process = None

    def make_bucket(self, name: str) -> str:
        """The URI of a new bucket."""
        from pyarrow import fs

        made = fs.S3FileSystem(
            endpoint_override=self.url,
            region="us-east-1",
            access_key=self.env["AWS_ACCESS_KEY_ID"],
            secret_key=self.env["AWS_SECRET_ACCESS_KEY"],
            allow_bucket_creation=True,
        )
        made.create_dir(name)
        return f"s3://{name}"

    def log(self) -> str:
        return (self.folder / "s3.log").read_text()
