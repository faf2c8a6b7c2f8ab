"""The reports of a worker reach the gang's mailbox in their order, though an actor of Ray may take calls in another."""

import concurrent.futures
import threading
import time
from types import SimpleNamespace

from searchlight.trainables.worker import worker
from searchlight.trainables.worker.messages import EpochReport
from searchlight.trainables.worker.worker import GangMember

REPORTS = 6


class SlowRegistry:
    """Stands for the registry's actor. Takes the longer for a report, the earlier it is."""

    def __init__(self):
        self.taken = []
        self._calls = concurrent.futures.ThreadPoolExecutor(REPORTS)
        self.put = SimpleNamespace(remote=lambda *arguments: self._calls.submit(self._put, *arguments))

    def _put(self, gang, turn, report, ending):
        time.sleep(0.05 * (REPORTS - report.epoch))
        self.taken.append(report.epoch)


def test_reports_arrive_in_their_order(monkeypatch):
    monkeypatch.setattr(worker.ray, "wait", concurrent.futures.wait)
    monkeypatch.setattr(worker.ray, "get", lambda call: call.result())
    runner = SimpleNamespace(context=SimpleNamespace(rank=0, world_size=1), stopping=threading.Event())
    registry = SlowRegistry()
    member = GangMember(registry, "gang", runner)
    for epoch in range(1, REPORTS + 1):
        member._send(EpochReport(epoch, {}, None, {}, done=epoch == REPORTS))
    assert registry.taken == [*range(1, REPORTS + 1)]
