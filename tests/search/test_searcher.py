"""The searcher, driven as Tune drives it: suggest, results, completions."""

import json
import math
import threading
import time
from pathlib import Path

import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState
from pydantic import model_validator
from ray.tune.search import Searcher

from search.budget import Budget, Target
from search.results import find_best
from search.schedulers.halving import Halving
from search.searcher import StudySearcher
from search.space import resolve
from search.study import create
from search.tracking.datasets import datasets_of
from search.trials import held_gpu_s, outcome_of, reports_of
from trainables.task import TaskConfig, searchable


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)
    limit: float = 2.0

    @model_validator(mode="after")
    def refuse_a_high_rate(self):
        if self.lr > self.limit:
            raise ValueError(f"lr must be at most {self.limit}")
        return self


class Watching:
    def __init__(self):
        self.events = []

    def trial_started(self, number, config, copied_from=None):
        self.events.append(("started", number))

    def trial_reported(self, number, epoch, metrics, at):
        self.events.append(("reported", number, epoch))

    def trial_named_data(self, number, datasets):
        self.events.append(("data", number, datasets))

    def trial_ended(self, number, outcome, reason):
        self.events.append((outcome, number, reason))


@pytest.fixture
def make(tmp_path):
    locks = []

    def made(trials=3, rungs=(1, 3), fixed=None, mode="min", onto=None, **options):
        study = onto
        if study is None:
            study, lock = create(tmp_path, RandomSampler, "val/loss", mode)
            locks.append(lock)
        space = resolve(Config, {"precision": "fp32", **(fixed or {})}, {})
        watching = Watching()
        schedule = Halving(rungs, 3, mode)
        searcher = StudySearcher(
            study, space, schedule, "val/loss", trials, tmp_path, "a", observers=[watching], **options
        )
        return searcher, study, watching

    yield made
    for lock in locks:
        lock.close()


def tuned(done, **report):
    """A result as Tune hands it on."""
    return {"done": done, "reports": json.dumps([{"done": done, **report}])}


def report(searcher, tune_id, epoch, loss, done=False, **more):
    content = {"epoch": epoch, "metrics": {"val/loss": loss}, "checkpoint": f"/nowhere/{tune_id}-{epoch}.pt", **more}
    if done:
        searcher.on_trial_complete(tune_id, tuned(True, **content))
    else:
        searcher.on_trial_result(tune_id, tuned(False, **content))


def test_a_stretch_carries_all_that_a_gang_needs(make, tmp_path):
    searcher, _, _ = make()
    stretch = searcher.suggest("t0")["stretch"]
    assert (stretch["trial"], stretch["epoch"], stretch["until"], stretch["checkpoint"]) == (0, 0, 1, None)
    assert stretch["folder"] == str(tmp_path / "checkpoints" / "0")
    assert Config.model_validate(stretch["config"]).lr == stretch["config"]["lr"]
    json.dumps(stretch)


def test_the_best_of_a_rung_goes_on_from_its_checkpoint(make):
    searcher, _, _ = make()
    for number, loss in enumerate([0.3, 0.1, 0.2]):
        searcher.suggest(f"t{number}")
        report(searcher, f"t{number}", 1, loss, done=True)
    stretch = searcher.suggest("t3")["stretch"]
    assert (stretch["trial"], stretch["epoch"], stretch["until"]) == (1, 1, 3)
    assert stretch["checkpoint"] == "/nowhere/t1-1.pt"


def test_a_trial_that_reaches_its_last_epoch_is_completed_with_its_best_value(make):
    searcher, study, watching = make(trials=1, rungs=(3,))
    searcher.suggest("t0")
    for epoch, loss in enumerate([0.3, 0.1], start=1):
        report(searcher, "t0", epoch, loss)
    report(searcher, "t0", 3, 0.2, done=True)
    assert study.trial(0).value == 0.1
    assert watching.events[-1] == ("completed", 0, "")
    assert searcher.suggest("t1") == Searcher.FINISHED


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "search.searcher"]


def digits(digest, use="training"):
    return {"name": "digits", "digest": digest, "source": "", "use": use}


