"""Let one rank of a trial die or hang: the others must stop waiting, and new ranks must continue the trial.

Each rank has a GPU and a process. On a CPU, they communicate with gloo.

    python benchmarks/gpu/lost_ranks.py [--device cpu]
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, skip_claim
from benchmarks.gpu.device_tasks import DeviceTask
from benchmarks.recording import Row
from searchlight.trainables.context import Context
from searchlight.trainables.cuda import GPU_BACKEND
from searchlight.trainables.worker.endings import is_lost_peer
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, WorkerSettings
from searchlight.trainables.worker.trial_runner import TrialRunner

RANKS, EPOCHS = 2, 3
LIMIT_S = 20.0  # of the process group, after which a rank no longer waits for another one
SLACK_S = 60.0  # for the start of a process, and for the guards of NCCL, which look every few seconds
TASK = "benchmarks.gpu.lost_ranks:UnreliableTask"


class UnreliableTask(DeviceTask):
    """Loses its last rank in the second epoch, as its config says."""

    def loss(self, batch: torch.Tensor) -> Any:
        steps = self.updaters["train"].steps
        is_second = steps > 0 and steps == getattr(self, "steps_of_an_epoch", -1)
        if is_second and self.context.rank == RANKS - 1:
            if self.config.fault == "death":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.config.fault == "hang":
                time.sleep(3600)
        return super().loss(batch)

    def evaluate(self) -> dict[str, float]:
        self.steps_of_an_epoch = self.updaters["train"].steps
        return super().evaluate()


def run_rank(rank: int, device: torch.device, folder: Path, fault: str, epoch: int) -> None:
    """Train a segment from `epoch` on one rank, and write a line for each report, and for an error, as JSON."""
    torch.set_num_threads(1)
    if device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    store, limit = f"file://{folder}/store-{fault}-{epoch}", timedelta(seconds=LIMIT_S)
    backend = GPU_BACKEND if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store, rank=rank, world_size=RANKS, timeout=limit)
    checkpoints = (f"{folder}/trial/epoch-{epoch}-a.pt", None) if epoch else (None,)
    config = {"epochs": EPOCHS, "fault": fault, "deterministic": True}
    segment = SegmentAssignment(0, config, epoch, EPOCHS, f"{folder}/trial", "a", checkpoints)
    runner = TrialRunner(WorkerSettings(TASK), Context(device, rank, RANKS), threading.Event())
    with open(folder / f"{fault or 'none'}-{epoch}-{rank}.jsonl", "w", encoding="utf-8") as file:
        try:
            for report in runner.run(segment):
                assert isinstance(report, EpochReport), report
                print(json.dumps({"epoch": report.epoch, "loss": report.metrics["val/loss"]}), file=file, flush=True)
        except Exception as error:  # what ends the wait depends on the backend: the step judges it
            print(json.dumps({"error": str(error)[:100], "is_lost_peer": is_lost_peer(error)}), file=file, flush=True)
            os._exit(1)  # as Ray does with a worker whose group is broken


def run_ranks(device: torch.device, folder: Path, fault: str = "", epoch: int = 0) -> tuple[list[Row], float]:
    """Return the lines of rank 0, and the seconds after which its process had ended."""
    command = [sys.executable, __file__, "--device", str(device), "--folder", str(folder), "--epoch", str(epoch)]
    start = time.monotonic()
    ranks = [subprocess.Popen([*command, "--fault", fault, "--rank", str(rank)]) for rank in range(RANKS)]
    try:
        ranks[0].wait(LIMIT_S + 2 * SLACK_S)
    finally:
        for process in ranks:  # the rank that hangs
            process.kill()
            process.wait()
    seconds = time.monotonic() - start
    text = (folder / f"{fault or 'none'}-{epoch}-0.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()], seconds


def list_claims(device: torch.device) -> list[Row]:
    if device.type == "cuda" and torch.cuda.device_count() < RANKS:
        return [skip_claim("the death and the hang of a rank", "this machine has one GPU")]
    claims, most_s = [], LIMIT_S + SLACK_S
    with tempfile.TemporaryDirectory() as whole:
        expected, _ = run_ranks(device, Path(whole))
    assert len(expected) == EPOCHS, expected
    for fault in ("death", "hang"):
        with tempfile.TemporaryDirectory() as folder:
            lines, seconds = run_ranks(device, Path(folder), fault)
            told = [line for line in lines if "epoch" in line]
            error = next((line for line in lines if "error" in line), None)
            how = f"after {seconds:.0f} s: {error['error'] if error else 'its process was ended'}"
            claims.append(
                make_claim(
                    f"the {fault} of a rank ends the wait of the others, with their start within {most_s:.0f} s",
                    how,
                    seconds < most_s and told == expected[:1] and (error is None or error["is_lost_peer"]),
                )
            )
            rest, _ = run_ranks(device, Path(folder), epoch=1)
            figure = ", ".join(f"{line.get('loss', math.nan):.6f}" for line in [*told, *rest])
            claims.append(
                make_claim(
                    f"new ranks continue the trial exactly after the {fault}", figure, [*told, *rest] == expected
                )
            )
    return claims


def main() -> None:
    parser = create_device_parser(__doc__)
    parser.add_argument("--rank", type=int, help="run only this rank, for the step itself")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--fault", default="")
    parser.add_argument("--epoch", type=int, default=0)
    given = parser.parse_args()
    if given.rank is None:
        print_claims(list_claims(given.device))
    else:
        run_rank(given.rank, given.device, given.folder, given.fault, given.epoch)


if __name__ == "__main__":
    main()
