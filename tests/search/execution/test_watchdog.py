import time
from types import SimpleNamespace

from search.execution import watchdog
from search.execution.watchdog import Watchdog


def test_gangs_that_wait_for_room_are_told_of_once_and_again_when_others_do(monkeypatch):
    said, waiting = [], [2]
    monkeypatch.setattr(watchdog, "LOOK_S", 0.01)
    monkeypatch.setattr(watchdog, "ROOM_S", 0.05)
    monkeypatch.setattr(watchdog.ray, "get", lambda answer, timeout: answer)
    free = {"CPU": 1.0, "node:10.0.0.1": 1.0, "memory": 9.0, "bundle_group_0_c9d6": 999.0, "CPU_group_c9d6": 2.0}
    monkeypatch.setattr(watchdog.ray, "available_resources", lambda: free)
    registry = SimpleNamespace(statuses=SimpleNamespace(remote=lambda: ([], waiting[0])))
    with Watchdog(registry, "2 x 1 CPU", said.append):
        for count in (2, 0, 1):
            waiting[0] = count
            time.sleep(0.3)
    told = "of the gangs wait for room: 2 x 1 CPU each, free are 1 CPU"
    assert said == [f"2 {told}", f"1 {told}"]
