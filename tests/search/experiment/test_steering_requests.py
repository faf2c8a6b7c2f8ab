"""Which commands to a searcher are refused, and how they and their answers are exchanged."""

import math
from dataclasses import replace

import pytest
from optuna.trial import TrialState

from searchlight.search.errors import UsageError
from searchlight.search.experiment import steering
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.steering.mailbox import (
    ANSWER,
    FOLDER,
    REQUEST,
    read_requests,
    send,
    wait_for_answer,
    write_answer,
)
from tests.search.execution.searcher_harness import interrupt, report
from tests.search.experiment.steered_searcher import Driver
from tests.search.output_schemas import check_output


@pytest.mark.parametrize(
    ("operation", "args", "reason"),
    [
        ("finish", {"confirm": 3}, "--confirm must be for a search with confirming runs"),
        ("stop", {"trials": [7]}, "trial 7 must be one of the search, but the last one is 0"),
        ("stop", {"trials": []}, "a trial must be named"),
        ("try", {"point": {"lrr": 1}, "full": False}, "Did you mean 'lr'?"),
        ("try", {"point": {"lr": 5}, "full": False}, "lr must lie in the searched range, 0..1, but got 5"),
        ("avoid", {"region": "speed>3"}, "speed must be a searched parameter, but is not"),
        ("avoid", {"region": "lr>=0"}, "must leave some of the space"),
        ("avoid", {"region": "lr"}, "must be like batch_size>=512"),
        ("narrow", {"ranges": {"lr": "0.5..2"}}, "must lie in 0..1, but got 2"),
        ("narrow", {"ranges": {"lr": "0.5"}}, "must be like 0..1, but got '0.5'"),
        ("narrow", {"ranges": {"lr": "0.5..0.1"}}, "must have low < high"),
        ("narrow", {"ranges": {}}, "a range must be given"),
        (
            "believe",
            {"point": {"lr": 0.1}},
            "must be for --sampler mixture or tpe with one objective: use try or narrow here.",
        ),
        ("budget", {}, "a budget must be given"),
        ("budget", {"trials": 0}, "--trials must be above 0, but got 0"),
        ("budget", {"gpu_hours": "much"}, "--gpu-hours must be above 0, but got 'much'"),
        ("budget", {"gpu_hours": math.nan}, "--gpu-hours must be above 0, but got nan"),
        ("extend", {"trials": [0], "epochs": 0}, "--epochs must be above 0, but got 0"),
        ("extend", {"trials": [5], "epochs": 1}, "trial 5 must be one of the search"),
        ("continue", {}, "the search must be paused"),
        ("undo", {"command": "x"}, "there is no 'x'"),
    ],
)
def test_wrong_command_is_refused_in_one_line(driver, operation, args, reason):
    driver.searcher.suggest("t0")
    answer = driver.give(operation, **args)
    assert not answer.accepted
    assert reason in answer.effect
    assert "\n" not in answer.effect
    assert driver.study.get_commands()[-1].answer == answer, "the log has it"


def test_undo_that_leaves_nothing_of_the_space_is_refused(driver):
    low, undo = Command("avoid", {"region": "lr<0.5"}), Command("undo", {"command": "1"})
    for given in (low, undo, Command("avoid", {"region": "lr>=0.5"})):
        assert driver.apply(given).answer.accepted
    refused = driver.give("undo", command=undo.id)
    assert not refused.accepted
    assert "must leave some of the space" in refused.effect


def test_trial_that_stops_already_is_not_stopped_again(driver):
    driver.searcher.suggest("t0")
    driver.give("stop", trials=[0], why="hopeless")
    assert "must not be stopping already" in driver.give("stop", trials=[0]).effect
    interrupt(driver.searcher, "t0")
    assert driver.study.get_trial(0).user_attrs["reason"] == "stopped by ann: hopeless"


