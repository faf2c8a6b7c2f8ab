"""Commands to a searcher, driven as Tune drives it, without processes: what they change, and what refuses them."""

import math
import random
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState
from ray.tune.search import Searcher

from searchlight.search.errors import UsageError
from searchlight.search.execution.confirmation import ConfirmationPlan
from searchlight.search.experiment import steering
from searchlight.search.experiment.steering import Steering
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.space.objectives import Objective
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
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_outcome
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.worker.messages import EpochReport
from tests.search.execution.searcher_harness import hand_on, interrupt, report, searcher_over
from tests.search.objectives import VAL_LOSS
from tests.search.output_schemas import check_output


class Driver:
    """A searcher with commands. Files of commands are exchanged by the thread of `steering`."""

    def __init__(self, made, place, **more):
        self.searcher, self.study, self.watching = made
        self.place, self.halted, self.ended, self.told = place, [], [], []
        self.steering = Steering(
            self.searcher, place, self.halted.append, self.ended.append, self.told.append, self.told.append, **more
        )
        self.searcher.recover()

    def give(self, operation, author="ann", why="", revision=None, **args):
        """Apply a command, and return its answer."""
        command = Command(operation, args, author, why, revision)
        return self.apply(command).answer

    def apply(self, command):
        self.steering._arrived.put(command)
        self.searcher.apply_commands()
        assert self.searcher.error is None
        return self.steering._answers.get_nowait()

    def outcomes(self):
        return [get_outcome(trial) for trial in self.study.get_trials()]


@pytest.fixture
def driver(make_searcher, tmp_path):
    return Driver(make_searcher(trials=6), tmp_path)


def test_stopped_trial_that_runs_is_halted_and_pruned(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5)
    assert driver.give("stop", trials=[0], why="too slow").accepted
    assert driver.halted == [0]
    assert driver.outcomes() == ["interrupted"], "its workers still have it"
    interrupt(driver.searcher, "t0")
    assert driver.study.get_trial(0).user_attrs["reason"] == "stopped by ann: too slow"
    assert driver.outcomes() == ["pruned"]
    assert driver.searcher.suggest("t1")["segment"].trial == 1


