"""The result of a search."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

from searchlight.search.analysis.best_trials import BestTrial, ParetoTrial, count_outcomes, find_pareto_front
from searchlight.search.analysis.confirmation import Confirmation, ConfirmedConfig, describe_config
from searchlight.search.analysis.confirmed_best import (
    confirm,
    explain_no_confirmation,
    find_confirmed_best,
    get_confirmed_config,
)
from searchlight.search.analysis.divergence import Divergence, find_divergence
from searchlight.search.analysis.infeasibility import ViolatedConstraint, find_violated_constraints
from searchlight.search.analysis.timeline import running_time
from searchlight.search.formatting import SCHEMA, format_value, join_words
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_outcome, get_segments, intermediate_values, objective_values

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        name: The name of the search.
        outcomes: The number of trials by outcome.
        best: The confirmed trial. Without a confirmation, the best trial by the first objective. None: no trial has a
            result.
        divergence: The diverged trials, by precision.
        mlflow: The `tracking_uri`, `experiment_id` and `run_id` of the search, and the URI of its `model`, if any.
        seconds: The running time of all drivers, without pauses.
        stopped: The reason for an early end, or "".
        front: With several objectives, the Pareto front. None with one objective.
        searched: The record of the search with all trials of the study.
        confirmations: The results of the confirming runs, one for each objective. Empty without confirming runs.
        infeasibility: The infeasible trials, by the constraint that they violate.
        is_exhausted: Whether its driver knows that all configs were tried.
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
    confirmations: Sequence[Confirmation] = ()
    infeasibility: Sequence[ViolatedConstraint] = ()
    is_exhausted: bool = False

    @classmethod
    def from_record(cls, record: SearchRecord) -> "SearchResult":
        """Return the result of a search, without its location in MLflow and its reason to stop."""
        trials, objectives = record.trials, record.objectives
        confirmations = confirm(record)
        best, seconds, front = find_confirmed_best(record, confirmations), running_time(record).total, None
        if len(objectives) > 1:
            front = find_pareto_front(trials, objectives)
        found = count_outcomes(trials), best, find_divergence(trials)
        violated = find_violated_constraints(trials, record.objective)
        return cls(record.name, *found, {}, seconds, "", front, record, confirmations, violated)

    @property
    def confirmation(self) -> Confirmation | None:
        """The result of the confirming runs. None without them, or with several objectives."""
        return self.confirmations[0] if len(self.confirmations) == 1 else None

    @property
    def reasons(self) -> list[str]:
        """The reasons for an early end, e.g. "interrupted" or "time budget"."""
        return self.stopped.split(", ") if self.stopped else []

    @property
    def statement(self) -> str:
        """The conclusion of the confirming runs as a sentence, or "" without a confirmation."""
        if len(self.confirmations) > 1:  # the best config of one objective may be the worst of another
            configs = join_words([describe_config(config.trial) for config in self.confirmations[0].configs])
            return f"the confirming runs estimate each objective of {configs}, and choose none of them"
        return self.confirmation.statement if self.confirmation else ""

    @property
    def unconfirmed(self) -> str:
        """The reason why confirming runs confirmed nothing, or ""."""
        return explain_no_confirmation(self.searched)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the search for MLflow: best value, confirmed value with its interval, and duration."""
        metric = self.searched.objective.metric
        metrics = {f"best/{metric}": self.best.value} if self.best else {}
        if self.confirmation is not None:
            config = get_confirmed_config(self.confirmation)
            low, high = config.interval
            metrics |= {f"confirmed/{metric}": config.mean, f"confirmed/{metric}_low": low}
            metrics |= {f"confirmed/{metric}_high": high, "confirmed/probability_best": config.probability_best}
            if config.probability_beats_defaults is not None:
                metrics["confirmed/probability_beats_defaults"] = config.probability_beats_defaults
        return {**metrics, "time/search_s": self.seconds}

    @property
    def trials(self) -> "DataFrame":
        """A data frame with a row per trial, and column names as in trials.parquet.

        The columns are number, outcome, reason, epochs, seconds on workers, the objectives of the best report, and the
        searched parameters.
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
        """Return the HTML that a notebook shows: counts of outcomes, the best trial, and the table of all trials."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items()) or "no trials"
        best = ""
        if self.best:
            value = format_value(self.best.value)
            word = "" if self.confirmation else "best "  # else another trial may have a better one
            best = f", {word}{self.searched.objective.metric} {value} in trial {self.best.trial_id}"
        confirmed = f". Confirmed: {self.statement or self.unconfirmed}" if self.statement or self.unconfirmed else ""
        head = escape(f"{self.name}: {counts} in {self.seconds:.0f} s{best}{confirmed}")
        return f"<p>{head}</p>{self.trials.to_html(index=False, max_rows=30)}"

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        front = {} if self.front is None else {"front": [asdict(trial) for trial in self.front]}
        return {
            "schema": SCHEMA,
            "name": self.name,
            "outcomes": self.outcomes,
            "best": self._best_as_json() if self.best else None,
            **front,
            **({"unconfirmed": self.unconfirmed} if self.unconfirmed else {}),
            **({"confirmations": [_to_json(each) for each in self.confirmations]} if self.confirmations else {}),
            "divergence": [asdict(divergence) for divergence in self.divergence],
            "infeasibility": [asdict(violated) for violated in self.infeasibility],
            "mlflow": self.mlflow,
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped or None,
        }

    def _best_as_json(self) -> dict[str, Any]:
        best = asdict(self.best) if self.best else {}
        run = best.pop("run")
        if self.confirmation is None:
            return best
        config = get_confirmed_config(self.confirmation)
        return {
            **best,
            "confirmed": {**_config_to_json(config), "run": run, "statement": self.confirmation.statement},
        }


def _to_json(confirmation: Confirmation) -> dict[str, Any]:
    values = {field.name: getattr(confirmation, field.name) for field in fields(confirmation)}
    configs = [_config_to_json(config) for config in confirmation.configs]
    return {"metric": values.pop("objective").metric, **values, "configs": configs}


def _config_to_json(config: ConfirmedConfig) -> dict[str, Any]:
    """Return the estimate of a config. The trial of the defaults is null."""
    values = {str(seed): value for seed, value in config.values.items()}
    return {**asdict(config), "seeds": len(values), "values": values}
