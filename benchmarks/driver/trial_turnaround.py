"""Measure the overhead of a trial, with tiny trials in a search, in Ray's recipe, in Tune and in Optuna.

Each side runs in its own process, timed from start to end. The script prints the trials per minute and the time to the
first report. It also prints the time from the end of a trial to the first update of the next, and the peak memory of
all processes together. Then it runs a search of 1,000 trials of one report each. It prints the CPU time of the driver's
main thread per report at the start and at the end, including the suggestion of the trial. Last, a search over the task
`lm` shards each trial over two workers.

    python benchmarks/driver/trial_turnaround.py [--trials 200] [--peer-trials 6] [--only turnaround driver lm]
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import (
    ROOT,
    SEARCH,
    Row,
    Table,
    create_parser,
    name_quartiles,
    print_progress,
    print_result,
)

HERE = Path(__file__).resolve().parent
UNITS = {
    **dict.fromkeys(("first_report", "duration"), "s"),
    **dict.fromkeys(("gap", "gap_low", "gap_high", "first", "last"), "ms"),
    "memory": "GiB",
}


@dataclass
class Run:
    """What one side did: seconds since its start, by event; and samples of (seconds, CPU seconds, bytes of memory)."""

    seconds: float
    events: dict[str, list[float]]
    samples: list[tuple[float, float, int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Trials per minute, start-up included."""
        return 60 * len(self.events["end"]) / self.seconds

    @property
    def warm_rate(self) -> float:
        """Trials per minute from the end of the first on."""
        ends = self.events["end"]
        return 60 * (len(ends) - 1) / (ends[-1] - ends[0])

    @property
    def first_report(self) -> float:
        return min(self.events["report"] + self.events["end"])

    @property
    def turnarounds(self) -> list[float]:
        """Seconds from the end of each trial to the first update of the next that begins."""
        begins = sorted(self.events["first-update"])
        gaps = []
        for end in sorted(self.events["end"]):
            following = next((begin for begin in begins if begin > end), None)
            if following is not None:
                begins.remove(following)
                gaps.append(following - end)
        return gaps

    @property
    def memory(self) -> int:
        return max(used for _, _, used in self.samples)

    def cpu_at(self, ended: int) -> float:
        """Return the CPU seconds of the driver when `ended` trials had ended."""
        moment = sorted(self.events["end"])[ended - 1]
        return next(cpu for at, cpu, _ in self.samples if at >= moment)


def run(command: list[str], epochs: int = 3, memory: bool = True) -> Run:
    """Run one side, watching its processes."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events"
        env = {**os.environ, "BENCH_LOG": str(log), "BENCH_EPOCHS": str(epochs), "RAY_USAGE_STATS_ENABLED": "0"}
        env["PYTHONPATH"] = str(ROOT)
        start = time.time()
        process = subprocess.Popen(
            [sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        samples: list[tuple[float, float, int]] = []
        watching = threading.Thread(target=_watch, args=(process.pid, start, samples, memory))
        watching.start()
        out, _ = process.communicate()
        seconds = time.time() - start
        watching.join()
        if process.returncode:
            sys.exit(f"{command} failed:\n{out.decode()[-3000:]}")
        events: dict[str, list[float]] = {"first-update": [], "report": [], "end": []}
        for line in log.read_text().splitlines():
            event, moment = line.split()
            events[event].append(float(moment) - start)
        return Run(seconds, events, samples)


def _watch(pid: int, start: float, samples: list[tuple[float, float, int]], memory: bool) -> None:
    try:
        driver = psutil.Process(pid)
        while driver.status() != psutil.STATUS_ZOMBIE:
            used = sum(_memory(process) for process in [driver, *driver.children(recursive=True)]) if memory else 0
            # Of the main thread, which everything waits for; MLflow's has its import in the first trials.
            cpu = next(thread for thread in driver.threads() if thread.id == pid)
            samples.append((time.time() - start, cpu.user_time + cpu.system_time, used))
            time.sleep(1.0 if memory else 0.02)
    except psutil.NoSuchProcess:  # it has ended
        return


def _memory(process: psutil.Process) -> int:
    """Return the proportional set size of a process in bytes."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # it has ended meanwhile
        return 0


