"""Run the benchmarks that need no GPU within 40 minutes, and write the pages from their results.

The JSON that each prints is written to results/bench/NAME.json. A benchmark that fails, or for which no time is left,
keeps its earlier file, and the others still run. Long studies (page.py lists them) are not repeated.

    python benchmarks/bench.py [--only NAME ...] [--minutes 39]
    python benchmarks/page.py        writes the pages again from the results
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone need not be installed

from benchmarks.page import DOCS, write_pages
from benchmarks.recording import BENCH, ROOT, Row, create_parser

LAST_RUN = BENCH / "last_run.json"
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
    Benchmark("models/lm.py", 90),
]


def run(benchmark: Benchmark, folder: Path, limit_s: float) -> tuple[str, float]:
    """Run a benchmark for at most `limit_s` and write its result into `folder`.

    Return what happened, such as "done" or "failed: ...", and the seconds.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        env.pop(name, None)  # the searches are to run on this machine
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        script, *options = benchmark.arguments.split()
        command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
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
    temporary = folder / f"{benchmark.name}.tmp"
    temporary.write_text(printed, encoding="utf-8")
    temporary.replace(folder / f"{benchmark.name}.json")
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


def save_outcomes(path: Path, outcomes: dict[str, Row]) -> None:
    """Write a row for each benchmark, in their order. Keep the rows of those that were not run."""
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    found = {row["name"]: row for row in recorded} | outcomes
    rows = [json.dumps(found[bench.name]) for bench in BENCHMARKS if bench.name in found]
    path.write_text("[\n " + ",\n ".join(rows) + "\n]\n", encoding="utf-8")


def run_all(chosen: list[Benchmark], minutes: float) -> bool:
    """Run the chosen benchmarks in turn within `minutes`. Return whether none failed."""
    start = time.monotonic()
    BENCH.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Row] = {}
    for bench in chosen:
        left = 60 * minutes - (time.monotonic() - start)
        print(f"== {bench.command}", flush=True)
        outcome, seconds = f"skipped: needs {bench.seconds:.0f} s, and {max(0, left):.0f} s were left", 0.0
        if left >= bench.seconds:
            outcome, seconds = run(bench, BENCH, min(left, LONGEST * bench.seconds))
        named = {"name": bench.name, "command": bench.command}
        outcomes[bench.name] = {**named, "outcome": outcome, "seconds": round(seconds)}
        save_outcomes(LAST_RUN, outcomes)
        print(f"   {seconds:.0f} s  {outcome}", flush=True)
    done = sum(row["outcome"] == "done" for row in outcomes.values())
    print(f"{done} of {len(outcomes)} done in {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    return not any(row["outcome"].startswith("failed: ") for row in outcomes.values())


def main() -> None:
    names = [bench.name for bench in BENCHMARKS]
    parser = create_parser(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help="of: " + ", ".join(names)
    )
    parser.add_argument("--minutes", type=float, default=39.0, help="after which nothing more is measured")
    given = parser.parse_args()
    try:
        succeeded = run_all([bench for bench in BENCHMARKS if bench.name in given.only], given.minutes)
    finally:
        write_pages()
        print(f"{DOCS.relative_to(ROOT)}/ is written from {BENCH.relative_to(ROOT)}/", flush=True)
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
