"""Measure what warm workers keep: memory of a worker over many trials, and why workers were replaced.

python benchmarks/gpu/warm_memory.py [--trials 100] [--compiled-trials 10] [--device cpu]
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, skip_claim
from benchmarks.recording import Row, get_quartiles
from searchlight.trainables.context import Context
from searchlight.trainables.worker.messages import SegmentAssignment, WorkerSettings
from searchlight.trainables.worker.trial_runner import TrialRunner

TASK = "benchmarks.gpu.device_tasks:DeviceTask"
GROWTH_MIB = 64  # over all trials after the first few


def measure_memory(device: torch.device) -> dict[str, float]:
    """Return the MiB that this process holds."""
    held = {"resident": psutil.Process().memory_info().rss / 2**20}
    if device.type == "cuda":
        held["allocated"] = torch.cuda.memory_allocated(device) / 2**20
        held["reserved"] = torch.cuda.memory_reserved(device) / 2**20
        free, total = torch.cuda.mem_get_info(device)
        held["used on the GPU"] = (total - free) / 2**20
    return held


def run_trials(device: torch.device, trials: int, compiled: bool) -> list[Row]:
    """Run trials one after another in this process, as a warm worker does."""
    runner = TrialRunner(WorkerSettings(TASK), Context(device), threading.Event())
    held, seconds, reasons = [], [], set[str]()
    with tempfile.TemporaryDirectory() as folder:
        for trial in range(trials):
            start = time.perf_counter()
            config = {"epochs": 1, "compiled": compiled, "width": 32 + trial % 4}
            ends = list(runner.run(SegmentAssignment(trial, config, 0, 1, f"{folder}/{trial}", "a")))
            assert getattr(ends[-1], "epoch", None) == 1, ends[-1]
            reasons.add(runner.recycle_reason)
            held.append(measure_memory(device))
            seconds.append(time.perf_counter() - start)
    what = f"{trials} {'compiled' if compiled else 'plain'} trials in one worker"
    settled = held[min(len(held) - 1, len(held) // 5)]
    growth = {name: value - settled[name] for name, value in held[-1].items()}
    figure = ", ".join(f"{name} {held[-1][name]:.0f} MiB ({more:+.0f})" for name, more in growth.items())
    low, median, high = get_quartiles(seconds[1:] or seconds)
    named = "; ".join(sorted(reasons - {""})) or "none"
    return [
        make_claim(f"memory after {what}", figure, max(growth.values()) <= GROWTH_MIB),
        make_claim(f"reasons to replace the worker, {what}", named, not reasons - {""}),
        make_claim(f"seconds of a trial, {what}", f"{median:.2f}, quartiles {low:.2f} to {high:.2f}"),
    ]


def main() -> None:
    parser = create_device_parser(__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--compiled-trials", type=int, default=10)
    given = parser.parse_args()
    claims = run_trials(given.device, 5 if given.small else given.trials, compiled=False)
    if given.small:
        claims.append(skip_claim("compiled trials in one worker", "--small"))
    else:
        claims += run_trials(given.device, given.compiled_trials, compiled=True)
    print_claims(claims)


if __name__ == "__main__":
    main()
