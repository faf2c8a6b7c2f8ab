"""Run a search under seeded faults for an hour, then check that it lost nothing.

The faults come in turn, shuffled: SIGKILL to a worker, to a gang, to the registry, to Ray's raylet and to the driver,
an MLflow server that is killed and comes back, and a full disk. Between two of them the search makes progress. A driver
that has ended is resumed. At the end the search is interrupted, and resumed without faults until its trials have ended.
Then soak_checks.py checks the study, trials.parquet, MLflow, the curves, the processes and the files. The full disk is
a small tmpfs, which root may mount; otherwise this fault is left out, and the script says so.

    python benchmarks/driver/soak.py [--minutes 60] [--seed 0]
"""

import os
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver import soak_checks
from benchmarks.driver.mlflow_server import MlflowServer, wait_until
from benchmarks.recording import ROOT, SEARCH, Row, create_parser, print_progress, print_result
from searchlight.search.study.record import load_search

NAME = "soak"
ACTORS = {"worker": "ray::RayTrainWorker", "gang": "ray::ResourceTrainable", "registry": "ray::Registry"}
DISK_MIB = 128
PATIENCE_S = 300  # for the next report after a fault
END_S = 150  # for a driver to end by itself


class Driver:
    """The process of the search, which is resumed whenever it has ended.

    Attributes:
        started: All processes that it had, by the faults.
        resumed: How often it was resumed.
    """

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        self.journal = folder / "runs" / NAME / "study.journal"
        self.log = folder / "driver.log"
        self.started: set[psutil.Process] = set()
        self.resumed = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SEARCH), *arguments],
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def resume(self, *arguments: str) -> None:
        self.resumed += 1
        self.start("--resume", NAME, "--quiet", *arguments)

    @property
    def has_ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def count_reports(self) -> int:
        return self.journal.read_bytes().count(b'"report/') if self.journal.exists() else 0

    def remember_processes(self) -> list[psutil.Process]:
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.started |= set(children)
            return children
        return []

    def find_actor(self, title: str) -> list[psutil.Process]:
        """Return the processes of the search whose name begins with `title`."""
        found = []
        for child in self.remember_processes():
            with suppress(psutil.NoSuchProcess):
                if (child.cmdline() or [""])[0].startswith(title):
                    found.append(child)
        return sorted(found, key=lambda process: process.pid)

    def wait(self, seconds: float) -> int:
        assert self.process is not None
        return self.process.wait(timeout=seconds)


class Faults:
    """The faults of a search, each a method that returns once it has happened."""

    def __init__(self, driver: Driver, server: MlflowServer, disk: Path | None, draw: random.Random) -> None:
        self.driver, self.server, self.disk, self.draw = driver, server, disk, draw
        self.all: dict[str, Callable[[], None]] = {name: self._actor(title) for name, title in ACTORS.items()}
        self.all |= {"raylet": self.kill_raylet, "driver": self.kill_driver, "MLflow's server": self.restart_server}
        if disk is not None:
            self.all["full disk"] = self.fill_disk

    def _actor(self, title: str) -> Callable[[], None]:
        def kill() -> None:
            found = wait_until(lambda: self.driver.find_actor(title), PATIENCE_S)
            with suppress(psutil.NoSuchProcess):
                self.draw.choice(found).kill()

        return kill

    def kill_raylet(self) -> None:
        next(child for child in self.driver.remember_processes() if child.name() == "raylet").kill()
        self.driver.wait(END_S)

    def kill_driver(self) -> None:
        assert self.driver.process is not None
        self.driver.remember_processes()
        self.driver.process.kill()
        self.driver.wait(20)

    def restart_server(self) -> None:
        self.server.stop()
        time.sleep(self.draw.uniform(2, 20))
        self.server.start()

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