def test_ended_trial_is_refused_with_its_outcome(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.give("stop", trials=[0])
    assert driver.give("keep", trials=[0]).effect == "trial 0 must be unfinished, but is pruned."


def test_command_that_knows_an_old_log_is_refused(driver):
    driver.searcher.suggest("t0")
    driver.give("budget", author="ann", trials=5)
    driver.give("keep", author="ann", trials=[0])
    refused = driver.give("budget", author="bob", revision=0, trials=9)
    assert "trials was decided by ann (budget, revision 1)" in refused.effect
    assert driver.give("budget", author="bob", revision=0, concurrency=1).accepted, "it decides on something else"
    assert driver.give("budget", author="bob", revision=1, trials=9).accepted


def test_command_is_applied_once_however_often_it_is_sent(driver):
    driver.searcher.suggest("t0")
    given = Command("stop", {"trials": [0]})
    assert driver.apply(given) == driver.apply(given)
    assert len(driver.study.get_commands()) == 1
    assert driver.halted == [0]


def test_preview_changes_nothing(driver):
    driver.searcher.suggest("t0")
    answer = driver.apply(replace(Command("stop", {"trials": [0]}), is_preview=True)).answer
    assert answer.accepted
    assert (driver.halted, driver.study.get_commands()) == ([], [])


def test_resumed_search_has_the_commands_of_its_log(driver, make_searcher, tmp_path):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.give("keep", trials=[0])
    driver.give("avoid", region="lr>=0.2")
    budget = driver.apply(Command("budget", {"trials": 2}))
    driver.give("pause", drain=True)
    driver.study.live.clear()
    later = Driver(make_searcher(onto=driver.study, trials=6), tmp_path)
    where = f"{tmp_path.name} --storage {tmp_path.parent}"
    assert later.told == [f"the search is paused until: searchlight continue {where}"]
    assert later.searcher.suggest("t1") is None
    later.give("continue")
    assert later.searcher.suggest("t2")["segment"].trial == 0
    assert later.searcher.suggest("t3")["segment"].config["lr"] < 0.2
    assert later.searcher.limits.trials == 6, "the options of the resumed search have the former budget, or a new one"
    assert "since the search was resumed" in later.give("undo", command=budget.command.id).effect


def test_driver_killed_after_the_log_applies_the_command_on_resume(driver, make_searcher, tmp_path):
    """The log is written before the effect, and the effect follows from the log."""
    driver.searcher.suggest("t0")
    driver.steering.update_trials = lambda: None  # as if it were killed here
    driver.steering._controls.update_trials = lambda: None
    driver.give("stop", trials=[0])
    assert driver.study.get_trial(0).state == TrialState.RUNNING
    driver.study.live.clear()
    later = Driver(make_searcher(onto=driver.study, trials=6), tmp_path)
    assert later.outcomes() == ["pruned"]


def test_answer_that_could_not_be_written_comes_later(driver, monkeypatch):
    driver.searcher.suggest("t0")
    command = Command("keep", {"trials": [0]})
    send(driver.place, command)

    def fail_once(place, entry):
        monkeypatch.setattr(steering, "write_answer", write_answer)
        raise OSError("the bucket is away")

    monkeypatch.setattr(steering, "write_answer", fail_once)
    with driver.steering:
        while not (entry := wait_for_answer(driver.place, command, 0.0)):
            driver.searcher.apply_commands()
    assert entry.answer.accepted
    assert len(driver.study.get_commands()) == 1
    assert "commands cannot be read or answered: the bucket is away" in driver.told


def test_commands_are_answered_though_the_state_cannot_be_described(make_searcher, tmp_path, monkeypatch):
    monkeypatch.setattr(steering, "EVERY_S", 0.0)
    monkeypatch.setattr(steering, "READ_S", 0.01)

    def fail():
        raise RuntimeError("deque mutated during iteration")

    driver = Driver(make_searcher(trials=6), tmp_path, describe=fail)
    command = Command("pause", {"drain": True})
    send(driver.place, command)
    with driver.steering:
        while not (entry := wait_for_answer(driver.place, command, 0.0)):
            assert driver.steering._thread.is_alive()
            driver.searcher.apply_commands()
    assert entry.answer.accepted
    warning = "the state of the search cannot be written: RuntimeError('deque mutated during iteration')"
    assert driver.told.count(warning) == 1


def test_trial_that_completed_before_its_stop_stays_completed(driver, make_searcher, tmp_path):
    driver.searcher.suggest("t0")
    driver.steering._controls.update_trials = driver.steering.update_trials = lambda: None
    driver.give("stop", trials=[0])
    for epoch in (1, 2, 3):  # and then it was killed
        driver.study.report(0, epoch, 0.5, {"metrics": {"val/loss": 0.5}, "checkpoint": None, "time": float(epoch)})
    driver.study.live.clear()
    assert Driver(make_searcher(onto=driver.study, trials=6), tmp_path).outcomes() == ["completed"]


def test_files_of_commands_are_read_and_answered(driver):
    driver.searcher.suggest("t0")
    command = Command("keep", {"trials": [0]})
    send(driver.place, command)
    with driver.steering:
        while driver.steering._arrived.empty():
            pass
        driver.searcher.apply_commands()
        entry = wait_for_answer(driver.place, command, 60.0)
    assert entry.answer.accepted
    assert read_requests(driver.place, pytest.fail) == []
    stored = check_output("answered", {"schema": 1, **entry.as_json()})
    assert stored["command"]["id"] == command.id
    assert not (driver.place / FOLDER / f"{command.id}{REQUEST}").exists()


def test_command_knows_what_an_undo_has_decided(driver):
    budget = driver.apply(Command("budget", {"trials": 5}, "ann"))
    driver.give("undo", author="ann", command=budget.command.id)
    refused = driver.give("budget", author="bob", revision=1, trials=9)
    assert "trials was decided by ann (undo, revision 2)" in refused.effect
    assert driver.give("budget", author="bob", revision=1, concurrency=1).accepted, "it decides on something else"
    undo = driver.apply(Command("undo", {"command": budget.command.id}, "bob", revision=1))
    assert f"command {budget.command.id}, trials was decided by ann" in undo.answer.effect


@pytest.mark.parametrize("revision", [-1, 1])
def test_revision_that_the_log_does_not_have_is_refused(driver, revision):
    answer = driver.give("budget", revision=revision, trials=5)
    assert answer.effect == f"--revision must be 0 to 0, but got {revision}."


def test_id_of_another_command_is_refused(driver):
    driver.apply(Command("avoid", {"region": "lr>=0.2"}, id="mine"))
    answer = driver.apply(Command("avoid", {"region": "lr>=0.4"}, id="mine")).answer
    assert answer.effect == "an id must be new, but mine is that of avoid, 1."
    assert len(driver.study.get_commands()) == 1


def test_id_of_a_command_that_waits_is_refused(tmp_path):
    send(tmp_path, Command("pause", {"drain": True}, id="mine"))
    send(tmp_path, Command("pause", {"drain": True}, "another author", id="mine"))
    with pytest.raises(UsageError, match="an id must be new, but mine is that of pause, which waits"):
        send(tmp_path, Command("pause", {"drain": False}, id="mine"))
    assert read_requests(tmp_path, pytest.fail)[0].args == {"drain": True}


def test_answer_whose_client_was_killed_is_removed(driver, monkeypatch):
    monkeypatch.setattr(steering, "LAST_S", 0.0)
    (driver.place / FOLDER).mkdir()
    (driver.place / FOLDER / f"former{ANSWER}").write_text("{}")
    send(driver.place, Command("pause", {"drain": True}, id="mine"))
    with driver.steering:
        while driver.steering._arrived.empty():
            pass
        driver.searcher.apply_commands()
    assert list((driver.place / FOLDER).iterdir()) == []
    assert driver.study.get_commands()[0].command.id == "mine", "who sends it again gets its answer from the log"


def test_sent_again_command_forgets_an_older_answer(tmp_path):
    command = Command("pause", {"drain": True}, id="mine")
    send(tmp_path, command)
    write_answer(tmp_path, LogEntry(1, command, Answer(True, "paused")))
    send(tmp_path, command)
    assert wait_for_answer(tmp_path, command, 0.0) is None
