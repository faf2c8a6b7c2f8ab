import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = """
import json, sys
import ray
from searchlight.search.execution.cluster.resources import autoscaler_limits
context = ray.init(address="local", num_cpus=0, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
print(context.address_info["gcs_address"], flush=True)
for _ in sys.stdin:
    print(json.dumps({"largest": autoscaler_limits(), "nodes": ray.nodes()}), flush=True)
"""


class Head:
    """A Ray that offers no CPU, in a process of its own: a process that has used one token is refused with another."""

    def __init__(self, token):
        token.write_text(secrets.token_hex(32))
        given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.env = given | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", HEAD], env=self.env, stdin=pipe, stdout=pipe, text=True)
        self.env["RAY_ADDRESS"] = self._process.stdout.readline().strip()

    def sees(self, what):
        """`largest` of search/execution/cluster/connection.py, or `nodes` of Ray."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())[what]

    def run(self, *arguments, **variables):
        """A module of deploy/ beside it."""
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, env=self.env | variables, capture_output=True, text=True, timeout=60)

    def close(self):
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    started = Head(tmp_path_factory.mktemp("ray") / "token")
    yield started
    started.close()
