"""A gang without Ray: what it makes of what its workers and the registry answer, by a clock of the test's own."""

from collections import deque
from unittest.mock import Mock

import pytest
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

from searchlight.search.execution.gang import CALL_S, CLOSE_S, POLL_S, START_S, STOP_S, GangRunner, RegistryClient
from searchlight.search.execution.gang_registry import Registry
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.worker.messages import (
    Delivery,
    EndedWorkers,
    EpochReport,
    GangSettings,
    GangStatus,
    SegmentAssignment,
    SegmentEnd,
    TrialRelease,
    WorkerSettings,
)

PLACE_S = 60.0
CRASH = WorkerGroupError("a worker died", {0: RuntimeError("killed")})
NO_ROOM = ControllerError(WorkerGroupStartupTimeoutError(2))


class FakeRegistry:
    """Answers as the registry's actor does, and keeps the calls. The workers' reports are put by the test."""

    def __init__(self):
        self.now = 0.0
        self.calls = []
        self.turn = 0
        self.deliveries = deque()
        self.events = deque()  # what happens to the workers while nothing is reported
        self.status = {"stopping": False, "up": True, "surplus": False, "waiting_s": 0.0, "stalled_s": 0.0}
        self.ended = {"reached": "begun", "expected": "", "leaving": "", "moves": False}

    def call(self, method, *arguments):
        assert getattr(Registry, method.__name__) is method
        self.calls.append(method.__name__)
        match method.__name__:
            case "register_gang":
                self.runs = [arguments[2]]
            case "assign" | "drop":
                self.turn += 1
                return self.turn
            case "poll":
                (self.doing,) = arguments
                return GangStatus(**self.status)
            case "restart":
                self.runs += arguments
                return EndedWorkers(**self.ended)
            case "end_workers":
                return {0: '  File "/task.py", line 7, in loss\n'}
            case "close":
                return True

    def receive(self):
        if self.deliveries:
            return [self.deliveries.popleft()]
        self.now += POLL_S
        if self.events:
            self.events.popleft()()
        return []

    def put(self, report, turn=None):
        self.deliveries.append(Delivery(turn or self.turn, 5.0, report))


class FakeGang:
    """A gang, its registry and its workers."""

    def __init__(self, max_failures=3, stall_timeout=None, objective="", command=None):
        self.registry = FakeRegistry()
        self.started = []
        worker = WorkerSettings("task", objective, stall_timeout=stall_timeout, command=command)
        settings = GangSettings(2, {"CPU": 1.0}, "pack", False, None, max_failures, worker)
        clock = lambda: self.registry.now  # noqa: E731
        self.runner = GangRunner("gang-1", settings, PLACE_S, self.registry, self.start_workers, clock)
        self.runner.begin(segment())
        self.runner.start("actor", "node-1")

    def start_workers(self, run, is_synchronous):
        self.started.append(run)
        self.is_synchronous = is_synchronous
        self.workers = Mock(failure=None)
        return self.workers

    def lose(self, failure=CRASH):
        self.workers.is_alive.return_value, self.workers.failure = False, failure

    def wait(self):
        """The reports that the gang passes on."""
        return self.runner.wait_for_reports().reports

    def after(self, looks, event, *arguments):
        """Let `event` happen once the gang has looked for reports so often."""
        self.registry.events.extend([lambda: None] * looks + [lambda: event(*arguments)])


@pytest.fixture
def gang():
    return FakeGang()


def segment(trial=0, epoch=0):
    return SegmentAssignment(trial, {}, epoch, epoch + 3, "folder", "a")


def report(epoch, done=False):
    return EpochReport(epoch, {"loss": 1.0}, None, {}, done)


INTERRUPTED = SegmentEnd("interrupted", "the search was stopped")


def test_reports_are_passed_on_with_the_name_of_the_gang(gang):
    for epoch in (1, 2, 3):
        gang.registry.put(report(epoch, done=epoch == 3), turn=1)
        result = gang.runner.wait_for_reports()
        assert (result.gang, result.taken, result.reports) == ("gang-1", 5.0, [report(epoch, done=epoch == 3)])
    assert gang.registry.calls == ["register_gang", "assign"]
    assert gang.started == gang.registry.runs


def test_segments_share_workers_and_late_reports_are_dropped(gang):
    for trial in range(3):
        gang.registry.put(report(4), turn=trial)  # late, of the segment before
        gang.registry.put(report(3, done=True), turn=trial + 1)
        assert gang.wait() == [report(3, done=True)]
        gang.runner.begin(segment(trial + 1))
    assert len(gang.started) == 1


