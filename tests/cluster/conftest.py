"""A Ray cluster as users have them: machines of their own, a token, the job server; and the servers that all reach."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cluster.hosts import Host, Network, why_not
from tests.servers.mlflow import MlflowServer
from tests.servers.s3 import S3Server

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "tests" / "tasks"
PROGRAMS = Path(sys.executable).parent
STORE_BYTES = 100 * 2**20
LONGEST_S = 900
SECRETS = {"AWS_SECRET_ACCESS_KEY": "of-the-bucket-17", "PGPASSWORD": "of-the-database-17"}


class RayCluster:
    """A head that takes jobs and no trial, and workers that join it.

    Attributes:
        head: Where jobs run. The user submits them from `folder` there.
        token: That Ray asks for.
    """

    def __init__(self, network: Network, env: dict[str, str]) -> None:
        self.network, self.token = network, secrets.token_hex(16)
        path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
        disk = str(network.disk)
        self.env = {
            **{"PATH": path, "HOME": disk, "TMPDIR": disk, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            **{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{disk}/token", "RAY_JOB_STOP_WAIT_TIME_S": "60"},
            **{"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"},
            "RAY_worker_niceness": "0",  # by default 15: other programs on a busy machine would stop the workers
            **env,
        }
        self.workers: list[Host] = []
        self.head = self._started("--head", "--num-cpus=0", "--dashboard-host=127.0.0.1")
        self.folder = network.disk / "user"

    def join(self, gpus: int = 1) -> Host:
        """One more worker, with a CPU and GPUs that it declares."""
        address = f"--address={self.head.ip}:6379"
        self.workers.append(self._started(address, "--num-cpus=1", f"--num-gpus={gpus}"))
        return self.workers[-1]

    def ray(self, *words: str) -> str:
        return self.head.run("ray", *words, env=self.env, timeout=LONGEST_S)

    def drain(self, worker: Host, seconds: int) -> None:
        """Announce that `worker` will be taken away, as a cloud does with a spot node."""
        told = (
            "from datetime import UTC, datetime, timedelta; from deploy.preemption import drain;"
            f"drain(datetime.now(UTC) + timedelta(seconds={seconds}))"
        )
        worker.run("python", "-c", told, env={**self.env, "PYTHONPATH": str(ROOT)})

    def send_project(self) -> None:
        """Copy the project to the head, as a user does, with a large file that jobs must not send."""
        copied = [
            ROOT / name
            for name in ("searchlight", "search", "trainables", "models", "pyproject.toml", ".rayignore", ".gitignore")
        ]
        copied += [TASKS / "toy.py", TASKS / "beside.py"]
        self.head.run("mkdir", self.folder)
        self.head.run("cp", "-r", *copied, self.folder)
        self.head.run(
            "sh", "-c", f"mkdir {self.folder}/runs && head -c 300M /dev/zero > {self.folder}/runs/checkpoint.pt"
        )

    def replace_head(self) -> None:
        """Another head, on another machine, for one that was lost; with two workers, since the others end with it."""
        self.head = self._started("--head", "--num-cpus=0", "--dashboard-host=127.0.0.1")
        self.send_project()
        self.workers = []
        self.join()
        self.join()

    def _started(self, *options: str) -> Host:
        """A machine that runs Ray. On a busy one, Ray may give up its start, so that another machine is tried."""
        for may_retry in (True, True, True, False):
            host = self.network.host()
            host.run("sh", "-c", f"umask 077; echo {self.token} > {host.disk}/token")
            shared = [f"--node-ip-address={host.ip}", f"--temp-dir={host.disk}/ray"]
            shared += [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
            try:
                host.run("ray", "start", *options, *shared, env=self.env, timeout=LONGEST_S)
                break
            except AssertionError:
                if not may_retry:
                    raise
                host.unplug()
        return host


class Job:
    """A search that was submitted: what is streamed of it, as it comes."""

    def __init__(self, cluster: RayCluster, name: str, entrypoint: Sequence[str], folder: Path) -> None:
        self._file = folder / f"{name}.txt"
        command = ["ray", "job", "submit", "--submission-id", name, "--working-dir", ".", "--", *entrypoint]
        within = ["sh", "-c", f'cd {cluster.folder} && exec "$@"', "sh"]
        with open(self._file, "w") as file:
            pipes = {"stdout": file, "stderr": subprocess.STDOUT}
            self._process = cluster.head.start(*within, *command, env=cluster.env, **pipes)

    def text(self) -> str:
        return self._file.read_text()

    def wait_for(self, text: str, seconds: float = LONGEST_S) -> None:
        self.wait_until(lambda: text in self.text(), repr(text), seconds)

    def wait_until(self, condition: Callable[[], object], what: str, seconds: float = LONGEST_S) -> None:
        """Wait until `condition` is true. Fail after `seconds`, or once the job has ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self._process.poll() is not None:
                pytest.fail(f"no {what} within {seconds} s ({self._process.poll()}):\n{self.text()[-6000:]}")
            time.sleep(0.5)  # some conditions read a whole study from a bucket

    def wait(self, seconds: float = LONGEST_S) -> str:
        """All of it, once the job has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            pytest.fail(f"not ended within {seconds} s:\n{self.text()[-6000:]}")
        return self.text()

    @property
    def succeeded(self) -> bool:
        return self._process.poll() == 0


@pytest.fixture(scope="module")
def network():
    if reason := why_not():
        pytest.skip(reason)
    made = Network()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def bucket(network, tmp_path_factory):
    """An S3 server that all machines reach, and the URI of a bucket in it."""
    server = S3Server(tmp_path_factory.mktemp("s3"), host=network.ip).start()
    # A process keeps the connection to a bucket by its name, and this server may be the second one in it.
    yield server, server.make_bucket(f"searches-{server.port}")
    server.stop()


@pytest.fixture(scope="module")
def database(network):
    from tests.servers.postgres import Server, find_programs  # psycopg is an extra

    programs = find_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL on this machine")
    made = Server(programs, host=network.ip)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def mlflow_server(network, database, tmp_path_factory):
    """MLflow's server, whose runs are in PostgreSQL."""
    store = database.database("mlflow").replace("postgresql:", "postgresql+psycopg:")
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"), store, host=network.ip).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(network, bucket, mlflow_server):
    """A head and two workers, each on a machine of its own, and a user on the head with his copy of the project."""
    server, _ = bucket
    made = RayCluster(network, {**server.env, **SECRETS, "MLFLOW_TRACKING_URI": mlflow_server.url})
    made.send_project()
    made.join()
    made.join()
    return made


@pytest.fixture
def submit(cluster, tmp_path):
    """`ray job submit` of a search: its name as a job, and the arguments of the command line."""

    def submit(name: str, *arguments: str) -> Job:
        return Job(cluster, name, ["python", "search/run.py", *arguments, "--confirm", "0"], tmp_path)

    return submit