def test_what_a_trial_trains_on_is_kept_with_it_and_told(make):
    searcher, study, watching = make(trials=1, rungs=(2,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, datasets=[digits("a")])
    report(searcher, "t0", 2, 0.2, done=True)
    assert datasets_of(study.trial(0)) == [digits("a")]
    assert [event for event in watching.events if event[0] == "data"] == [("data", 0, [digits("a")])]
    assert "datasets" not in reports_of(study.trial(0))[1]


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (["a", "a"], "a", False),
        (["a", "a"], "b", True),
        (["a", "b"], "c", False),  # they differed before: the config says what is taken
        ([], "a", False),
    ],
)
def test_data_that_changed_since_a_search_last_ran_is_told_once(make, caplog, before, now, told):
    searcher, study, _ = make(trials=6, rungs=(1,))
    for turn, digest in enumerate(before):
        searcher.suggest(f"t{turn}")
        report(searcher, f"t{turn}", 1, 0.3, done=True, datasets=[digits(digest), digits("same", "evaluation")])
    assert not warnings(caplog), "within one driver, it is the config that chooses the data"
    later, _, _ = make(trials=6, rungs=(1,), onto=study)
    for turn in range(2):
        later.suggest(f"u{turn}")
        report(later, f"u{turn}", 1, 0.3, done=True, datasets=[digits(now), digits("same", "evaluation")])
    line = f"trial {len(before)}: the training data 'digits' changed since the search last ran: its digest was a"
    assert [message.startswith(line) for message in warnings(caplog)] == [True] * told


def test_a_trial_that_goes_on_with_other_data_than_it_began_with_is_told(make, caplog):
    searcher, study, _ = make(trials=2, rungs=(2,))
    for turn, digest in enumerate("ab"):
        searcher.suggest(f"t{turn}")
        report(searcher, f"t{turn}", 1, 0.3, datasets=[digits(digest)])
    study.live.clear()
    later, _, _ = make(trials=2, rungs=(2,), onto=study)
    for turn in range(2):
        later.suggest(f"u{turn}")
        report(later, f"u{turn}", 2, 0.2, done=True, datasets=[digits("b")])
    (message,) = warnings(caplog)
    assert message.startswith("trial 0: the training data 'digits' changed")


def test_nothing_is_finished_while_a_stretch_runs(make):
    searcher, _, _ = make(trials=1)
    searcher.suggest("t0")
    assert searcher.suggest("t1") is None


def test_a_combination_that_the_task_refuses_fails_without_costing_a_gang(make):
    searcher, study, watching = make(trials=20, rungs=(1,), fixed={"limit": "0.5"})
    for turn in range(20):
        if (stretch := searcher.suggest(f"t{turn}")) in (None, Searcher.FINISHED):
            break
        assert stretch["stretch"]["config"]["lr"] <= 0.5
        report(searcher, f"t{turn}", 1, 0.5, done=True)
    outcomes = [outcome_of(trial) for trial in study.trials()]
    assert set(outcomes) == {"completed", "failed"}
    assert len(outcomes) == 20
    assert {event[2] for event in watching.events if event[0] == "failed"} == {"lr must be at most 0.5."}


def test_a_failure_keeps_its_reason_and_its_traceback(make, tmp_path):
    searcher, study, _ = make()
    searcher.suggest("t0")
    failure = {"outcome": "failed", "reason": "KeyError: 'x'", "traceback": "Traceback: here"}
    searcher.on_trial_complete("t0", tuned(True, **failure))
    assert outcome_of(study.trial(0)) == "failed"
    assert study.trial(0).user_attrs["reason"] == "KeyError: 'x'"
    assert (tmp_path / "errors" / "trial-0.txt").read_text() == "Traceback: here"


def test_a_trial_whose_gang_was_lost_goes_on_from_its_last_report_and_fails_at_the_limit(make):
    searcher, study, _ = make(trials=1, rungs=(3,), max_losses=1)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    searcher.on_trial_complete("t0", None, error=True)
    stretch = searcher.suggest("t1")["stretch"]
    assert (stretch["trial"], stretch["epoch"], stretch["checkpoint"]) == (0, 1, "/nowhere/t0-1.pt")
    searcher.on_trial_complete("t1", None, error=True)
    assert study.trial(0).user_attrs["reason"] == "its gang was lost 2 times: unknown"


def test_an_error_of_the_search_itself_is_kept_and_ends_it_in_good_order(make, monkeypatch):
    searcher, study, _ = make()
    searcher.suggest("t0")
    searcher.suggest("t1")
    monkeypatch.setattr(study, "report", lambda *_: 1 / 0)
    report(searcher, "t0", 1, 0.3, done=True)
    assert isinstance(searcher.error, ZeroDivisionError)
    assert searcher.stopping.is_set()
    assert searcher.suggest("t2") is None, "t1 still runs"
    searcher.on_trial_complete("t1", tuned(True, outcome="interrupted", reason="the search was stopped"))
    assert searcher.suggest("t3") == Searcher.FINISHED


