"""The result of a search."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from search.analysis.best_trials import BestTrial, ParetoTrial, count_outcomes, find_best, find_pareto_front
from search.analysis.divergence import Divergence, find_divergence
from search.analysis.timeline import running_time
from search.formatting import format_value
from search.study.record import SearchRecord
from search.study.trial import get_outcome, get_segments, intermediate_values, objective_values

if TYPE_CHECKING:
    from pandas import DataFrame


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

    @property
    def trials(self) -> "DataFrame":
        """A row per trial: number, outcome, reason, epochs, seconds that workers had it, objectives, parameters.

        The objectives are those of its best report. The names are those of trials.parquet.
        """
        from pandas import DataFrame

        objectives, rows = self.searched.objectives, []
        for trial in self.searched.trials:
            row = {
                "trial_id": trial.number,
                "outcome": get_outcome(trial),
                "reason": trial.user_attrs.get("reason", ""),
                "epochs": max(intermediate_values(trial), default=0),
                "seconds": sum(segment["ended"] - segment["began"] for segment in get_segments(trial)),
            }
            point = objective_values(trial, objectives) or (math.nan,) * len(objectives)
            for objective, value in zip(objectives, point, strict=True):
                row[f"reported/{objective.metric}" if objective.metric in row else objective.metric] = value
            rows.append({**row, **{f"config/{name}": value for name, value in trial.params.items()}})
        return DataFrame(rows)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how trials ended, the best one, and the table of all."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items()) or "no trials"
        best = ""
        if self.best:
            value = format_value(self.best.value)
            best = f", best {self.searched.objective.metric} {value} in trial {self.best.trial_id}"
        head = escape(f"{self.name}: {counts} in {self.seconds:.0f} s{best}")
        return f"<p>{head}</p>{self.trials.to_html(index=False, max_rows=30)}"

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
