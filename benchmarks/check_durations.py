"""Measure how long the checks of a commit take. The virtual environment must exist.

python benchmarks/check_durations.py > benchmarks/results/check_durations.txt
"""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("lint", "test", "test-all")


def run_target(target: str) -> tuple[float, bool]:
    """Run `make TARGET` with its output on standard error. Return its seconds, and whether it passed."""
    start = time.monotonic()
    code = subprocess.run(["make", target], cwd=ROOT, stdout=sys.stderr, check=False).returncode
    return time.monotonic() - start, code == 0


def format_line(name: str, seconds: float, note: str) -> str:
    """Format a duration in minutes and seconds."""
    return f"{name:<14} {seconds // 60:>3.0f}:{seconds % 60:02.0f} min  {note}"


def main() -> None:
    from benchmarks.bench import describe_commit, describe_machine

    date, load = datetime.now(UTC).date().isoformat(), os.getloadavg()[0]
    print(f"{date}, {describe_machine()}; commit {describe_commit()}, load average {load:.1f} at first")
    print("$ python benchmarks/check_durations.py")
    total, passed = 0.0, True
    for target in TARGETS:
        seconds, has_passed = run_target(target)
        total, passed = total + seconds, passed and has_passed
        print(format_line(f"make {target}", seconds, "passed" if has_passed else "failed"), flush=True)
    print(format_line("all", total, "passed" if passed else "failed"))
    sys.exit(not passed)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
