"""Measure the time between two trials on a GPU, with one trial or several at a time on it.

python benchmarks/gpu/turnaround.py [--device cpu]
"""

import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver.trial_turnaround import build_tiny_search, run
from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims
from benchmarks.recording import Row, get_quartiles

TRIALS = 40
LIMIT_MS = 100  # what the README says


def measure(device: torch.device, trials: int, at_a_time: int) -> Row:
    """Run a search of tiny trials, `at_a_time` of them on one GPU."""
    with tempfile.TemporaryDirectory() as folder:
        command = build_tiny_search(trials, 1, folder, at_a_time)
        if device.type == "cuda":
            command += ["--gpus-per-worker", str(1 / at_a_time), "--cpus-per-worker", "0.5"]
        found = run(command)
    low, median, high = get_quartiles(found.turnarounds, 1e3)
    figure = f"{median:.0f} ms, quartiles {low:.0f} to {high:.0f} ms; the first report after {found.first_report:.1f} s"
    claim = f"from one trial's end to the next one's first update, {at_a_time} at a time"
    is_promised = at_a_time == 1 and device.type == "cuda"
    return make_claim(claim, figure, median <= LIMIT_MS if is_promised else None)


def main() -> None:
    given = create_device_parser(__doc__).parse_args()
    trials, at_a_time = (4, [1]) if given.small else (TRIALS, [1, 2, 4])
    print_claims([measure(given.device, trials, count) for count in at_a_time])


if __name__ == "__main__":
    main()
