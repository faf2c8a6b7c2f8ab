"""A searcher over a small space, and what Tune hands on to it."""

import json

from pydantic import model_validator

from search.config.search_space import resolve_space
from search.execution.searcher import StudySearcher
from search.schedulers.asha import ASHAScheduler
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

    def on_trial_start(self, number, config, copied_from=None):
        self.events.append(("started", number))

    def on_trial_report(self, number, epoch, metrics, at):
        self.events.append(("reported", number, epoch))

    def on_trial_datasets(self, number, datasets):
        self.events.append(("data", number, datasets))

    def on_trial_end(self, number, outcome, reason):
        self.events.append((outcome, number, reason))


def searcher_over(study, folder, trials=3, rungs=(1, 3), fixed=None, mode="min", **options):
    """The searcher, the study, and what is told to observers."""
    space = resolve_space(Config, {"precision": "fp32", **(fixed or {})}, {})
    watching, schedule = Watching(), ASHAScheduler(rungs, 3, mode)
    searcher = StudySearcher(study, space, schedule, "val/loss", trials, folder, "a", observers=[watching], **options)
    return searcher, study, watching


def tuned(done, **report):
    """A result as Tune hands it on."""
    return {"done": done, "reports": json.dumps([{"done": done, **report}])}


def report(searcher, tune_id, epoch, loss, done=False, **more):
    content = {"epoch": epoch, "metrics": {"val/loss": loss}, "checkpoint": f"/nowhere/{tune_id}-{epoch}.pt", **more}
    if done:
        searcher.on_trial_complete(tune_id, tuned(True, **content))
    else:
        searcher.on_trial_result(tune_id, tuned(False, **content))
