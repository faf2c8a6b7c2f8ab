"""Run trials with sharded modules on two ranks as their workers do."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from searchlight.trainables.worker.messages import SegmentAssignment
from tests.trainables.toy_models import timeless
from tests.trainables.training.sharded_tasks import Split
from tests.trainables.two_ranks import LIMIT, RANKS, Pair
from tests.trainables.worker.local_worker import workers

SETTINGS = {"size": 45, "epochs": 2}


class SickSplit(Split):
    """Raises on rank 1 in its loss."""

    def loss(self, batch: Any) -> Any:
        if self.context.rank == 1 and self.config.fault == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if self.context.rank == 1 and self.config.fault:
            raise OSError("no data")
        return super().loss(batch)


def run_segments(rank: int, segments: list[SegmentAssignment], task: str) -> Any:
    runner = workers(task=f"{__name__}:{task}", rank=rank, world_size=RANKS)
    try:
        reports = [report for segment in segments for report in runner.run(segment)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    shown = [timeless(report.metrics) if hasattr(report, "metrics") else report.reason for report in reports]
    return shown, [getattr(report, "checkpoint", None) for report in reports], runner.recycle_reason


def test_sharded_trial_goes_on_from_its_directory_in_a_worker(pair, stretch):
    whole = stretch(trial=0, until=2, **SETTINGS)
    first = stretch(trial=1, until=1, **SETTINGS)
    other = stretch(trial=2, until=1, **SETTINGS)
    second = stretch(trial=1, epoch=1, until=2, start=f"{first.folder}/epoch-1-a.pt", attempt="b", **SETTINGS)
    for answer in pair.run(run_segments, [whole, first, other, second], "SickSplit"):
        assert not isinstance(answer, str), answer
        reports, checkpoints, recycle_reason = answer
        assert len(reports) == 5
        assert reports[2] == reports[3] == reports[0]
        assert reports[4] == reports[1]
        assert all(Path(path, ".searchlight.json").is_file() for path in checkpoints)
        assert recycle_reason == "", "a sharded trial must leave nothing behind in its worker"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("loss", "OSError: no data"),
        ("memory", "out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_error_of_one_rank_in_a_sharded_pass_ends_the_wait(stretch, tmp_path, fault, expected):
    pair = Pair(tmp_path)
    try:
        pair.start()
        for pipe in pair.pipes:
            pipe.send((run_segments, ([stretch(fault=fault, **SETTINGS)], "SickSplit")))
        assert pair.pipes[1].poll(LIMIT), "the rank that raises must not wait"
        worked, ((reason,), _, _) = pickle.loads(pair.pipes[1].recv_bytes())
        assert (worked, reason) == (True, expected)
        pair.processes[1].kill()  # as Train does with a worker that has failed
        assert pair.pipes[0].poll(LIMIT), "the other rank hangs"
        worked, raised = pickle.loads(pair.pipes[0].recv_bytes())
        assert worked
        assert "/gloo/" in raised
    finally:
        pair.end()
