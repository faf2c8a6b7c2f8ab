"""A PostgreSQL server of a test's own: a real one, in a folder that goes away with it, on a free loopback port."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from searchlight.trainables.ports import find_free_ports

USER = "searcher"


def find_programs() -> Path | None:
    """The folder with `initdb` and `postgres`, or None where there is none."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


class Server:
    """A server that can be stopped and started again; `url` is as a user writes it.

    Args:
        host: The address that it listens on; everybody who can reach it may come in.
    """

    def __init__(self, programs: Path, host: str = "127.0.0.1") -> None:
        self._host = host
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        # PostgreSQL refuses to run as root.
        self._as: dict = {"user": "nobody"} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(self.folder, **self._as)
        [self.port] = find_free_ports(host=host)
        self.url = f"postgresql://{USER}@{host}:{self.port}"
        self._run("initdb", "-D", self.folder / "data", "-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8")
        with open(self.folder / "data" / "pg_hba.conf", "a") as rules:
            rules.write("host all all samenet trust\n")
        self.start()

    def start(self) -> None:
        options = [
            "-k",
            str(self.folder),
            "-p",
            str(self.port),
            "-c",
            f"listen_addresses={self._host}",
            "-c",
            "fsync=off",
        ]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        self._log = open(self.folder / "log", "a")  # noqa: SIM115 (until `stop`)
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=self.folder, **self._as)
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(f"{self.url}/postgres", connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        """At once: those who are connected lose their connection."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(timeout=30)
        self._log.close()

    def database(self, name: str) -> str:
        """The URL of a new database."""
        self.execute("postgres", f"CREATE DATABASE {name}")
        return f"{self.url}/{name}"

    def execute(self, database: str, *statements: str) -> None:
        with psycopg.connect(f"{self.url}/{database}", autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, database: str, question: str) -> object:
        """The one answer.

        Raises:
            LookupError: There is no such table yet.
        """
        with psycopg.connect(f"{self.url}/{database}") as connection:
            try:
                return connection.execute(question).fetchone()[0]
            except psycopg.errors.UndefinedTable as error:
                raise LookupError(question) from error

    def log(self) -> str:
        """What the server has said."""
        return (self.folder / "log").read_text()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=120, **self._as)
        assert done.returncode == 0, done.stderr
