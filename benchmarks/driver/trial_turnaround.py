"""Measure the overhead of a trial, with tiny trials in a search, in Ray's recipe, in Tune and in Optuna.

Each side runs in its own process, timed from start to end. The script prints the trials per minute and the time to the
first report. It also prints the time from the end of a trial to the first update of the next, and the peak memory of
all processes together. Then it runs a search of 1,000 trials of one report each. It prints the CPU time of the driver's
main thread per report at the start and at the end, including the suggestion of the trial. Last, a search over the task
`lm` shards each trial over two workers.

    python benchmarks/driver/trial_turnaround.py [--trials 200] [--peer-trials 6] [--only turnaround driver lm]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
SEARCH = HERE.parents[1] / "search" / "run.py"


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


def search(trials: int, workers: int, folder: str, at_a_time: int) -> list[str]:
    options = ["--trials", str(trials), "--workers", str(workers), "--concurrency", str(at_a_time)]
    options += ["--confirm", "0"]
    fixed = ["--scheduler", "none", "--set", "precision=fp32", "--cpus-per-worker", "0.5" if workers > 1 else "1"]
    return [str(SEARCH), f"{HERE / 'tiny_task.py'}:Tiny", *options, *fixed, "--storage", folder, "--name", "bench"]


def peer(how: str, trials: int, workers: int, folder: str, at_a_time: int) -> list[str]:
    return [str(HERE / "reference_tune.py"), how, str(trials), str(workers), str(at_a_time), folder]


def compare(trials: int, peer_trials: int, workers: int, at_a_time: int) -> None:
    print(f"{workers} worker{'s' * (workers > 1)} a trial, {at_a_time} at a time")
    print(f"{'':>8} {'trials':>7} {'per minute':>11} {'warm':>8} {'first report':>13}", end="")
    print(f" {'turnaround':>11} {'quartiles':>17} {'memory':>9}")
    rates = {}
    counts = {"search": trials, "recipe": peer_trials}
    if workers == 1 and at_a_time > 1:
        counts["inline"] = 5 * peer_trials
    elif workers == 1:
        counts |= {"optuna": trials, "process": 2 * peer_trials}
    for name, count in counts.items():
        with tempfile.TemporaryDirectory() as folder:
            if name == "search":
                command = search(count, workers, folder, at_a_time)
            elif name in ("recipe", "inline"):
                command = peer(name, count, workers, folder, at_a_time)
            else:
                command = [str(HERE / "reference_optuna.py"), name, str(count)]
            found = run(command)
        rates[name] = found
        gaps = found.turnarounds if len(found.turnarounds) > 1 else 2 * found.turnarounds
        low, middle, high = statistics.quantiles(gaps, n=4, method="inclusive")
        quartiles = f"{1000 * low:.0f} to {1000 * high:.0f}"
        print(
            f"{name:>8} {count:>7} {found.rate:>11.1f} {found.warm_rate:>8.0f} {found.first_report:>11.1f} s "
            f"{1000 * middle:>8.0f} ms {quartiles:>14} ms {found.memory / 2**30:>5.2f} GiB",
            flush=True,
        )
    ours, recipe = rates["search"], rates["recipe"]
    print(f"search against recipe: trials per minute {ours.rate / recipe.rate:.0f}x, ", end="")
    print(f"from the first trial's end on {ours.warm_rate / recipe.warm_rate:.0f}x, ", end="")
    print(f"first report {ours.first_report / recipe.first_report:.2f}x\n", flush=True)


def driver(trials: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = run(search(trials, 1, folder, 1), epochs=1, memory=False)
    first = (found.cpu_at(110) - found.cpu_at(10)) / 100
    last = (found.cpu_at(trials) - found.cpu_at(trials - 100)) / 100
    print(f"driver, CPU time per report: {1000 * first:.1f} ms from trial 10 to 110, ", end="")
    print(f"{1000 * last:.1f} ms from trial {trials - 100} to {trials}: {last / first:.2f}x")


def language_model(trials: int) -> None:
    """Print the time between trials of `lm` that are sharded over two workers, beside that of one worker's trials."""
    sizes = ["--scheduler", "none", "--confirm", "0", "--concurrency", "1", "--set", "precision=fp32", "epochs=2"]
    for workers, shard in ((1, "none"), (2, "full")):
        options = ["--trials", str(trials), "--workers", str(workers), "--cpus-per-worker", str(1 / workers)]
        with tempfile.TemporaryDirectory() as folder:
            task = [str(SEARCH), f"{HERE / 'timed_lm.py'}:TimedLm", "--storage", folder, "--name", "bench"]
            found = run([*task, *options, *sizes, f"shard={shard}"])
        print(f"lm, {workers} workers, shard={shard}: {trials} trials in {found.seconds:.0f} s, ", end="")
        print(
            f"first report {found.first_report:.1f} s, turnaround {1000 * statistics.median(found.turnarounds):.0f} ms",
            flush=True,
        )


def main() -> None:
    parts = ["turnaround", "driver", "lm"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="of the search")
    parser.add_argument("--peer-trials", type=int, default=6, help="of the recipe, which takes seconds for each")
    parser.add_argument("--driver-trials", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="what to measure")
    given = parser.parse_args()
    if "turnaround" in given.only:
        compare(given.trials, given.peer_trials, workers=1, at_a_time=2)
        compare(given.trials, given.peer_trials, workers=1, at_a_time=1)
        compare(given.trials, given.peer_trials, workers=2, at_a_time=1)
    if "driver" in given.only:
        driver(given.driver_trials)
    if "lm" in given.only:
        language_model(trials=8)


if __name__ == "__main__":
    main()