def test_a_stopped_search_begins_nothing_and_leaves_its_trials_to_be_taken_up_again(make):
    stopping = threading.Event()
    searcher, study, watching = make(stopping=stopping)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, done=True)
    stopping.set()
    assert searcher.suggest("t1") == Searcher.FINISHED
    searcher.close(prune=False)
    assert outcome_of(study.trial(0)) == "interrupted"
    assert watching.events[-1] == ("interrupted", 0, "the search was stopped")


def test_at_the_end_what_waits_at_a_rung_is_pruned(make):
    searcher, study, watching = make()
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, done=True)
    searcher.close(prune=True)
    assert outcome_of(study.trial(0)) == "pruned"
    assert watching.events[-1] == ("pruned", 0, "not among the best at epoch 1")


def test_checkpoints_are_kept_for_the_best_report_and_the_last_two_while_the_trial_can_go_on(make, tmp_path):
    searcher, _, _ = make(trials=1, rungs=(5,))
    searcher.suggest("t0")
    for epoch, loss in enumerate([0.3, 0.1, 0.2, 0.4, 0.5], start=1):
        path = tmp_path / f"{epoch}.pt"
        path.write_bytes(b"")
        content = {"epoch": epoch, "metrics": {"val/loss": loss}, "checkpoint": str(path)}
        if epoch < 5:
            searcher.on_trial_result("t0", tuned(False, **content))
        else:
            searcher.on_trial_complete("t0", tuned(True, **content))
        kept = sorted(int(file.stem) for file in tmp_path.glob("*.pt"))
        assert kept == {1: [1], 2: [1, 2], 3: [2, 3], 4: [2, 3, 4], 5: [2]}[epoch]


def reported(searcher, tune_id, folder, epoch, loss, attempt="a", **more):
    """As `report`, with a checkpoint that exists."""
    path = folder / f"epoch-{epoch}-{attempt}.pt"
    path.write_bytes(b"")
    content = {"epoch": epoch, "metrics": {"val/loss": loss}, "checkpoint": str(path), **more}
    searcher.on_trial_result(tune_id, tuned(False, **content))
    return str(path)


def test_a_stretch_names_the_checkpoints_before_the_newest_and_the_start(make, tmp_path):  # H84
    searcher, _, _ = make(trials=1, rungs=(9,))
    assert searcher.suggest("t0")["stretch"]["earlier"] == []
    paths = [reported(searcher, "t0", tmp_path, epoch, loss) for epoch, loss in enumerate([0.1, 0.3, 0.2, 0.4], 1)]
    searcher.on_trial_complete("t0", None, error=True)
    stretch = searcher.suggest("t1")["stretch"]
    assert (stretch["epoch"], stretch["checkpoint"]) == (4, paths[3])
    assert stretch["earlier"] == [paths[2], paths[0], None]  # the second one was dropped, the first is the best


def test_an_epoch_that_was_done_again_is_kept_and_not_told_again(make, tmp_path, caplog):  # H84
    searcher, study, watching = make(trials=1, rungs=(9,))
    searcher.suggest("t0")
    for epoch, loss in enumerate([0.3, 0.2], start=1):
        reported(searcher, "t0", tmp_path, epoch, loss)
    searcher.on_trial_complete("t0", None, error=True)
    assert searcher.suggest("t1")["stretch"]["epoch"] == 2
    again = reported(
        searcher, "t1", tmp_path, 2, 0.2, "b", notes=["epoch-2-a.pt is corrupt. The one before it is used."]
    )
    reported(searcher, "t1", tmp_path, 3, 0.1, "b")
    assert [event for event in watching.events if event[0] == "reported"] == [("reported", 0, n) for n in (1, 2, 3)]
    assert reports_of(study.trial(0))[2]["checkpoint"] == again
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["epoch-2-b.pt", "epoch-3-b.pt"]
    assert "trial 0: epoch-2-a.pt is corrupt. The one before it is used." in caplog.text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_an_objective_that_is_not_finite_ends_a_trial_and_is_never_its_value(make, mode, value):
    searcher, study, watching = make(trials=2, mode=mode)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    lost = {"epoch": 2, "metrics": {"val/loss": value, "val/other": math.nan}, "checkpoint": None}
    ended = {"outcome": "diverged", "reason": "it did", "divergence": {"kind": "objective", "epoch": 2}, "last": lost}
    searcher.on_trial_complete("t0", tuned(True, **ended))
    trial = study.trial(0)
    assert (trial.state, trial.intermediate_values) == (TrialState.PRUNED, {1: 0.3})
    assert trial.user_attrs["divergence"] == {"kind": "objective", "epoch": 2}
    assert str(reports_of(trial)[2]["metrics"]["val/loss"]) == str(value)
    assert watching.events[-2:] == [("reported", 0, 2), ("diverged", 0, "it did")]
    assert find_best(study.trials(), mode) is None
    assert searcher.suggest("t1")["stretch"]["trial"] == 1, "the search goes on"