def test_lost_workers_are_replaced_and_the_next_report_says_so(gang):
    gang.after(0, gang.lose)
    gang.after(0, gang.registry.put, report(1))
    (found,) = gang.wait()
    assert found.notes == ["lost its workers (RuntimeError: killed), and continues from its last checkpoint"]
    assert found.epoch == 1
    assert len(set(gang.started)) == 2
    gang.registry.put(report(2))
    assert gang.wait() == [report(2)], "a note is passed on once"


def test_stalled_trial_fails_with_the_stacks_of_its_workers():
    gang = FakeGang(stall_timeout=30.0)
    gang.registry.status["stalled_s"] = 29.0
    gang.after(10, lambda: gang.registry.status.update(stalled_s=31.0))
    (end,) = gang.wait()
    assert (end.outcome, end.reason) == ("failed", "stalled: no progress for 30 s")
    assert end.location == "/task.py, line 7, in loss"
    assert end.traceback == f'{end.reason}\n\nrank 0:\n  File "/task.py", line 7, in loss\n'
    assert gang.registry.calls[-1] == "end_workers"
    assert gang.registry.doing == "trial 0, from epoch 0 (stalled once it makes none for 0:30)"


@pytest.mark.parametrize(("silent_s", "is_killed"), [(14.0, False), (16.0, True)])
def test_trial_whose_workers_are_silent_continues_in_new_ones(silent_s, is_killed):
    gang = FakeGang(stall_timeout=30.0)
    gang.registry.status.update(stalled_s=31.0, silent_s=silent_s)
    gang.after(20, lambda: (gang.lose(), gang.registry.status.update(stalled_s=0.0, silent_s=0.0)))
    gang.after(10, gang.registry.put, report(1))
    (first,) = gang.wait()
    assert gang.registry.calls.count("kill_workers") == is_killed, "they are killed once"
    assert ("end_workers" in gang.registry.calls) != is_killed
    if is_killed:
        killed, lost = first.notes
        assert killed == "its workers are ended: one has not answered for 16 s"
        assert lost.startswith("lost its workers (")
        assert (first.epoch, len(gang.started)) == (1, 2)
    else:
        assert first.outcome == "failed"


def test_stall_limit_of_a_task_follows_from_its_epochs():
    gang, function = FakeGang(), FakeGang(objective="loss")
    for found in (gang, function):
        found.registry.status.update(stalled_s=2001.0)
        found.after(20, lambda found=found: found.registry.status.update(stall_limit_s=2000.0))
        found.after(20, found.registry.put, INTERRUPTED)
    assert gang.wait()[0].reason == (
        "stalled: no progress for 2000 s, which is 10 times the longest epoch or 1800 s; see --stall-timeout"
    )
    assert function.wait() == [INTERRUPTED]


@pytest.mark.parametrize("goes_down", [False, True])
def test_stopping_search_gives_workers_time_to_save(gang, goes_down):
    gang.registry.status["stopping"] = True
    gang.after(8, lambda: gang.registry.status.update(up=not goes_down))
    assert gang.wait() == [INTERRUPTED]
    assert STOP_S < gang.registry.now < STOP_S + 2


def test_stopping_search_gives_programs_their_time_to_end():
    command = CommandSettings(("train", "{checkpoint_dir}"), "", "", objectives=("loss",), stop_grace=60.0)
    gang = FakeGang(command=command)
    gang.registry.status["stopping"] = True
    assert gang.wait() == [INTERRUPTED]
    assert STOP_S + command.longest_stop_s < gang.registry.now < STOP_S + command.longest_stop_s + 2
    gang.runner.close()
    gang.workers.join.assert_called_once_with(CLOSE_S + command.longest_stop_s)
    assert command.longest_stop_s > 2 * 60, "it may be asked to stop, and then get SIGTERM"


def test_gang_on_a_leaving_node_releases_its_begun_trial(gang):
    gang.registry.ended |= {"leaving": "node 10.0.0.1 is going away", "moves": True}
    gang.after(0, gang.lose, None)
    (release,) = gang.wait()
    assert (release.reason, release.begun) == ("its own node is going away", True)
    assert release.notes == ["node 10.0.0.1 is going away, and it continues elsewhere from epoch 0"]
    with pytest.raises(RuntimeError, match="its own node is going away"):
        gang.wait()


