"""How far the trials of a search have come, as its scheduler sees them."""

from dataclasses import replace
from typing import Literal

from optuna.trial import FrozenTrial, TrialState

from searchlight.search.schedulers.base import Scheduler, TrialProgress
from searchlight.search.space.fidelity import cumulative_cost
from searchlight.search.steering.state import Controls
from searchlight.search.study.study import SearchStudy
from searchlight.search.study.trial import (
    TrialCache,
    count_extension,
    get_confirming_run,
    get_reports,
    has_broken_off,
    intermediate_values,
    is_confirming,
    max_epochs,
    penalize_violations,
)


class ProgressReader:
    """Reads the progress of trials from their study. What has not changed is not read again."""

    def __init__(self, study: SearchStudy, schedule: Scheduler, controls: Controls) -> None:
        self.study, self.schedule, self.controls = study, schedule, controls
        self._progress = TrialCache(self._build_progress)

    def get_searched(self) -> list[TrialProgress]:
        progress = self._progress.get_all(self.study.get_all_trials(), self.study.live)
        return [trial for is_searched, trial in progress if is_searched]

    def is_complete(self, number: int) -> bool:
        trial = self.study.get_trial(number)
        progress = self.get_progress(trial)
        if self.get_extension(trial):
            return progress.epoch >= self.get_limit(trial)
        return progress.is_complete(self.schedule.limit)

    def get_limit(self, trial: FrozenTrial) -> float:
        """Return the largest budget of a trial, with what commands have added."""
        return self._get_planned(trial) + self.get_extension(trial)

    def get_extension(self, trial: FrozenTrial) -> int:
        """Return how many epochs commands have added to a trial, or to the finalist that it confirms."""
        run = get_confirming_run(trial)
        if run is None:
            return self.controls.extended.get(trial.number, 0)
        if run.trial is None:
            return 0
        finalist = self.study.get_trial(run.trial)
        return count_extension(finalist, self._get_planned(finalist), self.controls.extended.get(run.trial, 0))

    def _get_planned(self, trial: FrozenTrial) -> float:
        return min(self.schedule.limit, max_epochs(trial))

    def get_values_by_rung(self, trial: FrozenTrial) -> dict[int, float]:
        progress = replace(self.get_progress(trial), values=intermediate_values(trial))  # as they were reported
        return progress.values_by_rung(self.schedule.rungs)

    def get_progress(self, trial: FrozenTrial) -> TrialProgress:
        return self._progress.get(trial, self.study.live)[1]

    def _build_progress(self, trial: FrozenTrial, is_live: bool) -> tuple[bool, TrialProgress]:
        """Return whether the search has begun `trial`, with a confirming run excluded, and its progress."""
        state: Literal["running", "waiting"] = "running" if is_live else "waiting"
        copy = trial.user_attrs.get("copy", {"epoch": 0, "replaces": None})
        progress = TrialProgress(
            trial.number,
            penalize_violations(trial, self.study.objectives[0]),
            state if trial.state == TrialState.RUNNING else "ended",
            start=copy["epoch"],
            copied_from=trial.user_attrs.get("copied_from"),
            replaces=copy["replaces"],
            finished=trial.state == TrialState.COMPLETE,
            broke_off=has_broken_off(trial),
            epochs=max_epochs(trial),
            spent=None if self.schedule.unit == "epochs" else cumulative_cost(get_reports(trial), self.schedule.unit),
            confirmed_before=self.study.count_confirming_before(trial.number),
        )
        return trial.state != TrialState.WAITING and not is_confirming(trial), progress
