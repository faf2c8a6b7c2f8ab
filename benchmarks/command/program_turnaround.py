"""Measure the time between two trials of a program that imports torch and transformers, one trial at a time.

Each side runs importing_program.py in a process of its own, timed from start to end: a search of Searchlight, the same
with --cold, a loop of subprocesses, Syne Tune's LocalBackend and W&B's agent (reference_programs.py). A trial trains
for no time, so that a gap is what a tool takes from the last line of a trial to the first line after the imports of the
next one. The first gap is apart, because the process of a search that imports is not ready yet.

Syne Tune is not among the requirements. Without it, its row is left out. W&B's agent answers to functions in the place
of its server, and its runs are offline.

    python benchmarks/command/program_turnaround.py [--trials 12] [--sides Searchlight loop ...]
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver.trial_turnaround import run
from benchmarks.recording import (
    SEARCH,
    Row,
    create_parser,
    describe_versions,
    name_quartiles,
    print_progress,
    print_result,
)

HERE = Path(__file__).resolve().parent
REFERENCES = {"loop": "loop of subprocesses", "syne-tune": "Syne Tune, LocalBackend", "wandb": "W&B, agent"}
SIDES = ("Searchlight", "Searchlight --cold", *REFERENCES)
UNITS = dict.fromkeys(("first_gap", "gap", "gap_low", "gap_high", "longest_gap", "duration"), "s")


def build_command(side: str, trials: int, folder: str) -> list[str]:
    """Return the arguments of Python for one side."""
    if side in REFERENCES:
        return [str(HERE / "reference_programs.py"), side, str(trials), folder]
    search = ["--search", "lr=1e-4..1e-1:log", "--objective", "loss:min", "--metric", "loss=^loss ([0-9.]+)"]
    sizes = ["--trials", str(trials), "--concurrency", "1", "--confirm", "0", "--storage", folder, "--name", "bench"]
    program = ["--", sys.executable, str(HERE / "importing_program.py")]
    return [str(SEARCH), *search, *sizes, *["--cold"] * (side == "Searchlight --cold"), *program]


def measure(side: str, trials: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        found = run(build_command(side, trials, folder), memory=False)
    first, *rest = found.turnarounds
    print_progress(f"{side}: {first:.2f} s, then {', '.join(f'{gap:.2f}' for gap in rest)} s")
    ended = len(found.events["end"])
    if ended < trials:
        sys.exit(f"{side} must have run {trials} trials, but {ended} have ended.")
    return {
        "side": REFERENCES.get(side, side),
        "trials": ended,
        "first_gap": first,
        **name_quartiles("gap", rest),
        "longest_gap": max(rest),
        "duration": found.seconds,
    }


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    given = parser.parse_args()
    if given.trials < 3:
        parser.error(f"--trials must be at least 3, because the first gap is apart, but got {given.trials}.")
    sides = [side for side in given.sides if side != "syne-tune" or find_spec("syne_tune")]
    rows = [measure(side, given.trials) for side in sides]
    print_result({"turnaround": rows}, UNITS, describe_versions(("transformers", "syne-tune", "wandb")))


if __name__ == "__main__":
    main()
