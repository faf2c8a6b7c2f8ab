import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

from search.execution.failure_policy import FAILED_STARTS, FailurePolicy, describe_failure


def died(message):
    return ActorDiedError(ActorDiedErrorContext(error_message=message, actor_id=b"0" * 16))


CRASH = WorkerGroupError("a worker died", {0: died("Worker unexpectedly exits with a connection error code 2.")})


def recovery(limit, epoch=0):
    made = FailurePolicy(limit)
    made.start_segment(epoch)
    return made


def kinds(made, times, *arguments):
    return [made.decide(*arguments).kind for _ in range(times)]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_trial_fails_once_its_workers_were_lost_more_often_than_the_limit(limit):
    made = recovery(limit)
    assert kinds(made, limit + 1, CRASH, "begun", "") == ["start"] * limit + ["fail"]


def test_the_next_trial_of_a_gang_is_not_charged_with_the_losses_of_the_one_before():
    made = recovery(1)
    assert kinds(made, 2, CRASH, "begun", "") == ["start", "fail"]
    made.start_segment(0)
    assert kinds(made, 2, CRASH, "begun", "") == ["start", "fail"]


def test_losses_are_forgiven_when_the_trial_got_further_and_not_when_it_did_an_epoch_again():
    made = recovery(1)
    made.record_progress(3)
    assert kinds(made, 1, CRASH, "begun", "") == ["start"]
    made.record_progress(2)
    made.record_progress(3)
    assert kinds(made, 1, CRASH, "begun", "") == ["fail"]
    made = recovery(1)
    for epoch in range(1, 50):
        made.record_progress(epoch)
        assert kinds(made, 1, CRASH, "begun", "") == ["start"]


def test_workers_that_never_begin_end_the_gang_and_not_the_trial():
    made = recovery(100)
    assert kinds(made, FAILED_STARTS + 1, CRASH, "assigned", "") == ["start"] * FAILED_STARTS + ["give up"]
    assert made.decide(CRASH, "assigned", "").reason == "its workers cannot start: a process was killed or crashed"
    assert recovery(0).decide(CRASH, "assigned", "").note.startswith("its workers did not start (a process was killed")


def test_workers_that_were_to_end_or_had_nothing_to_do_cost_nothing():
    made = recovery(0)
    assert kinds(made, 50, CRASH, "begun", "20 trials") == ["start"] * 50
    assert kinds(made, 50, CRASH, "nothing", "") == ["start"] * 50
    assert made.decide(None, "begun", "20 trials").note == "begins in new workers: 20 trials"


def test_no_room_costs_nothing_and_ends_the_gang():
    made = recovery(0)
    error = ControllerError(WorkerGroupStartupTimeoutError(2))
    assert kinds(made, 5, error, "assigned", "") == ["room"] * 5


def test_what_a_node_that_goes_away_costs_is_no_fault_of_the_trial():
    made = recovery(0, epoch=3)
    assert kinds(made, 9, CRASH, "begun", "", "node 10.0.0.3 is going away") == ["start"] * 9
    left = made.decide(None, "begun", "node 10.0.0.3 is going away", "node 10.0.0.3 is going away")
    assert left.note == "node 10.0.0.3 is going away, and it goes on elsewhere from epoch 3"
    assert made.decide(None, "nothing", "", "node 10.0.0.3 is going away").note == ""


def test_out_of_memory_is_no_reason_to_try_again():
    verdict = recovery(5).decide(WorkerGroupError("oom", {1: OutOfMemoryError("killed")}), "begun", "")
    assert (verdict.kind, verdict.reason.partition(":")[0]) == ("fail", "out of memory")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CRASH, "a process was killed or crashed"),
        (died("The actor died because its node has died. Node Id: 1"), "its node was lost"),
        (WorkerGroupError("x", {1: RuntimeError("two\n lines")}), "RuntimeError: two lines"),
        (None, "they returned"),
    ],
)
def test_what_ended_workers_is_told_in_a_line(error, told):
    assert describe_failure(error) == told
