"""Measure a search of 50,000 reports: what driver, stores and page take of each, and whether that grows.

The search is real: a process of its own, Ray's workers, the study's journal, MLflow's SQLite file and the page. Its
trials are runs of a function that reports at once, so that the driver is never idle. Then the page is written again,
and the search is resumed for one more trial. All of it shares this machine.

    python benchmarks/driver/many_reports.py [--reports 50000] [--of-each-trial 25]
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import ROOT, SEARCH, Row, create_parser, describe_versions, print_progress, print_result

NAME = "many"
TASK = Path(__file__).with_name("many_reports_task.py")
MARKS = 10  # rows of the table
SAMPLE_S = 0.5
MIB, KIB = 2**20, 2**10
FILES = {"journal": "study.journal", "trials_parquet": "trials.parquet", "report_html": "report.html"}
UNITS = {
    **dict.fromkeys(("wall", "driver_cpu", "main_thread_cpu"), "ms a report"),
    **dict.fromkeys(("driver", "gcs_server", "driver_at_resume"), "MiB"),
    **dict.fromkeys(("journal", "trials_parquet", "mlflow_db", "report_html"), "MiB"),
    **dict.fromkeys(("first_report", "duration", "end", "page", "resume_first_report"), "s"),
    "driver_memory": "KiB a report",
}


class Journal:
    """The number of reports in a journal that grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._count, self._rest = path, 0, 0, b""

    def count_reports(self) -> int:
        if self._path.exists():
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                *lines, self._rest = (self._rest + file.read()).split(b"\n")
                self._offset = file.tell()
            self._count += sum(b'"report/' in line for line in lines)
        return self._count


class Sample:
    """What the processes of a search have taken at a moment.

    Attributes:
        reports: Of all trials until then.
        cpu, main_cpu: CPU seconds of the driver, and of its main thread.
        memory, gcs: Resident bytes of the driver, and of Ray's GCS.
    """

    def __init__(self, driver: psutil.Process, reports: int) -> None:
        self.at, self.reports = time.monotonic(), reports
        used = driver.cpu_times()
        main = next(thread for thread in driver.threads() if thread.id == driver.pid)
        self.cpu, self.main_cpu = used.user + used.system, main.user_time + main.system_time
        self.memory = driver.memory_info().rss
        self.gcs = sum(child.memory_info().rss for child in driver.children(True) if child.name() == "gcs_server")


def follow(process: subprocess.Popen[bytes], journal: Journal) -> Iterator[Sample]:
    """Yield samples of the driver until it ends.

    Raises:
        RuntimeError: It has failed.
    """
    driver = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            yield Sample(driver, journal.count_reports())
        except (psutil.NoSuchProcess, StopIteration):  # it, or a child of it, has just ended
            continue
        time.sleep(SAMPLE_S)
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the search's command in `folder`, with messages to its `log`."""
    (folder / "token").write_text(secrets.token_hex(32))
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_"))}
    env |= {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env["RAY_worker_niceness"] = "0"  # by default 15: other programs on a busy machine would stop the workers
    with open(folder / "log", "a") as log:
        return subprocess.Popen([sys.executable, *arguments], cwd=folder, env=env, stdout=log, stderr=log)


def compare(samples: Sequence[Sample], reports: int) -> list[Row]:
    """Return a row for each tenth of the reports: what each of them took there, and the memory at its end."""
    marks = [
        next((sample for sample in samples if sample.reports >= part * reports / MARKS), samples[-1])
        for part in range(1, MARKS + 1)
    ]
    first = next(sample for sample in samples if sample.reports)
    parts = zip([first, *marks], marks, strict=False)
    return [describe_part(before, after) for before, after in parts if before.reports < after.reports]


def describe_part(before: Sample, after: Sample) -> Row:
    count = after.reports - before.reports
    return {
        "reports": after.reports,
        "wall": 1e3 * (after.at - before.at) / count,
        "driver_cpu": 1e3 * (after.cpu - before.cpu) / count,
        "main_thread_cpu": 1e3 * (after.main_cpu - before.main_cpu) / count,
        "driver": after.memory / MIB,
        "driver_memory": (after.memory - before.memory) / KIB / count,
        "gcs_server": after.gcs / MIB,
    }


def search(folder: Path, trials: int, of_each: int) -> tuple[list[Sample], Row]:
    """Run the search. Return samples of it, and its times and sizes."""
    place = folder / "runs" / NAME
    options = ["--scheduler", "none", "--confirm", "0", "--no-preflight", "--quiet", "--trials", str(trials)]
    options += ["--objective", "loss:min", "--search", "lr=1e-4..1e-1:log", "--set", f"epochs={of_each}"]
    began = time.monotonic()
    process = start(folder, str(SEARCH), f"{TASK}:train", "--name", NAME, *options)
    samples = []
    for sample in follow(process, Journal(place / "study.journal")):
        if samples and sample.reports * MARKS // (trials * of_each) > samples[-1].reports * MARKS // (trials * of_each):
            print_progress(f"{sample.reports} reports, {sample.at - began:.0f} s, {sample.memory / MIB:.0f} MiB")
        samples.append(sample)
    ended = time.monotonic()
    last = next(sample for sample in samples if sample.reports == samples[-1].reports)
    sizes = {name: (place / file).stat().st_size / MIB for name, file in FILES.items()}
    return samples, {
        "trials": trials,
        "reports": last.reports,
        "first_report": next(sample.at for sample in samples if sample.reports) - began,
        "duration": ended - began,
        "end": ended - last.at,
        **sizes,
        "mlflow_db": (folder / "runs" / "mlflow.db").stat().st_size / MIB,
    }


def resume(folder: Path, trials: int) -> Row:
    """Write the page again, and resume the search for one more trial. Return the seconds and the memory."""
    began = time.monotonic()
    page = start(folder, str(SEARCH.with_name("report.py")), NAME)
    if page.wait():
        raise RuntimeError(f"{page.args} ended with {page.returncode}")
    written = time.monotonic()
    journal = Journal(folder / "runs" / NAME / "study.journal")
    before = journal.count_reports()
    process = start(folder, str(SEARCH), "--resume", NAME, "--quiet", "--trials", str(trials + 1))
    samples = [*follow(process, journal)]
    first = next(sample for sample in samples if sample.reports > before)
    most = max(sample.memory for sample in samples) / MIB
    return {"page": written - began, "resume_first_report": first.at - written, "driver_at_resume": most}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--reports", type=int, default=50_000)
    parser.add_argument("--of-each-trial", type=int, default=25)
    given = parser.parse_args()
    trials = given.reports // given.of_each_trial
    with tempfile.TemporaryDirectory(prefix="many-reports-") as made:
        folder = Path(made)
        samples, figures = search(folder, trials, given.of_each_trial)
        figures |= resume(folder, trials)
    about = f"{describe_versions(('ray', 'optuna', 'mlflow'))}, {os.cpu_count()} CPUs, {given.of_each_trial} reports "
    about += "a trial, of 5 metrics each, journal, MLflow SQLite"
    print_result({"search": figures, "growth": compare(samples, figures["reports"])}, UNITS, about)


if __name__ == "__main__":
    main()
