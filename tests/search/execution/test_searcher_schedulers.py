"""The searcher over a real study, with schedules that end trials and copy them."""

import hashlib
from pathlib import Path

import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState
from pydantic import model_validator

from search.config.search_space import resolve_space
from search.schedulers.asha import ASHAScheduler
from search.schedulers.median_stopping import MedianStoppingScheduler
from search.schedulers.pbt import PopulationBasedTraining
from search.study.study import create_study
from search.study.trial import get_outcome
from tests.search.execution.fake_tune import Gangs
from tests.search.objectives import VAL_LOSS
from trainables.task import TaskConfig, searchable
from trainables.worker.messages import EpochReport, SegmentEnd


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)
    only: float | None = None

    @model_validator(mode="after")
    def refuse_all_others(self):
        if self.only is not None and self.lr != self.only:
            raise ValueError(f"lr must be {self.only}")
        return self


class Watched(Gangs):
    """Reports what came of segments, and keeps what observers are told."""

    def __init__(self, folder, schedule, trials, fixed):
        study, self.lock = create_study(folder, RandomSampler, [VAL_LOSS])
        space = resolve_space(Config, {"precision": "fp32", **fixed}, {})
        study.enqueue(space.get_defaults())
        self.events = []
        super().__init__(study, space, schedule, trials, folder, observers=[self])

    def train(self, asked, losses):
        """Report `losses` for the epochs of a segment, each with a checkpoint that exists."""
        name, segment = asked
        for epoch, loss in enumerate(losses, start=segment.epoch + 1):
            path = Path(segment.folder) / f"epoch-{epoch}-{self.searcher.attempt}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"weights of {segment.trial} at {epoch}")
            Path(f"{path}.sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
            self.report(name, EpochReport(epoch, {"val/loss": loss}, str(path), {}, done=epoch == segment.until))

    def on_trial_start(self, number, config, copied_from=None):
        self.events.append(("started", number, copied_from))

    def on_trial_report(self, number, epoch, metrics, at):
        pass

    def on_trial_end(self, number, outcome, reason):
        self.events.append((outcome, number, reason))


@pytest.fixture
def gangs(tmp_path):
    made = []

    def make(schedule, trials=6, **fixed):
        made.append(Watched(tmp_path, schedule, trials, fixed))
        return made[-1]

    yield make
    for gang in made:
        gang.lock.close()


def population(gangs, losses=(0.4, 0.1, 0.2, 0.3), trials=6, epochs=4, **fixed):
    """A population of four whose members have trained for an epoch."""
    made = gangs(PopulationBasedTraining(4, 1, epochs, "min", 0), trials, **fixed)
    for loss in losses:
        made.train(made.ask(), [loss])
    return made


# Median stopping


def test_a_trial_below_the_median_ends_at_once_and_its_gang_gets_the_next(gangs):
    made = gangs(MedianStoppingScheduler(3, 1, "min"))
    for loss in (0.1, 0.2, 0.3):
        made.train(first := made.ask(), [loss])
        assert made.ask()[1].trial == first[1].trial, "it goes on in the gang that holds it"
    made.train(made.ask(), [0.9])
    assert made.study.get_trial(3).state == TrialState.RUNNING
    assert made.ask()[1].trial == 4
    assert get_outcome(made.study.get_trial(3)) == "pruned"
    assert made.events[-2:] == [("pruned", 3, "below the median of 3 trials at epoch 1"), ("started", 4, None)]


def test_a_search_that_is_stopped_early_prunes_nobody_that_was_not_below_the_median(gangs):
    made = gangs(MedianStoppingScheduler(3, 1, "min"))
    made.train(made.ask(), [0.1])
    made.searcher.finish(prune=True)
    assert made.events[-1] == ("interrupted", 0, "the search was stopped")


# Population based training


def test_the_worst_ends_and_a_copy_goes_on_from_the_checkpoint_of_the_best(gangs):
    made = population(gangs)
    _, segment = made.ask()
    assert (segment.trial, segment.epoch, segment.until) == (4, 1, 2)
    assert segment.checkpoints == [segment.copied, None]
    assert Path(segment.checkpoints[0]).read_text() == "weights of 1 at 1"
    assert Path(segment.checkpoints[0]).parent == made.folder / "checkpoints" / "4"
    copy, loser = made.study.get_trial(4), made.study.get_trial(0)
    assert copy.user_attrs["copied_from"] == 1
    assert copy.state == TrialState.RUNNING
    assert copy.params["lr"] == segment.config["lr"] == copy.user_attrs["config"]["lr"]
    assert copy.params["lr"] != made.study.get_trial(1).params["lr"]
    assert (get_outcome(loser), loser.user_attrs["reason"]) == ("pruned", "replaced by a copy of 1")
    assert made.events[-2:] == [("started", 4, 1), ("pruned", 0, "replaced by a copy of 1")]


def test_a_copy_keeps_its_beginning_when_the_trial_that_it_copies_ends(gangs):
    made = population(gangs, epochs=2)
    _, segment = made.ask()
    made.train(made.ask(), [0.05])  # its second epoch is its best: the checkpoint of the first is dropped
    assert get_outcome(made.study.get_trial(1)) == "completed"
    assert not (made.folder / "checkpoints" / "1" / "epoch-1-a.pt").exists()
    assert Path(segment.checkpoints[0]).read_text() == "weights of 1 at 1"
    assert Path(f"{segment.checkpoints[0]}.sha256").exists()


def test_a_copy_that_lost_its_gang_begins_again_where_it_began(gangs):
    made = population(gangs)
    name, segment = made.ask()
    made.searcher.on_trial_complete(name, None, error=True)
    again = next(asked for _ in range(4) if (asked := made.ask())[1].trial == 4)[1]
    assert (again.epoch, again.checkpoints, again.copied) == (1, segment.checkpoints, segment.copied)


def test_a_copy_that_has_trained_goes_on_from_its_own_checkpoint_and_knows_its_beginning(gangs):
    made = population(gangs)
    asked = made.ask()
    made.train(asked, [0.05])
    segments = [made.ask()[1] for _ in range(4)]
    (own,) = [segment for segment in segments if segment.trial == 4]
    assert own.epoch == 2
    newest, *earlier = own.checkpoints
    assert newest.endswith("checkpoints/4/epoch-2-a.pt")
    assert earlier == [asked[1].copied, None]
    assert own.copied == asked[1].copied


def test_when_a_copy_ends_its_beginning_is_deleted(gangs):
    made = population(gangs, epochs=2)
    asked = made.ask()
    made.train(asked, [0.05])
    assert get_outcome(made.study.get_trial(4)) == "completed"
    assert sorted(p.name for p in Path(asked[1].folder).iterdir()) == ["epoch-2-a.pt", "epoch-2-a.pt.sha256"]


def test_a_driver_that_dies_between_the_two_writes_loses_no_place_and_fills_none_twice(gangs, monkeypatch):
    made = population(gangs)
    with monkeypatch.context() as dying:
        dying.setattr(made.study, "end", lambda *_: 1 / 0)
        made.searcher.suggest("t99")
    assert isinstance(made.searcher.error, ZeroDivisionError)
    assert made.study.get_trial(0).state == made.study.get_trial(4).state == TrialState.RUNNING
    made.begin("b")
    segments = [made.ask()[1] for _ in range(4)]
    assert {segment.trial for segment in segments} == {1, 2, 3, 4}
    assert made.study.get_trial(0).user_attrs["reason"] == "replaced by a copy of 1"
    (copy,) = [segment for segment in segments if segment.trial == 4]
    assert Path(copy.checkpoints[0]).read_text() == "weights of 1 at 1"
    assert made.ask() is None
    assert len(made.study.get_trials()) == 5


def test_another_driver_decides_as_the_first_would_have(gangs):
    made = population(gangs)
    made.begin("b")
    _, segment = made.ask()
    assert (segment.trial, segment.attempt) == (4, "b")
    assert made.study.get_trial(4).user_attrs["copied_from"] == 1


def test_copies_count_as_trials_and_when_those_are_spent_nobody_is_replaced(gangs):
    made = population(gangs, trials=5)
    made.ask()
    others = [made.ask()[1].trial for _ in range(3)]
    assert (others, made.ask()) == ([1, 2, 3], None)
    assert len(made.study.get_trials()) == 5


def test_a_task_that_refuses_whatever_is_near_gets_a_copy_as_it_is(gangs, caplog):
    made = population(gangs, only="0.5", trials=40)
    assert {event[0] for event in made.events} == {"started", "failed"}
    copies = [trial for trial in made.study.get_trials() if "copied_from" in trial.user_attrs]
    assert copies
    assert {trial.params["lr"] for trial in copies} == {0.5}
    assert "the task refused 20 combinations near to {'lr': 0.5}" in caplog.text


def test_a_copy_without_a_checkpoint_to_begin_with_trains_from_the_start(gangs, caplog):
    made = population(gangs)
    (made.folder / "checkpoints" / "1" / "epoch-1-a.pt").unlink()
    _, segment = made.ask()
    assert (segment.trial, segment.epoch, segment.checkpoints) == (4, 0, [None])
    assert "trial 1 has no checkpoint to copy: trial 4 starts anew" in caplog.text


def test_a_member_that_fails_is_replaced_by_a_copy_of_the_best(gangs):
    made = population(gangs, losses=(0.1, 0.2, 0.3))
    name, _ = made.ask()
    made.report(name, SegmentEnd("failed", "KeyError: 'x'"))
    assert made.ask()[1].trial == 4
    assert made.study.get_trial(4).user_attrs["copied_from"] == 0
    assert made.study.get_trial(3).user_attrs["reason"] == "KeyError: 'x'"


def test_a_trial_whose_last_report_was_the_last_thing_that_was_written_is_completed(gangs):
    made = gangs(MedianStoppingScheduler(1, 1, "min"), trials=1)
    made.ask()
    made.study.report(0, 1, 0.5, {"metrics": {"val/loss": 0.5}, "checkpoint": None, "time": 0.0})
    made.begin("b")
    assert made.ask() is None
    assert (get_outcome(made.study.get_trial(0)), made.study.get_trial(0).value) == ("completed", 0.5)


def test_a_trial_that_had_come_to_its_end_when_the_search_died_is_completed_also_if_nothing_is_to_go_on(gangs):
    made = gangs(ASHAScheduler.without_stopping(1, "min"), trials=1)
    made.ask()
    made.study.report(0, 1, 0.5, {"metrics": {"val/loss": 0.5}, "checkpoint": None, "time": 0.0})
    made.begin("b")
    made.searcher.finish(prune=True)  # at once, as when its target has been met
    assert get_outcome(made.study.get_trial(0)) == "completed"


def test_who_is_taken_up_with_more_trials_is_compared_with_those_that_were_pruned(gangs):
    made = gangs(ASHAScheduler.from_config(9, 3, 1, "min"), trials=3)
    for loss in (0.1, 0.2, 0.3):
        made.train(made.ask(), [loss])
    made.searcher.finish(prune=True)
    assert [get_outcome(trial) for trial in made.study.get_trials()] == ["pruned"] * 3
    made.trials = 7
    made.begin("b")
    for _ in range(3):
        made.train(made.ask(), [0.9])
    _, segment = made.ask()
    assert (segment.trial, segment.epoch) == (6, 0), "nobody is promoted who is worse than those"
