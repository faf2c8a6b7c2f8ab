"""Run searches under seeded faults for an hour, then check that they lost nothing.

One search has its study in a journal on a disk, one in PostgreSQL, and one is submitted to a Ray cluster by
`ray job submit`, with its study in a bucket. The faults of soak_faults.py come in turn, shuffled. Between two of them
the search makes progress. A driver that has ended is resumed. At the end the search is interrupted, and resumed without
faults until its trials have ended. Then soak_checks.py checks the study, trials.parquet, MLflow, the curves, the
processes and the files. The full disk is a small tmpfs, which root may mount; otherwise this fault is left out, and the
script says so.

    python benchmarks/driver/soak.py [--minutes 60] [--seed 0] [--stores journal PostgreSQL bucket]
"""

import argparse
import os
import random
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver import soak_checks
from benchmarks.driver.mlflow_server import MlflowServer, wait_until
from benchmarks.driver.soak_drivers import NAME, Driver, JobDriver, PostgresDriver
from benchmarks.driver.soak_faults import PATIENCE_S, Faults
from benchmarks.recording import ROOT, Row, create_parser, print_progress, print_result
from searchlight.search.study.record import load_search
from tests.servers.postgres import Server, find_programs
from tests.servers.s3 import S3Server

DISK_MIB = 128
STALL = "60s"  # more than a window may take, also on a busy machine
STORES = ("journal", "PostgreSQL", "bucket")


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


def finish(driver: Driver) -> int:
    """Interrupt the search, and resume it until all trials that it began have ended. Return their number."""
    driver.interrupt()
    begun = len(load_search(driver.place).trials)
    driver.resume("--trials", str(begun))
    if driver.wait(PATIENCE_S):
        raise RuntimeError(f"the search did not end in good order:\n{driver.log.read_text()[-3000:]}")
    return begun


def create_driver(store: str, folder: Path, env: dict[str, str], stack: ExitStack) -> Driver:
    """Return the driver of a search with its study in `store`, after the start of the servers that it needs."""
    if store == "journal":
        return Driver(folder, env)
    if store == "PostgreSQL":
        programs = find_programs()
        if programs is None:
            raise FileNotFoundError("PostgreSQL must be installed, but its programs are not found")
        database = Server(programs)
        stack.callback(database.remove)
        return PostgresDriver(folder, env, database)
    (folder / "s3").mkdir()
    bucket = S3Server(folder / "s3").start()
    stack.callback(bucket.stop)
    driver = JobDriver(folder, env, bucket)
    stack.callback(driver.end_head)
    driver.start_head()
    return driver


def soak(store: str, given: argparse.Namespace, draw: random.Random) -> tuple[Row, list[Row], list[Row]]:
    """Run one search under faults. Return its figures, those of its faults, and those of the checks."""
    start = time.monotonic()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
        temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # of Ray, whose sockets need a short path
        stack.callback(shutil.rmtree, temporary)
        if given.keep:
            print_progress(f"the folder is {folder}")
        else:
            stack.callback(shutil.rmtree, folder)
        for name in ("runs", "mlflow"):
            (folder / name).mkdir()
        disk = mount_disk(folder / "runs", stack) if store == "journal" else None
        server = stack.enter_context(MlflowServer(folder / "mlflow", workers=1))
        (folder / "token").write_text(secrets.token_hex(32))
        env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_"))}
        env |= {"RAY_TMPDIR": str(temporary), "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "OMP_NUM_THREADS": "1"}
        env |= {"SOAK_LOG": str(folder / "epochs"), "MLFLOW_TRACKING_URI": server.url, "PYTHONPATH": str(ROOT)}
        env["RAY_worker_niceness"] = "0"  # by default 15: other programs on a busy machine would stop the workers
        driver = create_driver(store, folder, env, stack)
        stack.callback(driver.end)
        faults = Faults(driver, server, disk, draw)
        options = ["--trials", "100000", "--confirm", "0", "--concurrency", "2", "--set", "precision=fp32", "--quiet"]
        options += ["--stall-timeout", STALL, *driver.options]
        driver.start(driver.task, "--name", NAME, *options)
        seconds = endure(driver, faults, start + 60 * given.minutes / len(given.stores), draw)
        trials = finish(driver)
        trained = (folder / "epochs").read_text().count("\n")
        checks = soak_checks.check(driver.place, server.url, trained, given.curves, draw)
        checks["left"] = soak_checks.check_nothing_left(driver.started, [] if store == "bucket" else [temporary])
    minutes = (time.monotonic() - start) / 60
    times = [{"study": store, "fault": name, **describe_seconds(found)} for name, found in seconds.items()]
    figures = {"study": store, "duration": minutes, "faults": sum(map(len, seconds.values()))}
    figures |= {"drivers": driver.resumed + 1, "trials": trials}
    return figures, times, [{"study": store, "check": name, "found": found} for name, found in checks.items()]


def describe_seconds(found: Sequence[float]) -> Row:
    """Return how often a fault happened, and the seconds to the next report."""
    return {"times": len(found), **({"median": statistics.median(found), "most": max(found)} if found else {})}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of all searches together")
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES, help="a search for each")
    parser.add_argument("--seed", type=int, default=0, help="of the faults and their moments")
    parser.add_argument("--curves", type=int, default=12, help="trials that are trained again to compare their curves")
    parser.add_argument("--keep", action="store_true", help="do not remove the folders of the searches")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    figures: dict[str, list[Row]] = {"searches": [], "faults": [], "checks": []}
    for store in given.stores:
        search, faults, checks = soak(store, given, draw)
        figures["searches"].append(search)
        figures["faults"] += faults
        figures["checks"] += checks
    print_result(figures, {"duration": "min", "median": "s", "most": "s"}, digits=3)


if __name__ == "__main__":
    main()