def mount_disk(folder: Path, stack: ExitStack) -> Path | None:
    """Mount a small file system at `folder`. Return None and print the reason if that is impossible."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        print_progress(f"no full disk: a tmpfs cannot be mounted ({done.stderr.strip()})")
        return None
    stack.callback(subprocess.run, ["umount", str(folder)], check=True)
    return folder


def endure(driver: Driver, faults: Faults, until: float, draw: random.Random) -> dict[str, list[float]]:
    """Apply faults until `until`. Return the seconds from each one to the next report, by kind."""
    seconds: dict[str, list[float]] = {name: [] for name in faults.all}
    deck: list[str] = []
    while time.monotonic() < until:
        before = driver.count_reports()
        wanted = before + draw.randint(2, 12)  # progress, since a trial fails that loses its workers without any
        wait_until(lambda wanted=wanted: driver.has_ended or driver.count_reports() >= wanted, PATIENCE_S)
        if driver.has_ended:
            raise RuntimeError(f"the search ended without a fault:\n{driver.log.read_text()[-3000:]}")
        if not deck:
            deck = draw.sample(sorted(faults.all), len(faults.all))
        name = deck.pop()
        start = time.monotonic()
        faults.all[name]()
        time.sleep(1)  # then a driver that the fault ends has ended, and reports that were on their way have come
        before = driver.count_reports()
        if driver.has_ended:
            driver.resume()
        while not (driver.count_reports() > before and not driver.has_ended):
            if driver.has_ended:
                driver.resume()
            if time.monotonic() > start + PATIENCE_S:
                raise TimeoutError(f"no report within {PATIENCE_S} s of {name}:\n{driver.log.read_text()[-3000:]}")
            time.sleep(0.1)
        seconds[name].append(time.monotonic() - start)
        print_progress(f"{name:<16} {seconds[name][-1]:5.1f} s, {driver.count_reports()} reports")
    return seconds


def finish(driver: Driver) -> None:
    """Interrupt the search, and resume it until all trials that it began have ended."""
    assert driver.process is not None
    driver.remember_processes()
    driver.process.send_signal(signal.SIGINT)
    driver.wait(END_S)
    begun = len(load_search(driver.journal.parent).trials)
    driver.resume("--trials", str(begun))
    if driver.wait(600):
        raise RuntimeError(f"the search did not end in good order:\n{driver.log.read_text()[-3000:]}")


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the faults and their moments")
    parser.add_argument("--curves", type=int, default=12, help="trials that are trained again to compare their curves")
    parser.add_argument("--keep", action="store_true", help="do not remove the folder of the search")
    given = parser.parse_args()
    start, load, draw = time.monotonic(), os.getloadavg()[0], random.Random(given.seed)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # of Ray, whose sockets need a short path
        stack.callback(shutil.rmtree, temporary)
        if given.keep:
            print_progress(f"the folder is {folder}")
        else:
            stack.callback(shutil.rmtree, folder)
        for name in ("runs", "mlflow"):
            (folder / name).mkdir()
        disk = mount_disk(folder / "runs", stack)
        server = stack.enter_context(MlflowServer(folder / "mlflow", workers=1))
        (folder / "token").write_text(secrets.token_hex(32))
        env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_"))}
        env |= {"RAY_TMPDIR": str(temporary), "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "OMP_NUM_THREADS": "1"}
        env |= {"SOAK_LOG": str(folder / "epochs"), "MLFLOW_TRACKING_URI": server.url, "PYTHONPATH": str(ROOT)}
        driver = Driver(folder, env)
        stack.callback(end_driver, driver)
        faults = Faults(driver, server, disk, draw)
        options = ["--trials", "100000", "--confirm", "0", "--concurrency", "2", "--set", "precision=fp32", "--quiet"]
        driver.start(f"{Path(__file__).with_name('soak_task.py')}:Soak", "--name", NAME, *options)
        seconds = endure(driver, faults, start + 60 * given.minutes, draw)
        finish(driver)
        minutes = round((time.monotonic() - start) / 60)
        trained = (folder / "epochs").read_text().count("\n")
        checks = soak_checks.check(driver.journal.parent, server.url, trained, given.curves, draw)
        checks["left"] = soak_checks.check_nothing_left(driver.started, temporary)
    search = {"duration": minutes, "seed": given.seed, "load_before": load, "load_after": os.getloadavg()[0]}
    figures = {
        "search": {**search, "drivers": driver.resumed + 1},
        "faults": [{"fault": name, **describe_seconds(found)} for name, found in seconds.items()],
        "checks": [{"check": name, "found": found} for name, found in checks.items()],
    }
    print_result(figures, {"duration": "min", "median": "s", "most": "s"})


def describe_seconds(found: Sequence[float]) -> Row:
    """Return how often a fault happened, and the seconds to the next report."""
    return {"times": len(found), **({"median": statistics.median(found), "most": max(found)} if found else {})}


def end_driver(driver: Driver) -> None:
    """End the driver if it runs, as after an error of this script."""
    if driver.process is not None and not driver.has_ended:
        driver.process.kill()
        driver.process.wait(timeout=20)


if __name__ == "__main__":
    main()
