"""A real S3 server on loopback, in a process of its own, that can go away and come back, empty."""

import os
import socket
import sys
from pathlib import Path

from tests.servers.process import ServerProcess


class S3Server(ServerProcess):
    """moto's server; all that it holds is in its memory.

    Args:
        folder: Where its log goes.
        port: A free one by default.
        host: The address that it listens on.
    """

    def __init__(self, folder: Path, port: int | None = None, host: str = "127.0.0.1") -> None:
        super().__init__(folder, host, port)

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
        command = [sys.executable, "-m", "moto.server", "--host", self.host, "--port", str(self.port)]
        self.launch(command, {**os.environ, **self.env}, self._answers)
        return self

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

    def _answers(self) -> bool:
        socket.create_connection((self.host, self.port), timeout=2).close()
        return True
