"""A trial that raises on one of two ranks: one report says why, and the other rank's wait ends with its peer."""

import itertools
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from tests.trainables.toy_models import Regression
from tests.trainables.two_ranks import LIMIT, RANKS, Pair
from trainables.context import Context
from trainables.worker.messages import SegmentAssignment, SegmentEnd, WorkerSettings
from trainables.worker.worker import TrialRunner


class Sick(Regression):
    """Raises on one rank, as "place rank" in its `fault` says."""

    def build(self) -> None:
        super().build()
        self.raise_in("build")

    def train_batches(self, epoch: int) -> Iterator[Any]:
        for number, batch in enumerate(super().train_batches(epoch)):
            if number == 1:
                self.raise_in("train_batches")
            yield batch

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        self.raise_in("loss")
        return super().loss(batch)

    def evaluate(self) -> dict[str, Any]:
        self.raise_in("evaluate")
        return super().evaluate()

    def pictures(self) -> dict[str, Any]:
        self.raise_in("pictures")
        return {}

    def raise_in(self, place: str) -> None:
        if self.config.fault == f"{place} {self.context.rank}":
            raise OSError(f"no data in {place}")


def stretch_on_rank(rank: int, stretch: SegmentAssignment) -> tuple[list[SegmentEnd], str, float]:
    """The reports of a stretch, what it raised, and the seconds that it took."""
    workers = TrialRunner(WorkerSettings(f"{__name__}:Sick"), Context(rank=rank, world_size=RANKS), threading.Event())
    reports, raised, start = [], "", time.monotonic()
    try:
        for report in workers.run(stretch):
            reports.append(report)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return reports, raised, time.monotonic() - start


@pytest.fixture
def stretch(tmp_path):
    """Makes a stretch of one epoch that goes wrong on one rank."""

    def make(fault: str) -> SegmentAssignment:
        return SegmentAssignment(0, {"fault": fault}, 0, 1, str(tmp_path / "trial"), "a")

    return make


@pytest.fixture
def fresh_pair(tmp_path):
    """Two ranks of which one is ended."""
    pair = Pair(tmp_path)
    pair.start()
    yield pair
    pair.end()


def answer(pair: Pair, rank: int) -> tuple[list[SegmentEnd], str, float]:
    assert pair.pipes[rank].poll(LIMIT), f"rank {rank} hangs"
    worked, result = pickle.loads(pair.pipes[rank].recv_bytes())
    assert worked, result
    return result


@pytest.mark.parametrize(
    ("place", "sick"),
    [*itertools.product(["build", "train_batches", "evaluate"], [0, 1]), ("pictures", 0)],
)
def test_an_error_on_one_rank_is_its_report_and_the_other_waits_no_longer_than_it_lives(
    fresh_pair, stretch, place, sick
):
    for pipe in fresh_pair.pipes:
        pipe.send((stretch_on_rank, (stretch(f"{place} {sick}"),)))
    (report,), raised, _ = answer(fresh_pair, sick)
    assert raised == ""
    assert (report.done, report.outcome, report.reason) == (True, "failed", f"OSError: no data in {place}")
    assert "in raise_in" in report.traceback
    assert not fresh_pair.pipes[1 - sick].poll(0.5), "the other rank does not know, and waits"
    killed = time.monotonic()
    fresh_pair.processes[sick].kill()  # as Train does with a worker that has failed
    reports, raised, _ = answer(fresh_pair, 1 - sick)
    assert time.monotonic() - killed < LIMIT / 4
    assert reports == [], "the trial has one end, and the other rank has told it"
    assert "/gloo/" in raised


@pytest.mark.parametrize("sick", [0, 1])
def test_an_error_in_a_loss_is_known_to_both_ranks_at_once(pair, stretch, sick):
    results = pair.run(stretch_on_rank, stretch(f"loss {sick}"))
    (report,), raised, _ = results[sick]
    assert (report.outcome, report.reason, raised) == ("failed", "OSError: no data in loss", "")
    reports, raised, took = results[1 - sick]
    assert reports == []
    assert raised.startswith("PeerFailed")
    assert took < LIMIT / 4
