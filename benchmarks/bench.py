"""Run the benchmarks that need no GPU within 40 minutes, and write docs/benchmarks.md from their output.

The output of each is written to results/bench/NAME.txt: a line with date, machine, versions, commit and load, the
command, and what it printed. A benchmark that fails, or for which no time is left, keeps its earlier file, and the
others still run. Long studies (page.py lists them) are not repeated.

    python benchmarks/bench.py [--only NAME ...] [--minutes 39]
    python benchmarks/page.py        writes the page again from the recorded output
"""

import argparse
import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIBRARIES = ("Ray", "Optuna", "MLflow", "torch")
OUTCOMES = "last_run.txt"
LONGEST = 2.0  # times its expected duration, after which a benchmark is ended
GRACE_S = 20.0  # after an interrupt, to end what the benchmark has started
MISSING = "is missing, and this benchmark compares with it"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of `make bench`.

    Attributes:
        arguments: The script and its options, which fit the time.
        seconds: The expected duration on two quiet cores. It does not start with less time left.
    """

    arguments: str
    seconds: float

    @property
    def name(self) -> str:
        return Path(self.arguments.split()[0]).stem

    @property
    def command(self) -> str:
        return f"python benchmarks/{self.arguments}"


# The most important first: if the machine is slow, no time is left for the last ones.
BENCHMARKS = [
    Benchmark("update/accumulation_error.py", 25),
    Benchmark("update/update_overhead.py --models tiny --seconds 10", 70),
    Benchmark("models/liquid_speed.py", 40),
    Benchmark("driver/trial_turnaround.py --peer-trials 4 --only turnaround driver", 540),
    Benchmark("driver/suggestions.py", 45),
    Benchmark("driver/scale.py --trials 768", 260),
    Benchmark("driver/tracking_cost.py --trials 100", 190),
    Benchmark("search/time_to_target.py --seconds 75 --true-seeds 2 --record", 870),
    Benchmark("update/reduction_cost.py", 45),
    Benchmark("models/preflight.py --repeats 1", 50),
    Benchmark("driver/study_stores.py --trials 40", 60),
    Benchmark("models/arc_speed.py", 60),
    Benchmark("models/lm.py", 90),
]


def describe_machine() -> str:
    """Return the processor, its cores, the memory, the GPU and the versions, in one line."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.processor() or platform.machine())
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    return ", ".join([model, f"{os.cpu_count()} cores", memory, gpu, f"Python {platform.python_version()}", *versions])


def describe_commit() -> str:
    """Return the commit of the checkout, with a "+" if product or benchmarks differ from it."""
    try:
        git = ["git", "-C", str(ROOT)]
        commit = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True)
        changed = [*git, "status", "--porcelain", "--", "*.py"]
        return commit.stdout.strip() + "+" * bool(subprocess.run(changed, capture_output=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def run(benchmark: Benchmark, folder: Path, about: str, commit: str, limit_s: float) -> tuple[str, float]:
    """Run a benchmark for at most `limit_s` and write its output into `folder`.

    Return what happened, such as "done" or "failed: ...", and the seconds.
    """
    script, *options = benchmark.arguments.split()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        env.pop(name, None)  # the searches are to run on this machine
    date, load, start = datetime.now(UTC).date().isoformat(), os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, str(HERE / script), *options]
        process = subprocess.Popen(command, env=env, stdout=out, stderr=errors, start_new_session=True)
        ended = wait_for(process, limit_s)
        seconds = time.monotonic() - start
        out.seek(0)
        errors.seek(0)
        printed, said = out.read(), errors.read().strip()
    if not ended:
        return f"failed: ended after {limit_s:.0f} s, which is too long", seconds
    if process.returncode:
        last = said.splitlines()[-1] if said else f"exit code {process.returncode}"
        last = last.replace("|", "/").replace("`", "'")  # it becomes a cell of a table
        if MISSING in last:
            return f"skipped: {last}", seconds
        print(said[-3000:], file=sys.stderr, flush=True)
        return f"failed: {last[:200]}", seconds
    header = f"{date}, {about}; commit {commit}, load average {load:.1f} to {os.getloadavg()[0]:.1f}, {seconds:.0f} s"
    text = f"{header}\n$ {benchmark.command}\n{printed}"
    temporary = folder / f"{benchmark.name}.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / f"{benchmark.name}.txt")
    return "done", seconds


def wait_for(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait for the end of a process. After `limit_s` or on an interrupt, end it, and return False or raise."""
    try:
        process.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            if process.poll() is None:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(GRACE_S)


def save_outcomes(path: Path, outcomes: dict[str, str]) -> None:
    """Write one line for each benchmark, in their order. Keep the lines of those that were not run."""
    recorded = load_outcomes(path) | outcomes
    lines = [f"{bench.name:<20} {recorded[bench.name]}" for bench in BENCHMARKS if bench.name in recorded]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_outcomes(path: Path) -> dict[str, str]:
    """Return the line of each benchmark in the last `make bench`, by its name."""
    if not path.exists():
        return {}
    return {name: rest for name, rest in re.findall(r"^(\S+) +(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


def run_all(chosen: list[Benchmark], folder: Path, minutes: float) -> bool:
    """Run the chosen benchmarks in turn within `minutes`. Return whether none failed."""
    about, commit, start = describe_machine(), describe_commit(), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, str] = {}
    for bench in chosen:
        left = 60 * minutes - (time.monotonic() - start)
        print(f"== {bench.command}", flush=True)
        outcome, seconds = f"skipped: needs {bench.seconds:.0f} s, and {max(0, left):.0f} s were left", 0.0
        if left >= bench.seconds:
            outcome, seconds = run(bench, folder, about, commit, min(left, LONGEST * bench.seconds))
        outcomes[bench.name] = f"{seconds:>5.0f} s  {outcome}"
        save_outcomes(folder / OUTCOMES, outcomes)
        print(f"   {outcomes[bench.name].strip()}", flush=True)
    print(f"\n{about}; commit {commit}")
    for name, outcome in outcomes.items():
        print(f"{name:<20} {outcome}")
    took = time.monotonic() - start
    done = sum(outcome.endswith(" s  done") for outcome in outcomes.values())
    print(f"{done} of {len(outcomes)} done in {took / 60:.1f} minutes", flush=True)
    return not any(" s  failed: " in outcome for outcome in outcomes.values())


def main() -> None:
    from benchmarks.goals import BENCH
    from benchmarks.page import PAGE, write_page

    names = [bench.name for bench in BENCHMARKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help="of: " + ", ".join(names)
    )
    parser.add_argument("--minutes", type=float, default=39.0, help="after which nothing more is measured")
    given = parser.parse_args()
    try:
        succeeded = run_all([bench for bench in BENCHMARKS if bench.name in given.only], BENCH, given.minutes)
    finally:
        write_page()
        print(f"{PAGE.relative_to(ROOT)} is written from {BENCH.relative_to(ROOT)}/", flush=True)
    sys.exit(not succeeded)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
