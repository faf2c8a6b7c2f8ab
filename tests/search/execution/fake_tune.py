"""Stands where Tune does in tests of the searcher: asks for segments."""

from search.execution.report_handler import SearchLimits
from search.execution.searcher import StudySearcher
from trainables.worker.messages import GangResult, to_json


class Gangs:
    """Of a search over `study`, as one driver after the other has them; further `observers` are told what happens."""

    def __init__(self, study, space, schedule, trials, folder, observers=()):
        self.study, self.space, self.schedule = study, space, schedule
        self.trials, self.folder, self.observers = trials, folder, observers
        self.turns = 0
        self.begin("a")

    def begin(self, attempt):
        """A driver: nothing of an earlier one is known but the study."""
        self.study.live.clear()
        limits = SearchLimits(self.trials)
        self.searcher = StudySearcher(
            self.study, self.space, self.schedule, limits, self.folder, attempt, self.observers
        )
        self.searcher.recover()

    def ask(self):
        """The next segment, with the name that Tune has for it."""
        self.turns += 1
        found = self.searcher.suggest(f"t{self.turns}")
        assert self.searcher.error is None
        return (f"t{self.turns}", found["segment"]) if isinstance(found, dict) else None

    def report(self, name, report):
        """Hand on what the gang of a segment reports."""
        result = {"done": report.done, "reports": to_json(GangResult("gang-1", [report]))}
        (self.searcher.on_trial_complete if report.done else self.searcher.on_trial_result)(name, result)
        assert self.searcher.error is None
