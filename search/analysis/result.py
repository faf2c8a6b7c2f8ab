"""The result of a search."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from search.analysis.best_trials import BestTrial, ParetoTrial, count_outcomes, find_best, find_pareto_front
from search.analysis.divergence import Divergence, find_divergence
from search.analysis.timeline import running_time
from search.study.record import SearchRecord


@dataclass(frozen=True)
class SearchResult:
    """What came of a search: outcomes by name, the best trial, where trials diverged, where MLflow has it, how many
    seconds its drivers ran, and why it ended before its trials were spent.

    The best is so by the first objective; with several, `front` has those that no other trial beats in all of them.
    `searched` is the search itself, with all of its trials as the study has them.
    """

    name: str
    outcomes: dict[str, int]
    best: BestTrial | None
    divergence: list[Divergence]
    mlflow: dict[str, str]
    seconds: float
    stopped: str
    front: Sequence[ParetoTrial] | None
    searched: SearchRecord = field(repr=False)

    @classmethod
    def from_record(cls, searched: SearchRecord) -> "SearchResult":
        """Return what the trials of a search show; not yet where MLflow has it, and why it stopped."""
        trials, objectives = searched.trials, searched.objectives
        best, seconds, front = find_best(trials, searched.objective), running_time(searched).total, None
        if len(objectives) > 1:
            front = find_pareto_front(trials, objectives)
        found = count_outcomes(trials), best, find_divergence(trials)
        return cls(searched.name, *found, {}, seconds, "", front, searched)

    @property
    def metrics(self) -> dict[str, float]:
        """The best value and the duration as metrics of the search."""
        best = {f"best/{self.searched.objective.metric}": self.best.value} if self.best else {}
        return {**best, "time/search_s": self.seconds}

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        front = {} if self.front is None else {"front": [asdict(trial) for trial in self.front]}
        return {
            "name": self.name,
            "outcomes": self.outcomes,
            "best": asdict(self.best) if self.best else None,
            **front,
            "divergence": [asdict(divergence) for divergence in self.divergence],
            "mlflow": self.mlflow,
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped or None,
        }