@pytest.mark.parametrize("outcome", ["failed", "diverged", "completed"])
def test_the_middle_of_an_epoch_is_deleted_when_its_trial_ends(make, tmp_path, outcome):
    searcher, _, _ = make(trials=1, rungs=(1,))
    folder = Path(searcher.suggest("t0")["stretch"]["folder"])
    folder.mkdir(parents=True)
    for name in ("midway-a.pt", "midway-a.pt.sha256", "midway-b.pt"):
        (folder / name).write_bytes(b"")
    if outcome == "completed":
        report(searcher, "t0", 1, 0.3, done=True)
    else:
        searcher.on_trial_complete("t0", tuned(True, outcome=outcome, reason="it ended"))
    assert list(folder.iterdir()) == []


def test_the_middle_of_an_epoch_stays_when_its_trial_is_only_interrupted(make):
    searcher, _, _ = make(trials=1)
    folder = Path(searcher.suggest("t0")["stretch"]["folder"])
    folder.mkdir(parents=True)
    (folder / "midway-a.pt").write_bytes(b"")
    searcher.on_trial_complete("t0", tuned(True, outcome="interrupted", reason="the search was stopped"))
    searcher.close(prune=True)
    assert [path.name for path in folder.iterdir()] == ["midway-a.pt"]


def test_a_trial_without_checkpoints_goes_on_with_none_and_its_repeated_reports_change_nothing(make):
    searcher, study, watching = make(trials=1)
    searcher.suggest("t0")
    content = {"epoch": 1, "checkpoint": None}
    searcher.on_trial_complete("t0", tuned(True, metrics={"val/loss": 0.3}, **content))
    stretch = searcher.suggest("t1")["stretch"]
    assert (stretch["epoch"], stretch["checkpoint"], stretch["earlier"]) == (1, None, [])
    searcher.on_trial_result("t1", tuned(False, metrics={"val/loss": 0.7}, **content))
    assert study.trial(0).intermediate_values == {1: 0.3}
    assert reports_of(study.trial(0))[1]["metrics"] == {"val/loss": 0.3}
    assert [event for event in watching.events if event[0] == "reported"] == [("reported", 0, 1)]


def test_where_not_every_report_has_a_checkpoint_the_best_and_the_last_two_that_have_one_are_kept(make, tmp_path):
    searcher, _, _ = make(trials=1, rungs=(9,))
    searcher.suggest("t0")
    for epoch, loss in enumerate([0.4, 0.1, 0.3, 0.2, 0.5, 0.6], start=1):
        path = tmp_path / str(epoch)
        if epoch % 2:  # a directory, as functions report it
            path.mkdir()
            (path / "state").touch()
        content = {"epoch": epoch, "metrics": {"val/loss": loss}, "checkpoint": str(path) if epoch % 2 else None}
        searcher.on_trial_result("t0", tuned(False, **content))
    assert [epoch for epoch in range(1, 7) if (tmp_path / str(epoch)).exists()] == [3, 5]
    searcher.on_trial_complete("t0", None, error=True)
    stretch = searcher.suggest("t1")["stretch"]
    assert (stretch["checkpoint"], stretch["earlier"]) == (str(tmp_path / "5"), [str(tmp_path / "3"), None])


def test_a_trial_that_says_it_is_completed_is_so_before_its_last_epoch(make):
    searcher, study, _ = make(trials=2)
    for tune_id in ("t0", "t1"):
        searcher.suggest(tune_id)
    report(searcher, "t0", 1, 0.3)
    searcher.on_trial_complete("t0", tuned(True, outcome="completed", reason=""))
    assert (outcome_of(study.trial(0)), study.trial(0).value) == ("completed", 0.3)
    report(searcher, "t1", 1, 0.4, done=True)
    assert searcher.suggest("t2") == Searcher.FINISHED, "a trial has come to its end: none goes on only for that"