def test_stopped_trial_that_waits_is_pruned_at_once(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.give("stop", trials=[0])
    assert (driver.halted, driver.outcomes()) == ([], ["pruned"])


def test_trial_that_waits_in_the_queue_is_not_stopped(driver):
    driver.searcher.suggest("t0")
    driver.give("try", point={"lr": 0.25})
    assert "trial 1 must have begun, but waits in the queue" in driver.give("stop", trials=[1]).effect


def test_kept_trial_trains_to_its_end_though_it_is_the_worst(driver):
    for number, loss in enumerate([0.9, 0.1, 0.2]):
        driver.searcher.suggest(f"t{number}")
        report(driver.searcher, f"t{number}", 1, loss, done=True)
    assert driver.give("keep", trials=[0]).undo
    segment = driver.searcher.suggest("t3")["segment"]
    assert (segment.trial, segment.epoch, segment.until) == (0, 1, 3)


def test_extended_trial_trains_longer_than_planned(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    answer = driver.give("extend", trials=[0], epochs=2)
    assert (answer.effect, answer.undo) == ("trial 0 trains to its full budget, and 2 epochs more", False)
    assert "such as a learning rate" in answer.warnings[0]
    planned = driver.study.get_trial(0).user_attrs["config"]["epochs"]
    segment = driver.searcher.suggest("t1")["segment"]
    assert (segment.until, segment.is_last) == (3, False)
    report(driver.searcher, "t1", 3, 0.5, done=True)
    segment = driver.searcher.suggest("t2")["segment"]
    assert (segment.trial, segment.epoch, segment.until, segment.is_last) == (0, 3, 5, True)
    assert segment.config["epochs"] == max(planned, 5)
    report(driver.searcher, "t2", 5, 0.5, done=True)
    assert driver.outcomes() == ["completed"]


def test_extended_trial_of_a_search_that_ends_has_completed_what_was_planned(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.give("extend", trials=[0], epochs=2)
    driver.searcher.suggest("t1")
    report(driver.searcher, "t1", 3, 0.5, done=True)
    driver.searcher.finish(prune=True)
    assert driver.outcomes() == ["completed"]


def test_point_to_try_is_the_next_trial(driver):
    driver.searcher.suggest("t0")
    answer = driver.give("try", point={"lr": "0.25"}, full=True)
    assert answer.effect == "the next trial has lr=0.25, and trains to its full budget"
    segment = driver.searcher.suggest("t1")["segment"]
    assert segment.config["lr"] == 0.25
    report(driver.searcher, "t1", 1, 0.9, done=True)
    assert driver.searcher.suggest("t2")["segment"].trial == segment.trial, "it is kept"
    assert "trial 1 has lr=0.25" in driver.give("try", point={"lr": 0.25}, full=False).effect


def test_no_trial_is_proposed_in_a_region_to_avoid(driver):
    driver.give("avoid", region="lr>=0.2")
    driver.give("narrow", ranges={"lr": "0.1..0.9"})
    values = [driver.searcher.suggest(f"t{number}")["segment"].config["lr"] for number in range(6)]
    assert all(0.1 <= value < 0.2 for value in values)


def test_later_range_of_a_parameter_replaces_the_earlier_one(driver):
    driver.give("narrow", ranges={"lr": "0.1..0.2"})
    assert driver.give("narrow", ranges={"lr": "0.5..0.9"}).accepted
    assert 0.5 <= driver.searcher.suggest("t0")["segment"].config["lr"] <= 0.9


def test_undone_region_is_proposed_again(driver):
    given = Command("avoid", {"region": "lr>=0.02"})
    driver.apply(given)
    driver.give("undo", command=given.id)
    assert any(driver.searcher.suggest(f"t{number}")["segment"].config["lr"] > 0.02 for number in range(3))


def test_command_whose_undo_was_undone_can_be_undone_again(driver):
    given = Command("avoid", {"region": "lr>=0.02"})
    undo = Command("undo", {"command": given.id})
    for command in (given, undo, Command("undo", {"command": undo.id})):
        assert driver.apply(command).answer.accepted
    assert driver.study.allows is not None
    assert driver.give("undo", command=given.id).accepted
    assert driver.study.allows is None
    assert "was undone" in driver.give("undo", command=given.id).effect


def test_paused_search_gives_no_segment_and_halts_trials(driver):
    driver.searcher.suggest("t0")
    driver.give("pause", drain=False)
    assert driver.halted == [0]
    interrupt(driver.searcher, "t0")
    assert driver.searcher.suggest("t1") is None
    driver.give("continue")
    assert driver.searcher.suggest("t2")["segment"].trial == 0, "it goes on where it was"


def test_draining_search_lets_trials_reach_their_rung(driver):
    driver.searcher.suggest("t0")
    driver.give("pause", drain=True)
    assert driver.halted == []
    assert report(driver.searcher, "t0", 1, 0.5, done=True) is None
    assert driver.searcher.suggest("t1") is None


def test_paused_search_ends_when_it_is_stopped(driver):
    driver.give("pause", drain=False)
    driver.searcher.limits.stopping.set()
    assert driver.searcher.suggest("t0") == Searcher.FINISHED


def test_budget_of_trials_and_concurrency_is_changed(driver):
    driver.give("budget", trials=2, concurrency=1)
    driver.searcher.suggest("t0")
    assert driver.searcher.suggest("t1") is None, "one at a time"
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.searcher.suggest("t2")
    report(driver.searcher, "t2", 1, 0.4, done=True)
    driver.give("budget", trials=3, concurrency=5)
    assert driver.searcher.suggest("t3")["segment"].trial == 2
    assert driver.searcher.limits.trials == 3


def test_lower_concurrency_holds_at_the_end_of_a_segment(driver):
    driver.searcher.schedule = MedianStoppingScheduler(epochs=3, grace_period=1, mode="min")
    for name in ("t0", "t1", "t2"):
        driver.searcher.suggest(name)
    driver.give("budget", concurrency=2)
    assert report(driver.searcher, "t0", 1, 0.5, done=True) is None, "two others run"
    assert driver.searcher.suggest("t3") is None
    assert report(driver.searcher, "t1", 1, 0.5, done=True).trial == 1, "one other runs"


def test_paused_search_frees_idle_gangs(make_searcher, tmp_path):
    freed = []
    driver = Driver(make_searcher(trials=6), tmp_path, free_gangs=lambda: freed.append(len(driver.study.live)))
    driver.searcher.suggest("t0")
    driver.give("keep", trials=[0])
    assert freed == []
    driver.give("pause", drain=True)
    report(driver.searcher, "t0", 1, 0.5, done=True)
    assert freed == [1, 0]


def test_finish_ends_the_search_of_this_driver(driver):
    driver.give("pause", drain=True)
    answer = driver.give("finish", why="good enough")
    assert answer.effect == "no trial continues after its next rung or end", "no confirming runs are planned"
    assert answer.warnings == ["the search is paused, and ends once it continues"]
    assert driver.ended == ["finished by ann: good enough"]


def test_finish_sets_the_number_of_confirming_runs(make_searcher, tmp_path):
    made = make_searcher(trials=6)
    made[0].confirmation = ConfirmationPlan((VAL_LOSS,), 0, runs=12)
    driver = Driver(made, tmp_path)
    driver.searcher.suggest("t0")
    assert driver.give("finish", confirm=0).effect == "--confirm must be above 0, but got 0."
    assert driver.give("finish", confirm=4).effect.endswith("; the best ones are confirmed by 4 runs at most")
    assert driver.searcher.confirmation.runs == 4


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
    assert later.told == [f"the search is paused until: searchlight continue {tmp_path.name}"]
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


def test_confirming_run_is_named_as_such(driver):
    number = driver.study.create_copy(driver.searcher.space, {}, {"confirms": {"trial": None, "round": 0, "seed": 1}})
    assert (
        driver.give("stop", trials=[number]).effect == "trial 0 must be one of the search, but it is a confirming run."
    )


COMMANDS = [
    Command("stop", {"trials": [0]}, "ann", id="stop"),
    Command("keep", {"trials": [1]}, "ann", id="keep"),
    Command("try", {"point": {"lr": 0.25}, "full": True}, "ann", id="try"),
    Command("avoid", {"region": "lr>=0.5"}, "ann", id="avoid"),
    Command("avoid", {"region": "lr>=0"}, "ann", id="refused"),
    Command("narrow", {"ranges": {"lr": "0.1..0.4"}}, "ann", id="narrow"),
    Command("budget", {"trials": 7}, "ann", id="budget"),
    Command("pause", {"drain": True}, "ann", id="pause"),
    Command("continue", {}, "ann", id="continue"),
    Command("undo", {"command": "avoid"}, "ann", id="undo"),
    Command("finish", {}, "ann", id="finish"),
]


class Killed(BaseException):
    """As a SIGKILL of the driver: nothing after it is done."""


def kill(*arguments):
    raise Killed


def begin(driver):
    for number in range(2):
        driver.searcher.suggest(f"t{number}")
        metrics = {"val/loss": 0.5, "val/latency": 1.0}
        hand_on(driver.searcher, f"t{number}", EpochReport(1, metrics, f"/nowhere/{number}.pt", {}, done=True))
    return driver


def describe(study):
    """What commands have changed: the log, the ends of trials, and the points that wait."""
    log = [(entry.revision, entry.command.id, entry.answer) for entry in study.get_commands()]
    ends = [(get_outcome(trial), trial.user_attrs.get("reason")) for trial in study.get_trials()]
    return log, ends, [trial.system_attrs["fixed_params"] for trial in study.get_all_trials()[2:]]


@pytest.fixture(params=["journal", "sqlite", "postgresql", "bucket"])
def kept(request, tmp_path):
    """A study of two objectives of each kind of store, and the place of its search."""
    place, url = tmp_path / "kept", ""
    if request.param == "bucket":
        place = parse_path(request.getfixturevalue("s3")) / "kept"
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/studies.db"
    elif request.param == "postgresql":
        url = request.getfixturevalue("server").database(f"d{time.time_ns()}")
    place.mkdir(parents=True, exist_ok=True)
    objectives = [VAL_LOSS, Objective("val/latency", "min")]
    study, store = create_study(place, RandomSampler, objectives, url=url)
    yield study, place
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_kills_of_drivers_and_clients_change_nothing(kept, make_searcher, tmp_path, seed):
    (study, place), draw = kept, random.Random(seed)
    calm = begin(Driver(make_searcher(trials=6), tmp_path))
    answers = [calm.apply(command).answer for command in COMMANDS]
    driver = begin(Driver(searcher_over(study, place, 6), place))
    for command, answer in zip(COMMANDS, answers, strict=True):
        for part in draw.sample(["_check", "update_trials"], draw.randrange(3)):  # before the log, and after it
            send(place, command)
            setattr(driver.steering, part, kill)
            with suppress(Killed):
                driver.steering._apply(*read_requests(place, pytest.fail))
            study.live.clear()
            driver = Driver(searcher_over(study, place, 6), place)
        for _ in range(draw.choice((1, 2))):  # a client that was killed before its answer sends its command again
            send(place, command)
            write_answer(place, driver.apply(*read_requests(place, pytest.fail)))
        assert wait_for_answer(place, command, 0.0).answer == answer
    assert describe(study) == describe(calm.study)
    assert driver.study.allows({"lr": 0.3})
    assert not driver.study.allows({"lr": 0.6}), "by the range alone"


def test_confirming_runs_pause_and_no_command_begins_a_trial(driver):
    number = driver.study.create_copy(driver.searcher.space, {}, {"confirms": {"trial": None, "round": 0, "seed": 1}})
    driver.study.live.add(number)
    driver.searcher.limits.search_over.set()
    assert "the search has ended: no trial begins any more" in driver.give("try", point={"lr": 0.25}).warnings
    assert "must not be over" in driver.give("finish").effect
    driver.give("pause", drain=False)
    assert driver.halted == [number]
    assert driver.searcher.suggest("t0") is None
