import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, OutOfMemoryError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

from searchlight.search.execution.failure_policy import FAILED_STARTS, FailurePolicy, describe_failure


def died(message):
    return ActorDiedError(ActorDiedErrorContext(error_message=message, actor_id=b"0" * 16))


CRASH = WorkerGroupError("a worker died", {0: died("Worker unexpectedly exits with a connection error code 2.")})
KILLED = WorkerGroupError("oom", {1: OutOfMemoryError("killed")})
SILENT = ActorUnavailableError("RpcError: RPC error: keepalive watchdog timeout rpc_code: 14", b"0" * 16)
NO_ROOM = ControllerError(WorkerGroupStartupTimeoutError(2))
LEAVING = "node 10.0.0.3 is going away"


def policy(limit, epoch=0):
    made = FailurePolicy(limit)
    made.start_segment(epoch)
    return made


def kinds(made, times, *arguments):
    return [made.decide(*arguments).kind for _ in range(times)]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_each_trial_fails_once_its_losses_exceed_the_limit(limit):
    made = policy(limit)
    for _ in range(2):
        made.start_segment(0)
        assert kinds(made, limit + 1, CRASH, "begun", "") == ["start"] * limit + ["fail"]


def test_only_a_new_epoch_forgives_losses():
    made = policy(1)
    for epoch in range(1, 50):
        made.record_progress(epoch)
        assert kinds(made, 1, CRASH, "begun", "") == ["start"]
    made.record_progress(48)
    made.record_progress(49)
    assert kinds(made, 1, CRASH, "begun", "") == ["fail"]


def test_workers_that_never_begin_end_the_gang():
    made = policy(100)
    assert kinds(made, FAILED_STARTS + 1, CRASH, "assigned", "") == ["start"] * FAILED_STARTS + ["give up"]
    assert made.decide(CRASH, "assigned", "").reason == "its workers cannot start: a process was killed or crashed"
    assert policy(0).decide(CRASH, "assigned", "").note.startswith("its workers did not start (a process was killed")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((CRASH, "begun", "20 trials"), "start"),
        ((CRASH, "nothing", ""), "start"),
        ((NO_ROOM, "assigned", ""), "room"),
        ((CRASH, "begun", "", LEAVING), "start"),
    ],
)
def test_expected_ends_cost_nothing(arguments, kind):
    assert kinds(policy(0), 20, *arguments) == [kind] * 20


def test_note_says_why_new_workers_begin():
    made = policy(0, epoch=3)
    assert made.decide(None, "begun", "20 trials").note == "begins in new workers: 20 trials"
    assert made.decide(None, "begun", LEAVING, LEAVING).note == f"{LEAVING}, and it continues elsewhere from epoch 3"
    assert made.decide(None, "nothing", "", LEAVING).note == ""


def test_second_loss_for_memory_without_progress_is_that_of_the_trial():
    """Ray ends the workers that began last, whichever uses the memory of the node."""
    made = policy(5)
    first, _, second = (made.decide(error, "begun", "") for error in (KILLED, CRASH, KILLED))
    assert (first.kind, first.lacks_memory) == ("start", False)
    assert "Ray's memory monitor killed it" in first.note
    assert (second.kind, second.lacks_memory) == ("fail", True)
    assert second.reason.startswith("out of memory: ")


def test_progress_between_losses_for_memory_shows_that_a_trial_fits():
    made = policy(5)
    for epoch in range(1, 10):
        assert made.decide(KILLED, "begun", "").kind == "start"
        made.record_progress(epoch)


def test_only_allowed_losses_for_memory_are_tried_again():
    verdict = policy(0).decide(KILLED, "begun", "")
    assert (verdict.kind, verdict.lacks_memory) == ("fail", False), "another trial may have used the memory"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CRASH, "a process was killed or crashed"),
        (died("The actor died because its node has died. Node Id: 1"), "its node was lost"),
        (died("The actor is dead because it was killed by `ray.kill`."), "the search has ended them"),
        (
            WorkerGroupError("a worker is silent", {0: SILENT}),
            "a process no longer answered: it was suspended, or its machine or network is overloaded",
        ),
        (
            GetTimeoutError("Get timed out: some object(s) not ready."),
            "the search did not answer in time: its machine or network is overloaded",
        ),
        (WorkerGroupError("x", {1: RuntimeError("two\n lines")}), "RuntimeError: two lines"),
        (None, "they returned"),
    ],
    ids=["crash", "node", "end", "silence", "timeout", "exception", "return"],
)
def test_failure_is_described_in_one_line(error, told):
    assert describe_failure(error) == told