def test_the_trial_that_meets_the_target_is_completed_and_the_others_end_as_they_stand(make):
    stopping = threading.Event()
    budget = Budget("val/loss", target=Target.read("val/loss<0.2"), stop=lambda reason: stopping.set())
    searcher, study, watching = make(rungs=(1, 3), stopping=stopping, budget=budget)
    for number, loss in enumerate([0.3, 0.1]):
        searcher.suggest(f"t{number}")
        report(searcher, f"t{number}", 1, loss, done=True)
    assert searcher.suggest("t2") == Searcher.FINISHED
    searcher.close(prune=True)
    assert [outcome_of(trial) for trial in study.trials()] == ["pruned", "completed"]
    assert ("completed", 1, "reached val/loss<0.2") in watching.events


def test_the_target_may_be_met_in_the_middle_of_a_stretch(make):
    stopping = threading.Event()
    budget = Budget("val/loss", target=Target.read("val/loss<0.2"), stop=lambda reason: stopping.set())
    searcher, study, _ = make(rungs=(9,), stopping=stopping, budget=budget)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.1)
    assert stopping.is_set()
    searcher.on_trial_complete("t0", tuned(True, outcome="interrupted", reason="the search was stopped"))
    searcher.close(prune=True)
    assert (outcome_of(study.trial(0)), study.trial(0).value) == ("completed", 0.1)


def test_what_trials_hold_is_kept_with_each_report_and_at_the_end_of_a_stretch(make):
    searcher, study, _ = make(trials=1, rungs=(9,))
    searcher.suggest("t0")
    time.sleep(0.02)
    report(searcher, "t0", 1, 0.3)
    reported = held_gpu_s(study.trial(0))
    assert reported >= 0.02
    time.sleep(0.02)
    searcher.on_trial_complete("t0", tuned(True, outcome="failed", reason="KeyError: 'x'", traceback=""))
    assert held_gpu_s(study.trial(0)) >= reported + 0.02


def test_a_trial_that_found_no_room_held_nothing(make):
    searcher, study, _ = make(trials=1)
    searcher.suggest("t0")
    searcher.on_trial_result("t0", tuned(False, waiting="no room for 1 x 1 CPU"))
    searcher.on_trial_complete("t0", None, error=True)
    assert held_gpu_s(study.trial(0)) == searcher.budget.meter.total == 0


def test_five_trials_that_fail_alike_end_a_search_and_those_that_the_task_refuses_do_not(make):
    stopping = threading.Event()
    budget = Budget("val/loss", trials=99, stop=lambda reason: stopping.set())
    searcher, study, _ = make(trials=99, rungs=(1,), fixed={"limit": "0.5"}, stopping=stopping, budget=budget)
    for turn in range(5):
        assert not stopping.is_set()
        searcher.suggest(f"t{turn}")
        searcher.on_trial_complete(f"t{turn}", tuned(True, outcome="failed", reason="KeyError: 'x'", traceback=""))
    assert stopping.is_set()
    reasons = [trial.user_attrs["reason"] for trial in study.trials()]
    assert reasons.count("KeyError: 'x'") == 5
    assert reasons.count("lr must be at most 0.5.") > 0


def test_an_epoch_that_had_diverged_when_the_search_died_counts_if_it_does_not_diverge_again(make):
    searcher, study, _ = make(trials=1, rungs=(2,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    lost = {"metrics": {"val/loss": math.nan}, "checkpoint": None, "time": 0.0}
    study.note_report(0, 2, lost)  # and the driver is killed before it has written that the trial ends
    study.live.clear()
    searcher, study, _ = make(trials=1, rungs=(2,), onto=study)
    searcher.mend()
    assert searcher.suggest("t1")["stretch"]["epoch"] == 1
    report(searcher, "t1", 2, 0.2, done=True)
    assert (study.trial(0).state, study.trial(0).value) == (TrialState.COMPLETE, 0.2)


def test_an_epoch_that_diverges_again_after_the_search_died_is_told_as_the_same_report(make):
    searcher, study, _ = make(trials=1, rungs=(2,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    study.note_report(0, 2, {"metrics": {"val/loss": math.nan}, "checkpoint": None, "time": 12.0})
    study.live.clear()
    searcher, study, _ = make(trials=1, rungs=(2,), onto=study)
    searcher.mend()
    searcher.suggest("t1")
    last = {"epoch": 2, "metrics": {"val/loss": math.nan}, "checkpoint": None}
    searcher.on_trial_complete("t1", tuned(True, outcome="diverged", reason="it did", last=last))
    assert outcome_of(study.trial(0)) == "diverged"
    assert reports_of(study.trial(0))[2]["time"] == 12.0, "its time is what identifies it in MLflow"
