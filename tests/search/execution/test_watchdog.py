import threading
from types import SimpleNamespace

from searchlight.search.execution import watchdog
from searchlight.search.execution.watchdog import QUIET_S, ROOM_S, Watchdog


def test_waiting_gangs_and_silence_are_told_once(monkeypatch):
    said, over, clock = [], threading.Event(), SimpleNamespace(now=1.0)
    looks = iter([(0, 2), (ROOM_S + 1, 2), (1, 2), (1, 0), (1, 1), (ROOM_S + 1, 1), (QUIET_S, 0), (1, 0)])

    def look():
        passed, waiting = next(looks, (0, 0))
        clock.now += passed
        if not looks.__length_hint__():
            over.set()
        return ["trial 0"], waiting

    free = {"CPU": 1.0, "node:10.0.0.1": 1.0, "memory": 9.0, "bundle_group_0_c9d6": 999.0, "CPU_group_c9d6": 2.0}
    monkeypatch.setattr(watchdog, "LOOK_S", 0.0)
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(watchdog.ray, "get", lambda answer, timeout: answer)
    monkeypatch.setattr(watchdog.ray, "available_resources", lambda: free)
    waits = []

    def say(line):
        said.append(line)
        waits.append(watching.waiting)

    watching = Watchdog(SimpleNamespace(statuses=SimpleNamespace(remote=look)), "2 x 1 CPU", say)
    with watching:
        over.wait()
    told = "of the gangs wait for room: 2 x 1 CPU each, free are 1 CPU"
    assert said == [f"2 {told}", f"1 {told}", "no progress for 60 s: trial 0"]
    assert waits == [f"2 {told}", f"1 {told}", ""]
