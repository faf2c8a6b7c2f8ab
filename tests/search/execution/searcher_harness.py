"""Stand where Tune does in tests of the searcher: ask for segments, and hand on what comes of them."""

import hashlib
from pathlib import Path

from optuna.samplers import RandomSampler
from pydantic import model_validator

from searchlight.search.execution.report_handler import SearchLimits
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.changes import UNSEEN, find_changes
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_end_time, get_outcome
from searchlight.trainables.task import TaskConfig, searchable
from searchlight.trainables.worker.messages import EpochReport, GangResult, SegmentEnd, to_json
from tests.search.objectives import VAL_LOSS


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)
    limit: float = 2.0
    only: float | None = None

    @model_validator(mode="after")
    def refuse_other_rates(self):
        if self.lr > self.limit:
            raise ValueError(f"lr must be at most {self.limit}")
        if self.only is not None and self.lr != self.only:
            raise ValueError(f"lr must be {self.only}")
        return self


class Watching:
    def __init__(self):
        self.events = []
        self.ends = {}  # by trial, in seconds since 1970
        self.seen = {}

    def on_trial_changed(self, trial, is_over=False):
        number = trial.number
        changes = find_changes(trial, self.seen.get(number, UNSEEN), is_over)
        self.seen[number] = changes.seen
        if changes.has_begun:
            self.events.append(("started", number, trial.user_attrs.get("copied_from")))
        if changes.datasets:
            self.events.append(("data", number, changes.datasets))
        self.events += [("reported", number, epoch) for epoch, _ in changes.reports]
        if changes.outcome:
            self.ends[number] = get_end_time(trial)
            self.events.append((changes.outcome, number, changes.reason))

    def find(self, kind):
        return [event for event in self.events if event[0] == kind]


def searcher_over(study, folder, trials=3, rungs=(1, 3), fixed=None, searched=None, mode="min", **limits):
    """The searcher, the study, and what its callback was told."""
    space = resolve_space(Config, {"precision": "fp32", **(fixed or {})}, searched or {})
    watching, schedule = Watching(), ASHAScheduler(rungs, 3, mode)
    searcher = StudySearcher(study, space, schedule, SearchLimits(trials, **limits), folder, "a", [watching])
    return searcher, study, watching


def hand_on(searcher, tune_id, message):
    """Hand a report on to the searcher as Tune does. Return the segment with which its gang goes on, or None."""
    is_held = message.done and isinstance(message, EpochReport)
    result = {"is_held": is_held, "reports": to_json(GangResult("gang-1", [message]))}
    if is_held:
        return searcher.handle_segment_end(tune_id, result)
    return (searcher.on_trial_complete if message.done else searcher.on_trial_result)(tune_id, result)


def end(searcher, tune_id, outcome, reason, *more, **options):
    hand_on(searcher, tune_id, SegmentEnd(outcome, reason, *more, **options))


def interrupt(searcher, tune_id):
    end(searcher, tune_id, "interrupted", "the search was stopped")


def lose(searcher, tune_id):
    """End a segment as when its gang has died."""
    searcher.on_trial_complete(tune_id, None, error=True)


def report(searcher, tune_id, epoch, loss, done=False, **more):
    content = {"checkpoint": f"/nowhere/{tune_id}-{epoch}.pt", "costs": {}, **more}
    return hand_on(searcher, tune_id, EpochReport(epoch, {"val/loss": loss}, done=done, **content))


class Gangs(Watching):
    """All gangs of a search over a study of its own, as one driver after the other has them."""

    def __init__(self, folder, schedule, trials, fixed, searched):
        super().__init__()
        self.study, self.lock = create_study(folder, RandomSampler, [VAL_LOSS])
        self.space = resolve_space(Config, fixed, searched)
        self.folder, self.schedule, self.trials, self.turns = folder, schedule, trials, 0
        self.begin("a")

    def begin(self, attempt):
        """Begin a driver, which knows nothing of an earlier one but the study."""
        self.study.live.clear()
        limits = SearchLimits(self.trials)
        self.searcher = StudySearcher(self.study, self.space, self.schedule, limits, self.folder, attempt, [self])
        self.searcher.recover()

    def ask(self):
        """The next segment, with the name that Tune has for it."""
        self.turns += 1
        found = self.searcher.suggest(f"t{self.turns}")
        assert self.searcher.error is None
        return (f"t{self.turns}", found["segment"]) if isinstance(found, dict) else None

    def hand_on(self, name, message):
        following = hand_on(self.searcher, name, message)
        assert self.searcher.error is None
        return following

    def train(self, asked, losses):
        """Report `losses` for the epochs of a segment, each with a checkpoint that exists.

        Return what the gang goes on with, or None.
        """
        following = None
        name, segment = asked
        for epoch, loss in enumerate(losses, start=segment.epoch + 1):
            path = Path(segment.folder) / f"epoch-{epoch}-{self.searcher.attempt}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"weights of {segment.trial} at {epoch}")
            Path(f"{path}.sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
            done = epoch == segment.until
            following = self.hand_on(name, EpochReport(epoch, {"val/loss": loss}, str(path), {}, done=done))
        return following

    def spend(self, asked, most=1000):
        """Report epochs of 10 samples, and of 2 GPU-seconds in fp32 or 1 in bf16, until the budget is spent."""
        name, segment = asked
        costs = {"samples": 10.0, "gpu_seconds": 2.0 if segment.config["precision"] == "fp32" else 1.0}
        budget = segment.budget
        for epoch in range(segment.epoch + 1, segment.epoch + most + 1):
            budget = budget and budget.add_epoch(epoch, costs)
            done = epoch == segment.until or (budget is not None and budget.is_spent)
            metrics = {"val/loss": segment.config["lr"] / epoch}
            self.hand_on(name, EpochReport(epoch, metrics, f"/nowhere/{epoch}.pt", costs, done))
            if done:
                break

    def run(self):
        """Play the whole search on one gang; the epochs of each trial."""
        while (asked := self.ask()) is not None:
            self.spend(asked)
        return [max(trial.intermediate_values) for trial in self.study.get_trials()]

    @property
    def outcomes(self):
        return [get_outcome(trial) for trial in self.study.get_trials()]


def outcomes(study):
    return [get_outcome(trial) for trial in study.get_trials()]
