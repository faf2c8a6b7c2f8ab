"""Stands where Tune does in tests of the searcher: asks for stretches."""

from search.execution.searcher import StudySearcher


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
        arguments = (self.study, self.space, self.schedule, "val/loss", self.trials, self.folder, attempt)
        self.searcher = StudySearcher(*arguments, observers=self.observers)
        self.searcher.recover()

    def ask(self):
        """The next stretch, with the name that Tune has for it."""
        self.turns += 1
        found = self.searcher.suggest(f"t{self.turns}")
        assert self.searcher.error is None
        return (f"t{self.turns}", found["stretch"]) if isinstance(found, dict) else None