def test_first_call_waits_for_the_start_of_the_registry(monkeypatch):
    limits = []
    monkeypatch.setattr("ray.get", lambda answer, timeout: limits.append(timeout))
    registry = RegistryClient(Mock(), "gang-1")
    registry.call(Registry.unregister_gang)
    registry.call(Registry.unregister_gang)
    assert limits == [START_S, CALL_S]


def test_closing_gang_waits_for_its_workers(gang):
    gang.runner.close()
    assert gang.registry.calls[-2:] == ["close", "unregister_gang"]
    assert gang.registry.timeout_s == CLOSE_S
    gang.workers.join.assert_called_once_with(CLOSE_S)


def test_workers_lost_between_segments_are_replaced_for_free():
    gang = FakeGang(max_failures=0)
    gang.registry.put(report(3, done=True), turn=1)
    gang.wait()
    gang.lose()
    gang.registry.ended["reached"] = "nothing"
    gang.runner.begin(segment(1))
    gang.registry.put(report(3, done=True), turn=2)
    assert gang.wait() == [report(3, done=True)]
    assert len(gang.started) == 2
    assert gang.started == gang.registry.runs


def test_losses_fail_a_trial_without_progress_and_not_the_gang():
    gang = FakeGang(max_failures=1)
    for epoch in (1, 2, 3):
        gang.registry.events.extend([gang.lose, lambda epoch=epoch: gang.registry.put(report(epoch))])
        assert gang.wait()[0].epoch == epoch
    gang.registry.events.extend([gang.lose, gang.lose])
    (end,) = gang.wait()
    assert (end.outcome, end.reason) == ("failed", "its workers were lost 2 times: RuntimeError: killed")
    assert gang.registry.calls[-1] == "drop"
    gang.runner.begin(segment(1, epoch=9))  # beyond what the trial before has reached
    gang.registry.events.extend([gang.lose, lambda: gang.registry.put(report(10))])
    assert gang.wait()[0].epoch == 10
    assert len(gang.started) == 7


@pytest.mark.parametrize("up", [False, True])
def test_stopping_search_does_not_wait_for_missing_workers(gang, up):
    gang.registry.status |= {"stopping": True, "up": up}
    gang.after(5, gang.lose)
    assert gang.wait() == [INTERRUPTED]
    assert gang.registry.now < 2
    assert "restart" not in gang.registry.calls


@pytest.mark.parametrize("surplus", [False, True])
def test_gang_without_room_releases_its_trial_and_ends(gang, surplus):
    gang.registry.status["surplus"] = surplus
    gang.registry.ended["reached"] = "assigned"
    gang.after(8, gang.lose, NO_ROOM)
    (release,) = gang.wait()
    assert release == TrialRelease("the cluster has no room for it" if surplus else release.reason, begun=False)
    with pytest.raises(RuntimeError, match="gang-1 ends: "):
        gang.wait()
    assert len(gang.started) == 1


@pytest.mark.parametrize(
    ("waiting_s", "line"),
    [
        (0.0, "its workers cannot start: RuntimeError: killed"),
        (PLACE_S + START_S + 1, "its workers did not begin within 360 s"),
    ],
)
def test_workers_that_do_not_start_end_the_gang(gang, waiting_s, line):
    gang.registry.status["waiting_s"] = waiting_s
    gang.registry.ended["reached"] = "assigned"
    gang.after(8, gang.lose)
    gang.after(0, gang.lose)
    with pytest.raises(RuntimeError, match=line):
        gang.wait()
    assert len(gang.started) == (1 if waiting_s else 2)


def test_gang_polls_as_often_as_the_registry_says(gang):
    gang.registry.status["next_poll_s"] = 5.0
    gang.after(round(17 / POLL_S), gang.registry.put, EpochReport(1, {}, None, {}))
    gang.wait()
    assert gang.registry.calls.count("poll") == 4  # after 1, 6, 11 and 16 seconds


def test_workers_after_an_error_of_cuda_are_synchronous(gang):
    assert not gang.is_synchronous
    gang.registry.ended |= {"expected": "CUDA error", "is_synchronous": True}
    gang.lose(None)
    gang.after(1, gang.registry.put, EpochReport(1, {}, None, {}))
    (report,) = gang.wait()
    assert report.notes == ["begins in new workers: CUDA error"]
    assert gang.is_synchronous
