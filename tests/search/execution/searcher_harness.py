"""A searcher over a small space, and what Tune hands on to it."""

from pydantic import model_validator

from search.config.search_space import resolve_space
from search.execution.report_handler import SearchLimits
from search.execution.searcher import StudySearcher
from search.schedulers.asha import ASHAScheduler
from trainables.task import TaskConfig, searchable
from trainables.worker.messages import EpochReport, GangResult, SegmentEnd, to_json


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

    def on_trial_start(self, number, config, copied_from=None):
        self.events.append(("started", number))

    def on_trial_report(self, number, epoch, metrics, at):
        self.events.append(("reported", number, epoch))

    def on_trial_datasets(self, number, datasets):
        self.events.append(("data", number, datasets))

    def on_trial_end(self, number, outcome, reason):
        self.events.append((outcome, number, reason))


def searcher_over(study, folder, trials=3, rungs=(1, 3), fixed=None, mode="min", **limits):
    """The searcher, the study, and what its callback was told."""
    space = resolve_space(Config, {"precision": "fp32", **(fixed or {})}, {})
    watching, schedule = Watching(), ASHAScheduler(rungs, 3, mode)
    limits = SearchLimits(trials, **limits)
    searcher = StudySearcher(study, space, schedule, limits, folder, "a", [watching])
    return searcher, study, watching


def hand_on(searcher, tune_id, message):
    """Hand a report on to the searcher as Tune does."""
    result = {"done": message.done, "reports": to_json(GangResult("gang-1", [message]))}
    (searcher.on_trial_complete if message.done else searcher.on_trial_result)(tune_id, result)


def end(searcher, tune_id, outcome, reason, *more, **options):
    hand_on(searcher, tune_id, SegmentEnd(outcome, reason, *more, **options))


def interrupt(searcher, tune_id):
    end(searcher, tune_id, "interrupted", "the search was stopped")


def report(searcher, tune_id, epoch, loss, done=False, **more):
    content = {"checkpoint": f"/nowhere/{tune_id}-{epoch}.pt", "costs": {}, **more}
    hand_on(searcher, tune_id, EpochReport(epoch, {"val/loss": loss}, done=done, **content))
