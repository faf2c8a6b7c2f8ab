"""The faults of soak.py: each is a function that returns once the fault has happened."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.driver.mlflow_server import MlflowServer, wait_until
from benchmarks.driver.soak_drivers import END_S, Driver, JobDriver, PostgresDriver

ACTORS = {"worker": "ray::RayTrainWorker", "gang": "ray::ResourceTrainable", "registry": "ray::Registry"}
PATIENCE_S = 1800  # for the next report after a fault: on a busy machine, Ray may take minutes to start


class Faults:
    """The faults that a search may meet.

    Attributes:
        all: The faults by name.
    """

    def __init__(self, driver: Driver, server: MlflowServer, disk: Path | None, draw: random.Random) -> None:
        self.driver, self.server, self.disk, self.draw = driver, server, disk, draw
        self.all: dict[str, Callable[[], None]] = {name: self._actor(title) for name, title in ACTORS.items()}
        self.all |= {"stopped worker": self.stop_worker, "driver": self.kill_driver}
        self.all["MLflow's server"] = self.restart_server
        if isinstance(driver, JobDriver):
            self.all |= {"stopped job": driver.interrupt, "head": driver.lose_head}
        else:
            self.all |= {"raylet": self.kill_raylet, "left processes": self.leave_processes}
        if isinstance(driver, PostgresDriver):
            self.all["PostgreSQL"] = self.restart_database
        if disk is not None:
            self.all["full disk"] = self.fill_disk

    def _find_actor(self, title: str) -> psutil.Process:
        return self.draw.choice(wait_until(lambda: self.driver.find_actor(title), PATIENCE_S))

    def _actor(self, title: str) -> Callable[[], None]:
        def kill() -> None:
            with suppress(psutil.NoSuchProcess):
                self._find_actor(title).kill()

        return kill

    def stop_worker(self) -> None:
        """Stop a worker, until the search ends it for that."""
        with suppress(psutil.NoSuchProcess):
            worker = self._find_actor(ACTORS["worker"])
            worker.suspend()
            worker.wait(PATIENCE_S)

    def leave_processes(self) -> None:
        """Kill a worker whose trial has left processes. Those that the worker must not outlive end; others may run."""
        file = self.driver.folder / "left"
        file.unlink(missing_ok=True)
        (self.driver.folder / "leave").touch()
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), PATIENCE_S)
        found = list[psutil.Process]()
        for word in file.read_text().split():
            with suppress(psutil.NoSuchProcess):  # another fault has ended the worker
                found.append(psutil.Process(int(word)))
        self.driver.started |= {*found}
        if found:
            found[0].kill()

    def kill_raylet(self) -> None:
        next(child for child in self.driver.remember_processes() if child.name() == "raylet").kill()
        self.driver.wait(END_S)

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.wait(END_S)

    def restart_server(self) -> None:
        self.server.stop()
        time.sleep(self.draw.uniform(2, 20))
        self.server.start()

    def restart_database(self) -> None:
        assert isinstance(self.driver, PostgresDriver)
        self.driver.database.stop()
        time.sleep(self.draw.uniform(2, 20))
        self.driver.database.start()

    def fill_disk(self) -> None:
        """Fill the disk for some seconds, or until the search has ended."""
        assert self.disk is not None
        filler = self.disk / "filler"
        with open(filler, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"0" * 4096)
        deadline = time.monotonic() + self.draw.uniform(5, 20)
        while time.monotonic() < deadline and not self.driver.has_ended:
            time.sleep(0.2)
        filler.unlink()
