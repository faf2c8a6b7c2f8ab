"""The trials of a study as its samplers see them."""

import copy
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from search.config.objectives import Objective
from search.study.trial import get_outcome, intermediate_values, objective_values


class StudyWithObjectives(Protocol):
    """What the view needs of a study; see `search.study.study.SearchStudy`."""

    objectives: tuple[Objective, ...]
    live: set[int]
    compared: Callable[[FrozenTrial], dict[int, float]] | None


def sampler_view(storage: BaseStorage, study: StudyWithObjectives, earlier: Sequence[FrozenTrial]) -> BaseStorage:
    """`storage` as samplers should see it: first come `earlier` trials of other searches, and a trial that waits at a
    rung is one that was pruned there.

    Left RUNNING, it tells a sampler nothing, although it has reported all that it may ever report.
    """
    completed: dict[int, FrozenTrial] = {}
    stopped: dict[int, tuple[FrozenTrial, FrozenTrial]] = {}  # each as it was, and as it is shown

    class View(type(storage)):  # type: ignore[misc]
        def get_all_trials(
            self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
        ) -> list[FrozenTrial]:
            trials = super().get_all_trials(study_id, deepcopy=deepcopy)
            several = len(study.objectives) > 1
            now = (
                view_multi_objective(trials, study, completed)
                if several
                else view_single_objective(trials, study, stopped)
            )
            shown = [*earlier, *now]
            return [trial for trial in shown if states is None or trial.state in states]

    view = View.__new__(View)
    view.__dict__ = storage.__dict__  # one storage seen in two ways, not a copy that would fall behind
    return view


def view_single_objective(
    trials: Sequence[FrozenTrial], study: StudyWithObjectives, stopped: dict[int, tuple[FrozenTrial, FrozenTrial]]
) -> list[FrozenTrial]:
    """`trials` as samplers should see them when there is one objective.

    Args:
        stopped: Keeps what is shown of those that stopped: a trial that has changed since is another object.
    """
    shown = []
    for trial in trials:
        if _is_stopped(trial, study):
            if trial.number not in stopped or stopped[trial.number][0] is not trial:
                stopped[trial.number] = (trial, as_pruned(trial, study))
            trial = stopped[trial.number][1]
        shown.append(trial)
    return shown


def _is_stopped(trial: FrozenTrial, study: StudyWithObjectives) -> bool:
    return _is_paused(trial, study) or (trial.state == TrialState.PRUNED and study.compared is not None)


def as_pruned(trial: FrozenTrial, study: StudyWithObjectives) -> FrozenTrial:
    shown = with_state(TrialState.PRUNED, trial)
    if study.compared is not None:
        shown.intermediate_values = study.compared(trial)
    return shown


def view_multi_objective(
    trials: Sequence[FrozenTrial],
    study: StudyWithObjectives,
    completed: dict[int, FrozenTrial],
) -> list[FrozenTrial]:
    """`trials` as samplers can learn from all of them when there are several objectives.

    Optuna knows no values of a pruned trial then, and most samplers pass it over. One that has reported is shown as
    completed with what it is worth, and one that diverged as no better than the worst of them.

    Args:
        completed: Keeps what is shown of those that have ended.
    """
    shown = []
    for trial in trials:
        seen = completed.get(trial.number, trial)
        if seen is trial and (_is_paused(trial, study) or get_outcome(trial) == "pruned"):
            point = objective_values(trial, study.objectives)
            seen = with_state(TrialState.COMPLETE, trial, point) if point else trial
            if point and trial.state == TrialState.PRUNED:
                completed[trial.number] = seen
        shown.append(seen)
    points = [trial.values for trial in shown if trial.state == TrialState.COMPLETE]
    if not points:
        return shown
    columns = zip(study.objectives, zip(*points, strict=True), strict=True)
    worst = [objective.worst(column) for objective, column in columns]
    return [with_state(TrialState.COMPLETE, t, worst) if get_outcome(t) == "diverged" else t for t in shown]


def _is_paused(trial: FrozenTrial, study: StudyWithObjectives) -> bool:
    return trial.state == TrialState.RUNNING and trial.number not in study.live and bool(intermediate_values(trial))


def with_state(state: TrialState, trial: FrozenTrial, values: Sequence[float] | None = None) -> FrozenTrial:
    shown = copy.copy(trial)
    shown.state = state
    if values is not None:
        shown.values = values
        # The Gaussian process refuses trials of which some have a constraint and others do not.
        shown.system_attrs = {k: v for k, v in trial.system_attrs.items() if not k.startswith("constraints:")}
    return shown
