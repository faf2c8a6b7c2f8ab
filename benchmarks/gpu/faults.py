"""Let trials fail on the device: out of memory in each phase, a device-side assert, an illegal access.

After each error a healthy trial must give the result of a new process. A worker whose device is broken must be
replaced, and its trial runs once more with synchronous launches, to find the line. A device-side assert ends the
process's use of the GPU, so each of these runs has its own process.

    python benchmarks/gpu/faults.py [--device cpu]
"""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, skip_claim
from benchmarks.recording import Row
from searchlight.trainables.context import Context
from searchlight.trainables.cuda import SYNCHRONOUS
from searchlight.trainables.worker.messages import (
    EpochReport,
    Migration,
    SegmentAssignment,
    SegmentEnd,
    WorkerSettings,
)
from searchlight.trainables.worker.trial_runner import TrialRunner

TASK = "benchmarks.gpu.device_tasks:FaultyDeviceTask"
PHASES, STICKY, REPEATS = ("forward", "backward", "optimizer", "evaluate"), ("assert", "illegal"), 5


def create_runner(device: torch.device) -> TrialRunner:
    return TrialRunner(WorkerSettings(TASK), Context(device), threading.Event())


def run_trial(runner: TrialRunner, folder: str, trial: int, fault: str = "") -> EpochReport | SegmentEnd | Migration:
    """Run a trial of one epoch, and return its last report."""
    config = {"epochs": 1, "fault": fault, "deterministic": True}
    return list(runner.run(SegmentAssignment(trial, config, 0, 1, f"{folder}/{trial}", "a")))[-1]


def measure_out_of_memory(device: torch.device) -> list[Row]:
    """Return the claims about trials that need more memory than there is."""
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        cold = run_trial(create_runner(device), folder, 0)
        assert isinstance(cold, EpochReport), cold
        runner = create_runner(device)
        for number, phase in enumerate(PHASES, start=1):
            ends = [run_trial(runner, folder, 100 * number + repeat, phase) for repeat in range(REPEATS)]
            reasons = {f"{end.outcome}: {end.reason[:60]}" for end in ends if isinstance(end, SegmentEnd)}
            known = all(isinstance(end, SegmentEnd) and "memory" in end.reason for end in ends)
            claims.append(make_claim(f"out of memory in {phase}, {REPEATS} times", "; ".join(reasons), known))
        warm = run_trial(runner, folder, 999)
        equal = isinstance(warm, EpochReport) and warm.metrics["val/loss"] == cold.metrics["val/loss"]
        claims.append(make_claim("a healthy trial after all these is that of a new process", str(equal), equal))
        reason = runner.recycle_reason or "kept"
        claims.append(make_claim("the worker is kept after them", reason, not runner.recycle_reason))
    return claims


def measure_sticky_error(device: torch.device, fault: str) -> None:
    """Print what a trial with a fault that breaks the device reports. Exit with 0 if that is what a gang needs.

    The first run must ask for new workers with synchronous launches. The second must fail with the line of the task.
    """
    with tempfile.TemporaryDirectory() as folder:
        runner = create_runner(device)
        end = run_trial(runner, folder, 0, fault)
        if isinstance(end, Migration):
            print(end.reason)
            sys.exit(not end.is_synchronous)
        assert isinstance(end, SegmentEnd), end
        print(f"{end.outcome}: {end.reason[:80]} ({end.location}); {runner.recycle_reason or 'its worker is kept'}")
        sys.exit(not (SYNCHRONOUS in os.environ and runner.recycle_reason and "device_tasks.py" in end.location))


def list_claims(device: torch.device) -> list[Row]:
    claims = measure_out_of_memory(device)
    for fault in STICKY:
        for claim, variables in (
            (f"a trial with the fault {fault} asks for new workers", {}),
            (f"in them, the trial with the fault {fault} fails with the line of its task", {SYNCHRONOUS: "1"}),
        ):
            if device.type != "cuda":
                claims.append(skip_claim(claim, f"the device is {device}"))
                continue
            command = [sys.executable, __file__, "--device", str(device), "--fault", fault]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
            last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
            claims.append(make_claim(claim, last, done.returncode == 0))
    return claims


def main() -> None:
    parser = create_device_parser(__doc__)
    parser.add_argument("--fault", choices=STICKY, help="run only a trial with this fault")
    given = parser.parse_args()
    if given.fault:
        measure_sticky_error(given.device, given.fault)
    print_claims(list_claims(given.device))


if __name__ == "__main__":
    main()
