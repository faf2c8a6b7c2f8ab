"""Measure how long the checks of a commit take. The virtual environment must exist.

python benchmarks/check_durations.py > benchmarks/results/check_durations.json
"""

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone need not be installed

from benchmarks.recording import ROOT, Row, create_parser, print_result

TARGETS = ("lint", "test", "test-all")


def run_target(target: str) -> Row:
    """Run `make TARGET` with its output on standard error. Return its seconds, and whether it passed."""
    start = time.monotonic()
    code = subprocess.run(["make", target], cwd=ROOT, stdout=sys.stderr, check=False).returncode
    return {"target": f"make {target}", "duration": round(time.monotonic() - start), "passed": code == 0}


def main() -> None:
    create_parser(__doc__).parse_args()
    rows = [run_target(target) for target in TARGETS]
    passed = all(row["passed"] for row in rows)
    rows.append({"target": "all", "duration": sum(row["duration"] for row in rows), "passed": passed})
    print_result({"targets": rows}, {"duration": "s"})
    sys.exit(not passed)


if __name__ == "__main__":
    main()
