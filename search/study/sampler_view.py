"""The trials of a study as its samplers see them."""

import copy
import math
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Protocol

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.samplers.predicted_ends import predict_ends
from searchlight.search.space.objectives import Objective
from searchlight.search.study.trial import (
    WORSE,
    TrialCache,
    get_constraints,
    get_outcome,
    intermediate_values,
    is_confirming,
    objective_values,
)

PREFIX = "constraints:"  # of the system attributes in which Optuna keeps constraints
PICKLE = ":optimizer"  # in the names of those in which Optuna's CMA-ES keeps a pickle, which it loads


class StudyWithObjectives(Protocol):
    """The attributes of a study that the view reads; see `searchlight.search.study.study.SearchStudy`."""

    objectives: tuple[Objective, ...]
    live: set[int]
    compared: Callable[[FrozenTrial], dict[int, float]] | None
    fewest_at_rung: int
    extrapolates: bool
    takes_constraints: bool


class SamplerView:
    """A storage as samplers should see it: `storage`, with the `earlier` trials of other searches first.

    A trial that waits at a rung is shown as pruned there. Samplers learn nothing from the reports of a RUNNING trial,
    although this one may never report more. Pickles are hidden unless a sampler has written them through this view,
    because loading the pickle of another writer runs code. Other methods are those of the storage.
    """

    def __init__(self, storage: BaseStorage, study: StudyWithObjectives, earlier: Sequence[FrozenTrial]) -> None:
        self._storage, self._study, self._earlier = storage, study, earlier
        self._cache = TrialCache(lambda trial, is_live: _show_trial(self._hide_pickles(trial), study, is_live))
        self._pickles: set[tuple[int, str, str]] = set()  # written through this view: trial, attribute and value
        # The last answer, and the trials that it was computed from: a suggestion asks several times.
        self._trials: list[FrozenTrial] = []
        self._live: set[int] = set()
        self._shown: list[FrozenTrial] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._storage.set_trial_system_attr(trial_id, key, value)
        if PICKLE in key and isinstance(value, str):
            self._pickles.add((trial_id, key, value))

    def _hide_pickles(self, trial: FrozenTrial) -> FrozenTrial:
        known = {
            key: value
            for key, value in trial.system_attrs.items()
            if PICKLE not in key or (isinstance(value, str) and (trial._trial_id, key, value) in self._pickles)
        }
        return trial if len(known) == len(trial.system_attrs) else _with_attributes(trial, known)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if states == (TrialState.WAITING,):  # asked for each suggestion, and shown as they are
            return self._storage.get_all_trials(study_id, deepcopy, states)
        trials, live = self._storage.get_all_trials(study_id, deepcopy=False), self._study.live
        if not _are_same(trials, self._trials) or live != self._live:
            self._shown = _show_trials(self._earlier, trials, self._study, self._cache)
            self._trials, self._live = trials, {*live}
        found = [trial for trial in self._shown if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found


def _are_same(trials: Sequence[FrozenTrial], others: Sequence[FrozenTrial]) -> bool:
    """Return whether both are the same objects. A trial that has changed is another object."""
    return len(trials) == len(others) and all(map(operator.is_, trials, others))


def _show_trials(
    earlier: Sequence[FrozenTrial],
    trials: Sequence[FrozenTrial],
    study: StudyWithObjectives,
    shown: TrialCache[FrozenTrial | None],
) -> list[FrozenTrial]:
    """Return `earlier` and `trials` as samplers should see them.

    Confirming runs are left out, since they repeat known configs and a sampler would count each as a new one.

    With several objectives, a pruned trial has no values in Optuna, and most samplers ignore it. So a trial that has
    reported is shown as completed, and a trial that diverged or could not be trained gets the worst values of those.
    With one objective, the same holds for all samplers but TPE, since they ignore pruned trials. They also see running
    trials as completed: NSGA-II stores the parents of a generation, which must not lose their values when they
    continue. A trial that violates a constraint on a metric keeps its values only for samplers that take constraints.

    Args:
        earlier: Trials of other searches, with one objective.
        trials: All trials of the study, by number.
        shown: The results of `_show_trial`. Most do not change between two suggestions.
    """
    several = len(study.objectives) > 1
    seen = [trial for trial in shown.get_all(trials, study.live) if trial is not None]
    if not several and not study.extrapolates:
        return [*earlier, *(_show_at_common_rung(seen, study.fewest_at_rung) if study.fewest_at_rung > 1 else seen)]
    # Apart, since the trials of another search may have other lengths.
    seen = [*earlier, *seen] if several else [*_extrapolate(earlier), *_extrapolate(seen)]
    points = [trial.values for trial in seen if trial.state == TrialState.COMPLETE]
    if not points:
        return seen
    columns = zip(study.objectives, zip(*points, strict=True), strict=True)
    worst = [objective.worst(column) for objective, column in columns]
    if study.takes_constraints:
        seen = _align_constraints(seen)
        return [_with_values(trial, worst) if _has_ended_early(trial) else trial for trial in seen]
    return [_with_values(_with_constraints(trial, {}), worst) if _violates(trial) else trial for trial in seen]


def _show_at_common_rung(trials: Sequence[FrozenTrial], fewest: int) -> list[FrozenTrial]:
    """Return `trials`, with each shown no further than at the last step that `fewest` stopped ones have reached.

    TPE prefers every trial of a higher rung to all others. So it would propose values near the first one that was
    trained to its end, however bad it is.
    """
    last = {
        number: next(reversed(trial.intermediate_values))
        for number, trial in enumerate(trials)
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.intermediate_values
    }
    furthest = sorted(last, key=last.__getitem__, reverse=True)
    # Step 0 is no rung: the fidelity of a trial that has it had not reached the first one.
    stopped = (number for number in furthest if last[number] > 0 and not _violates(trials[number]))
    common = next((last[number] for number in islice(stopped, fewest - 1, None)), math.inf)
    shown = [*trials]
    for number in takewhile(lambda number: last[number] > common, furthest):
        if not _violates(trials[number]):
            shown[number] = _show_up_to(trials[number], common)
    return shown


def _show_up_to(trial: FrozenTrial, step: float) -> FrozenTrial:
    """Return `trial` as it was shown at `step`, when it was stopped."""
    shown = copy.copy(trial)
    shown.state, shown.values = TrialState.PRUNED, None
    shown.intermediate_values = {at: value for at, value in trial.intermediate_values.items() if at <= step}
    return shown


def _has_ended_early(trial: FrozenTrial) -> bool:
    """Return whether `trial` diverged or could not be trained, so that its values are those of no whole training."""
    return get_outcome(trial) == "diverged" or "infeasibility" in trial.user_attrs


def _violates(trial: FrozenTrial) -> bool:
    return get_outcome(trial) in WORSE or any(value > 0 for value in trial.constraints.values())


def _align_constraints(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return `trials` with the same constraints on metrics, since the Gaussian process needs all from each trial.

    A trial that could not be trained has the largest violation that another one has, or 1.
    """
    largest: dict[str, float] = {}
    for trial in trials:
        if not _has_ended_early(trial):
            largest |= {name: max(value, largest.get(name, 0.0)) for name, value in trial.constraints.items()}
    filled = {name: value or 1.0 for name, value in largest.items()}

    def align(trial: FrozenTrial) -> FrozenTrial:
        if _has_ended_early(trial):
            return _with_constraints(trial, filled)
        return _with_constraints(trial, {**filled, **trial.constraints}) if filled else trial

    return [align(trial) for trial in trials]


def _show_trial(trial: FrozenTrial, study: StudyWithObjectives, is_live: bool) -> FrozenTrial | None:
    """Return `trial` as it is shown with no regard to others, or None for a confirming run."""
    if is_confirming(trial):
        return None
    stands = study.extrapolates or not is_live
    paused = trial.state == TrialState.RUNNING and stands and intermediate_values(trial)
    if len(study.objectives) > 1:
        pruned = get_outcome(trial) in ("pruned", "infeasible")
    else:
        pruned = trial.state == TrialState.PRUNED and study.compared is not None
    if not paused and not pruned:
        return _with_compared(trial, study) if len(study.objectives) == 1 else trial
    return _with_constraints(_as_stopped(trial, study), get_constraints(trial, study.objectives[0]))


def _as_stopped(trial: FrozenTrial, study: StudyWithObjectives) -> FrozenTrial:
    if len(study.objectives) > 1:
        point = objective_values(trial, study.objectives)
        return _with_values(trial, point) if point else trial
    shown = _with_compared(copy.copy(trial), study)
    shown.state = TrialState.PRUNED
    return shown


def _with_compared(trial: FrozenTrial, study: StudyWithObjectives) -> FrozenTrial:
    """Return `trial` with the values that trials are compared by, where they are not those of epochs."""
    if study.compared is None or not trial.intermediate_values:
        return trial
    shown = copy.copy(trial)
    shown.intermediate_values = study.compared(trial)
    return shown


def _extrapolate(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return `trials` with stopped trials shown as completed, with the values that they are predicted to end at."""
    curves = {
        trial.number: trial.intermediate_values
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and not _has_ended_early(trial)
    }
    rungs = sorted({max(curve) for curve in curves.values() if curve})
    ends = predict_ends(curves, rungs)
    return [
        _with_values(trial, [ends[trial.number]])
        if trial.state == TrialState.PRUNED and trial.number in ends
        else trial
        for trial in trials
    ]


def _with_values(trial: FrozenTrial, values: Sequence[float]) -> FrozenTrial:
    """Return `trial` as completed with `values`."""
    shown = copy.copy(trial)
    shown.state, shown.values = TrialState.COMPLETE, values
    return shown


def _with_constraints(trial: FrozenTrial, constraints: Mapping[str, float]) -> FrozenTrial:
    """Return `trial` with `constraints` in the place of its own."""
    others = {key: value for key, value in trial.system_attrs.items() if not key.startswith(PREFIX)}
    return _with_attributes(trial, others | {f"{PREFIX}{name}": value for name, value in constraints.items()})


def _with_attributes(trial: FrozenTrial, attributes: dict[str, Any]) -> FrozenTrial:
    """Return `trial` with other system attributes."""
    shown = copy.copy(trial)
    shown.system_attrs = attributes
    return shown
