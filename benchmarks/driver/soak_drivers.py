"""The drivers of soak.py: a process of the search for each kind of store, which is resumed whenever it has ended."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from benchmarks.driver.mlflow_server import wait_until
from benchmarks.recording import ROOT, SEARCH
from searchlight.search.storage.bucket_journal import read_records
from searchlight.trainables.filesystem.paths import RemotePath, StoragePath, parse_path
from searchlight.trainables.ports import find_free_ports
from tests.servers.postgres import Server
from tests.servers.s3 import S3Server

NAME = "soak"
TASK = Path(__file__).with_name("soak_task.py")
START_S = 900  # for a Ray head to answer
END_S = 900  # for a driver to end by itself
SENT = ("searchlight", "search", "trainables", "models")  # with a job


class Driver:
    """The process of a search whose study is a journal on a disk.

    Attributes:
        started: All processes that it had, by the faults.
        resumed: How often it was resumed.
    """

    task, options = f"{TASK}:Soak", list[str]()

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        self.log = folder / "driver.log"
        self.started: set[psutil.Process] = set()
        self.resumed = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> StoragePath:
        """The folder of the search."""
        return self.folder / "runs" / NAME

    def start(self, *arguments: str) -> None:
        self.launch([sys.executable, str(SEARCH), *arguments], self.folder)

    def launch(self, command: Sequence[str], folder: Path) -> None:
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def resume(self, *arguments: str) -> None:
        self.resumed += 1
        self.start("--resume", NAME, "--quiet", *arguments)

    @property
    def has_ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def count_reports(self) -> int:
        journal = self.folder / "runs" / NAME / "study.journal"
        return journal.read_bytes().count(b'"report/') if journal.exists() else 0

    def remember_processes(self) -> list[psutil.Process]:
        """Return the processes that the search has started, and keep them in `started`."""
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.started |= set(children)
            return children
        return []

    def find_actor(self, title: str) -> list[psutil.Process]:
        """Return the processes of the search whose name begins with `title`."""
        found = [child for child in self.remember_processes() if get_command(child)[0].startswith(title)]
        return sorted(found, key=lambda process: process.pid)

    def wait(self, seconds: float) -> int:
        assert self.process is not None
        return self.process.wait(timeout=seconds)

    def kill(self) -> None:
        assert self.process is not None
        self.remember_processes()
        self.process.kill()

    def interrupt(self) -> None:
        """End the search in order, and wait for it."""
        assert self.process is not None
        self.remember_processes()
        self.process.send_signal(signal.SIGINT)
        self.wait(END_S)

    def end(self) -> None:
        """End the driver if it runs, as after an error of this script."""
        if self.process is not None and not self.has_ended:
            self.process.kill()
            self.process.wait(timeout=20)


class PostgresDriver(Driver):
    """The process of a search whose study is in PostgreSQL."""

    def __init__(self, folder: Path, env: dict[str, str], database: Server) -> None:
        super().__init__(folder, env)
        self.database = database
        self.options = ["--study", database.database(NAME)]
        self._count = 0

    def count_reports(self) -> int:
        with suppress(psycopg.OperationalError, LookupError):  # it restarts, or has no table yet
            found = self.database.query(NAME, "SELECT count(*) FROM trial_intermediate_values")
            self._count = int(str(found))
        return self._count


class JobDriver(Driver):
    """`ray job submit` of a search whose study is in a bucket, to a cluster of one node on this machine."""

    task = f"{TASK.name}:Soak"

    def __init__(self, folder: Path, env: dict[str, str], bucket: S3Server) -> None:
        del env["PYTHONPATH"]  # a job uses the code that was sent with it
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env |= bucket.env | {"PATH": path, "RAY_AUTH_MODE": "token", "RAY_JOB_STOP_WAIT_TIME_S": "60"}
        super().__init__(folder, env)
        os.environ |= bucket.env
        self._storage = bucket.make_bucket(NAME)
        self.options = ["--storage", self._storage]
        self._jobs = 0
        self._head: psutil.Popen | None = None
        self._url = ""
        for name in SENT:
            shutil.copytree(
                ROOT / name, folder / "user" / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in (TASK, ROOT / ".rayignore", ROOT / "pyproject.toml"):
            shutil.copy(file, folder / "user")

    @property
    def place(self) -> RemotePath:
        place = parse_path(self._storage) / NAME
        assert isinstance(place, RemotePath)
        return place

    def start_head(self) -> None:
        ports = find_free_ports(4)
        names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
        options = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
        options += ["--min-worker-port=0", "--max-worker-port=0", "--num-cpus=4", "--disable-usage-stats"]
        options += ["--node-ip-address=127.0.0.1", f"--temp-dir={self.env['RAY_TMPDIR']}"]
        self._url = f"http://127.0.0.1:{ports[1]}"
        wait_until(lambda: self._answers(options), START_S)

    def _answers(self, options: Sequence[str]) -> bool:
        """Return whether the head answers. Start it, also again: on a busy machine, Ray may give up its start."""
        if self._head is None or self._head.poll() is not None:
            with open(self.folder / "head.log", "a") as log:
                self._head = psutil.Popen(
                    ["ray", "start", "--head", "--block", *options],
                    env=self.env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        token = (self.folder / "token").read_text()
        asked = urllib.request.Request(f"{self._url}/api/version", headers={"Authorization": f"Bearer {token}"})
        with suppress(OSError):
            urllib.request.urlopen(asked, timeout=2)
            return True
        return False

    def start(self, *arguments: str) -> None:
        self._jobs += 1
        command = ["ray", "job", "submit", "--address", self._url, "--submission-id", f"{NAME}-{self._jobs}"]
        command += ["--working-dir", ".", "--", "python", "search/run.py", *arguments]
        self.launch(command, self.folder / "user")

    def resume(self, *arguments: str) -> None:
        super().resume("--storage", self._storage, *arguments)

    def count_reports(self) -> int:
        return sum(b'"report/' in record for record in read_records(self.place))

    def remember_processes(self) -> list[psutil.Process]:
        found = [child for child in self._list_processes() if is_of_search(get_command(child))]
        self.started |= set(found)
        return found

    def _list_processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return list(self._head.children(recursive=True)) if self._head is not None else []
        return []

    def find_driver(self) -> list[psutil.Process]:
        return [child for child in self.remember_processes() if "search/run.py" in get_command(child)]

    def kill(self) -> None:
        for process in self.find_driver():
            process.kill()

    def interrupt(self) -> None:
        """End the search by `ray job stop`, and wait for it."""
        self.remember_processes()
        stop = ["ray", "job", "stop", "--address", self._url, f"{NAME}-{self._jobs}"]
        with open(self.log, "a") as log:
            subprocess.run(stop, env=self.env, stdout=log, stderr=log, check=True, timeout=END_S)
        self.wait(END_S)

    def lose_head(self) -> None:
        """Kill the GCS and the raylet. When the driver has ended for that, start another head."""
        driver, others = self.find_driver(), self._list_processes()
        for child in others:
            if child.name() in ("gcs_server", "raylet"):
                child.kill()
        psutil.wait_procs(driver, timeout=END_S)
        running = [process for process in driver if process.is_running()]
        if running:
            raise TimeoutError(f"{running} did not end within {END_S} s of its head")
        self.end()  # of `ray job submit`
        self.end_head(others)
        self.start_head()

    def end_head(self, others: Sequence[psutil.Process] = ()) -> None:
        """End all processes of the cluster. `others` are those whose parent has ended."""
        for process in [*([self._head] if self._head is not None else []), *self._list_processes(), *others]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._head is not None:
            self._head.wait(timeout=20)
        self._head = None


def get_command(process: psutil.Process) -> list[str]:
    """Return the command line of a process, with one empty word if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline() or [""]
    return [""]


def is_of_search(command: Sequence[str]) -> bool:
    """Return whether `command` is a driver, or an actor of a search."""
    actors = ("ray::RayTrainWorker", "ray::ResourceTrainable", "ray::Registry")
    return command[0].startswith(actors) or "search/run.py" in command[1:2]
