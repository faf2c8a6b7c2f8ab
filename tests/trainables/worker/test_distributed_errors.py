"""Fail a trial on one of two ranks: one report says why, and the other rank stops waiting."""

import pickle
from typing import Any

import pytest
from torch import Tensor

from searchlight.trainables.precision import Diverged
from searchlight.trainables.worker.messages import Divergence, SegmentAssignment, SegmentEnd
from searchlight.trainables.worker.segment_runner import SegmentRunner
from tests.trainables.toy_models import Regression
from tests.trainables.two_ranks import LIMIT, RANKS, Pair
from tests.trainables.worker.local_worker import workers


class Sick(Regression):  # raises on one rank, as "place rank" in its `fault` says
    def build(self) -> None:
        super().build()
        self.raise_in("build")

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        self.raise_in("loss")
        if self.config.fault == f"divergence {self.context.rank}":
            raise Diverged("it has seen enough")
        return super().loss(batch)

    def pictures(self) -> dict[str, Any]:
        self.raise_in("pictures")
        return {}

    def raise_in(self, place: str) -> None:
        if self.config.fault == f"{place} {self.context.rank}":
            raise OSError(f"no data in {place}")


def run_on_rank(rank: int, segment: SegmentAssignment) -> tuple[list[SegmentEnd], str]:
    """The reports of a segment, and what it raised."""
    reports = []
    try:
        for report in workers(task=f"{__name__}:Sick", rank=rank, world_size=RANKS).run(segment):
            reports.append(report)
    except Exception as error:
        return reports, f"{type(error).__name__}: {error}"
    return reports, ""


def receive_answer(pair: Pair, rank: int) -> tuple[list[SegmentEnd], str]:
    assert pair.pipes[rank].poll(LIMIT), f"rank {rank} hangs"
    worked, result = pickle.loads(pair.pipes[rank].recv_bytes())
    assert worked, result
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("place", "sick"), [("build", 1), ("pictures", 0)])
def test_error_on_one_rank_is_reported_once_and_ends_the_wait(stretch, tmp_path, place, sick):
    pair = Pair(tmp_path)
    try:
        pair.start()
        for pipe in pair.pipes:
            pipe.send((run_on_rank, (stretch(fault=f"{place} {sick}", until=1),)))
        (report,), raised = receive_answer(pair, sick)
        assert raised == ""
        assert (report.done, report.outcome, report.reason) == (True, "failed", f"OSError: no data in {place}")
        assert "in raise_in" in report.traceback
        assert not pair.pipes[1 - sick].poll(0.5), "the other rank does not know, and waits"
        pair.processes[sick].kill()  # as Train does with a worker that has failed
        reports, raised = receive_answer(pair, 1 - sick)
        assert reports == [], "the trial has one end, and the other rank has told it"
        assert "/gloo/" in raised
    finally:
        pair.end()


@pytest.mark.parametrize("sick", [0, 1])
def test_error_in_a_loss_is_known_to_both_ranks_at_once(pair, stretch, sick):
    results = pair.run(run_on_rank, stretch(fault=f"loss {sick}", until=1))
    (report,), raised = results[sick]
    assert (report.outcome, report.reason, raised) == ("failed", "OSError: no data in loss", "")
    reports, raised = results[1 - sick]
    assert reports == []
    assert raised == "PeerFailed: 1 of 2 ranks failed in this window; no rank can finish it"


def test_rank_that_diverges_alone_ends_the_trial_and_its_group(pair, stretch):
    (reports, raised), (others, other_raised) = pair.run(run_on_rank, stretch(fault="divergence 1", until=1))
    assert reports == []
    assert raised.startswith("PeerFailed")  # its worker ends
    end = SegmentEnd("diverged", "it has seen enough", divergence=Divergence("other", 1), alone=True)
    assert (others, other_raised) == ([end], "")


def run_unreleased(rank: int, segment: SegmentAssignment) -> tuple[list[SegmentEnd], str]:
    """The reports of a segment whose ranks cannot release it: on a GPU, that might wait for the other ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(SegmentRunner, "_release")
        return run_on_rank(rank, segment)


def test_rank_that_fails_alone_reports_before_it_releases(pair, stretch):
    results = pair.run(run_unreleased, stretch(fault="loss 1", until=1))
    (report,), raised = results[1]
    assert (report.outcome, report.reason, raised) == ("failed", "OSError: no data in loss", "")
    reports, raised = results[0]
    assert (reports, raised.partition(":")[0]) == ([], "PeerFailed")