def build_search(task: str, trials: int, workers: int, cpus: float, folder: str) -> list[str]:
    """Return the command of a search without schedulers and confirming runs, for a task of this folder."""
    options = [
        "--trials",
        str(trials),
        "--workers",
        str(workers),
        "--cpus-per-worker",
        str(cpus),
        "--scheduler",
        "none",
    ]
    where = ["--confirm", "0", "--storage", folder, "--name", "bench"]
    return [str(SEARCH), str(HERE / task), *options, *where, "--set", "precision=fp32"]


def build_tiny_search(trials: int, workers: int, folder: str, at_a_time: int) -> list[str]:
    command = build_search("tiny_task.py:Tiny", trials, workers, 0.5 if workers > 1 else 1, folder)
    return [*command, "--concurrency", str(at_a_time)]


def compare(trials: int, peer_trials: int, workers: int, at_a_time: int) -> Iterator[Row]:
    """Yield the figures of each side in one setting."""
    counts = {"search": trials, "recipe": peer_trials}
    if workers == 1 and at_a_time > 1:
        counts["inline"] = 5 * peer_trials
    elif workers == 1:
        counts |= {"optuna": trials, "process": 2 * peer_trials}
    setting = f"{workers} worker{'s' * (workers > 1)} a trial, {at_a_time} at a time"
    for side, count in counts.items():
        with tempfile.TemporaryDirectory() as folder:
            if side == "search":
                command = build_tiny_search(count, workers, folder, at_a_time)
            elif side in ("recipe", "inline"):
                command = [str(HERE / "reference_tune.py"), side, str(count), str(workers), str(at_a_time), folder]
            else:
                command = [str(HERE / "reference_optuna.py"), side, str(count)]
            found = run(command)
        print_progress(f"{setting}, {side}: {found.rate:.1f} trials a minute")
        yield {
            "setting": setting,
            "side": side,
            "trials": count,
            "per_minute": found.rate,
            "warm_per_minute": found.warm_rate,
            "first_report": found.first_report,
            **name_quartiles("gap", found.turnarounds, 1e3),
            "memory": found.memory / 2**30,
        }


def measure_driver(trials: int) -> Row:
    """Return the driver's CPU milliseconds per report in its first and its last hundred trials."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(build_tiny_search(trials, 1, folder, 1), epochs=1, memory=False)
    first, last = (10 * (found.cpu_at(end) - found.cpu_at(end - 100)) for end in (110, trials))
    return {"first": first, "last": last, "ratio": last / first}


def measure_lm(trials: int) -> Iterator[Row]:
    """Yield the time between trials of `lm` on one worker, and that of trials sharded over two."""
    for workers, shard in ((1, "none"), (2, "full")):
        with tempfile.TemporaryDirectory() as folder:
            command = build_search("timed_lm.py:TimedLm", trials, workers, 1 / workers, folder)
            found = run([*command, "epochs=2", f"shard={shard}", "--concurrency", "1"])
        row = {"workers": workers, "shard": shard, "trials": trials, "duration": found.seconds}
        yield row | {"first_report": found.first_report, **name_quartiles("gap", found.turnarounds, 1e3)}


def main() -> None:
    parts = ["turnaround", "driver", "lm"]
    parser = create_parser(__doc__)
    parser.add_argument("--trials", type=int, default=200, help="of the search")
    parser.add_argument("--peer-trials", type=int, default=6, help="of the recipe, which takes seconds for each")
    parser.add_argument("--driver-trials", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="what to measure")
    given = parser.parse_args()
    if min(given.trials, given.peer_trials) < 2:
        least = min(given.trials, given.peer_trials)
        parser.error(f"--trials and --peer-trials must be at least 2, because of rates between ends, but got {least}.")
    figures: dict[str, Table] = {}
    if "turnaround" in given.only:
        settings = ((1, 2), (1, 1), (2, 1))
        figures["turnaround"] = [
            row for setting in settings for row in compare(given.trials, given.peer_trials, *setting)
        ]
    if "driver" in given.only:
        figures["driver"] = measure_driver(given.driver_trials)
    if "lm" in given.only:
        figures["lm"] = list(measure_lm(trials=8))
    print_result(figures, UNITS)


if __name__ == "__main__":
    main()
