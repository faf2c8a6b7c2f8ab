"""The study of a search: its trials and their results."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIIISampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.samplers.belief import Beliefs, RunningBelief, compute_losses, find_contradiction
from searchlight.search.samplers.distinct import DistinctSampler, build_key
from searchlight.search.samplers.own import OwnSampler
from searchlight.search.samplers.tpe import FastTPESampler
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import Space
from searchlight.search.steering.command import LogEntry
from searchlight.search.storage.backend import StudyStore
from searchlight.search.storage.study_store import open_store
from searchlight.search.study.record import COMMAND, DRIVERS, SearchRecord, build_record, read_commands
from searchlight.search.study.sampler_view import SamplerView
from searchlight.search.study.trial import (
    get_constraints,
    get_reports,
    get_segments,
    is_confirming,
    objective_values,
    split_trials,
)
from searchlight.trainables.filesystem.paths import StoragePath


class SearchStudy:
    """An Optuna study with the operations of a search.

    Trials are addressed by number. A new sampler is created for each request and no state is kept here, so that a
    resumed search continues as if it had never stopped.

    Args:
        storage: The storage of the study. An existing study of this name is resumed.
        name: The name of the study.
        sampler: Creates the sampler that proposes a trial, from the trial's number.
        objectives: The first one ranks trials during training.
        earlier: Trials of other searches that the sampler sees before those of the study.
        commit: Waits until all writes are durable.

    Attributes:
        live: Numbers of the trials that a gang trains at present.
        compared: Returns the intermediate values of a stopped trial by the step at which samplers compare it with
            others. TPE prefers the trial with the larger step. None: by epoch.
        fewest_at_rung: The number of stopped trials that must have reached a rung before TPE sees them there.
        extrapolates: Whether the sampler sees stopped trials as completed, since it ignores others.
        takes_constraints: Whether the sampler learns from the constraints of trials.
        allows: Whether a trial with these values may be proposed, or None if each may.
        takes_beliefs: Whether the sampler follows `beliefs`, what commands say about parameters.
    """

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        sampler: Callable[[int], BaseSampler],
        objectives: Sequence[Objective],
        earlier: Sequence[FrozenTrial] = (),
        commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.commit = commit
        self.live: set[int] = set()
        self.compared: Callable[[FrozenTrial], dict[int, float]] | None = None
        self.fewest_at_rung = 1
        self.allows: Callable[[dict[str, Any]], bool] | None = None
        first = sampler(0)
        kind = first.sampler if isinstance(first, OwnSampler) else first
        self.extrapolates = not isinstance(kind, TPESampler)
        self.takes_constraints = isinstance(kind, TPESampler | GPSampler | NSGAIISampler | NSGAIIISampler)
        self.objectives = tuple(objectives)
        self.takes_beliefs = isinstance(kind, FastTPESampler) and len(self.objectives) == 1
        self.beliefs: Beliefs = {}
        self._confirming: list[int] = []  # numbers of confirming runs, ascending, below `_num_checked`
        self._num_checked = 0
        self._storage = storage
        self._sampler = sampler
        self._study = optuna.create_study(
            study_name=name,
            storage=cast(BaseStorage, SamplerView(storage, self, earlier)),
            directions=["maximize" if each.mode == "max" else "minimize" for each in self.objectives],
            load_if_exists=True,
        )
        # A grid that is exhausted calls it, which Optuna allows in `optimize` alone: a search ends by its own limits.
        cast(Any, self._study).stop = lambda: None
        judged, *others = self.objectives
        self._study.set_user_attr("objective", judged.metric)
        self._study.set_user_attr("mode", judged.mode)
        if others:
            self._study.set_user_attr("others", {other.metric: other.mode for other in others})
        self._id = storage.get_study_id_from_name(name)

    @property
    def metadata(self) -> dict[str, Any]:
        """The stored metadata of the search. Empty if the driver was killed before it stored them."""
        return dict(self._storage.get_study_user_attrs(self._id).get("search", {}))

    def save_metadata(self, about: dict[str, Any]) -> None:
        """Store the metadata that a resumed search needs, as JSON."""
        self._storage.set_study_user_attr(self._id, "search", about)

    def get_record(self) -> SearchRecord:
        """Return the present record of the search."""
        return build_record(
            self._study.study_name,
            self.get_trials(),
            self.objectives,
            self.metadata,
            self._drivers,
            self.get_commands(),
        )

    def get_commands(self) -> list[LogEntry]:
        """Return the commands that users gave to the search, with their answers."""
        return read_commands(self._storage.get_study_user_attrs(self._id))

    def record_command(self, entry: LogEntry) -> None:
        """Add an entry to the log of commands."""
        self._storage.set_study_user_attr(self._id, f"{COMMAND}{entry.revision}", entry.as_json())

    @property
    def _drivers(self) -> list[tuple[float, float | None]]:
        return [(start, end) for start, end in self._storage.get_study_user_attrs(self._id).get(DRIVERS, ())]

    def record_driver_start(self, at: float) -> None:
        """Record that a driver has run the search since `at`, in seconds since 1970."""
        self._storage.set_study_user_attr(self._id, DRIVERS, [*self._drivers, (at, None)])

    def record_driver_end(self, at: float) -> None:
        """Record when the trials of the present driver ended."""
        *others, (start, _) = self._drivers
        self._storage.set_study_user_attr(self._id, DRIVERS, [*others, (start, at)])

    def get_all_trials(self) -> list[FrozenTrial]:
        """Return all trials by number, enqueued ones included. Do not change them."""
        return self._storage.get_all_trials(self._id, deepcopy=False)

    def get_trials(self) -> list[FrozenTrial]:
        """Return all trials that have begun. Do not change them."""
        return [trial for trial in self.get_all_trials() if trial.state != TrialState.WAITING]

    def get_searched_trials(self) -> list[FrozenTrial]:
        """Return `get_trials` without the confirming runs."""
        return split_trials(self.get_trials())[0]

    def count_confirming_before(self, number: int) -> int:
        """Return how many trials before `number` are confirming runs. A trial is one from its creation on, or never."""
        for checked in range(self._num_checked, number):
            if is_confirming(self.get_trial(checked)):
                self._confirming.append(checked)
        self._num_checked = max(self._num_checked, number)
        return bisect_left(self._confirming, number)

    def enqueue(self, values: dict[str, Any]) -> None:
        """Enqueue `values` as the next trial, unless they were tried or are enqueued, or name no parameter."""
        if values and values not in [
            trial.system_attrs.get("fixed_params", trial.params) for trial in self.get_all_trials()
        ]:
            self._study.enqueue_trial(values)

    def has_untried(self, combinations: Sequence[dict[str, Any]]) -> bool:
        """Return whether a point is enqueued, or commands allow one of `combinations` that no trial has."""
        trials = self.get_all_trials()
        if any(trial.state == TrialState.WAITING for trial in trials):
            return True
        tried = {build_key(trial.params) for trial in trials}
        return any(
            build_key(values) not in tried for values in combinations if self.allows is None or self.allows(values)
        )

    def ask(self, space: Space) -> tuple[int, dict[str, Any]]:
        """Begin a trial. Return its number and its values."""
        trials = self.get_all_trials()
        enqueued = (trial.number for trial in trials if trial.state == TrialState.WAITING)
        self._study.sampler = self._create_sampler(next(enqueued, len(trials)), space)
        trial = self._study.ask()
        return trial.number, space.suggest(trial)

    def resume_ask(self, number: int, space: Space) -> dict[str, Any]:
        """Return the values of a trial whose start was interrupted. Suggest the missing values."""
        self._study.sampler = self._create_sampler(number, space)
        return space.suggest(optuna.Trial(self._study, self._get_trial_id(number)))

    def _create_sampler(self, number: int, space: Space) -> DistinctSampler:
        sampler = self._sampler(number)
        if isinstance(sampler, FastTPESampler):
            sampler.running_beliefs = self.beliefs
        return DistinctSampler(sampler, space, self.allows)

    def find_contradictions(self) -> list[tuple[str, RunningBelief, str]]:
        """Return the beliefs that results contradict: the parameter, the belief, and why."""
        if not self.beliefs:
            return []
        trials = self._study.get_trials(deepcopy=False)
        losses = compute_losses(trials, self._study.direction)
        pairs = [(name, belief) for name, held in self.beliefs.items() for belief in held]
        found = [(*pair, find_contradiction(*pair, trials, losses)) for pair in pairs]
        return [each for each in found if each[-1]]

    def get_next_number(self) -> int:
        """Return the number of the next copy."""
        return len(self.get_all_trials())

    def create_copy(self, space: Space, values: dict[str, Any], attributes: dict[str, Any]) -> int:
        """Begin a trial with `values` in one write, which is atomic. Return its number."""
        distributions = {p.name: p.distribution for p in space.parameters if p.name in values}
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING, params=values, distributions=distributions, user_attrs=attributes
        )
        return self._storage.get_trial_number_from_id(self._storage.create_new_trial(self._id, template))

    def record_config(self, number: int, config: dict[str, Any]) -> None:
        """Record the whole config of a trial, fixed parameters included."""
        self._record_attr(number, "config", config)

    def record_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        self._record_attr(number, "datasets", datasets)

    def report(self, number: int, epoch: int, objective: float, report: dict[str, Any]) -> None:
        """Record the report of an epoch: the (first) objective, and `report` as JSON."""
        if len(self.objectives) > 1:  # Optuna has intermediate values of one objective only
            return self.record_report(number, epoch, {**report, "objective": objective})
        self.record_report(number, epoch, report)
        self._storage.set_trial_intermediate_value(self._get_trial_id(number), epoch, objective)

    def record_report(self, number: int, epoch: int, report: dict[str, Any]) -> None:
        """Record the report of an epoch without a finite objective."""
        self._record_attr(number, f"report/{epoch}", report)

    def record_segment(self, number: int, stretch: dict[str, Any]) -> None:
        """Record a segment that has ended, as JSON. See `searchlight.search.study.trial.get_segments`."""
        self._record_attr(number, f"stretch/{len(get_segments(self.get_trial(number))) + 1}", stretch)

    def record_micro_batches(self, number: int, split: dict[str, int]) -> None:
        """Record the fields of the config that a trial is trained with instead of those that were proposed."""
        self._record_attr(number, "micro_batches", split)

    def record_end(self, number: int, outcome: str, reason: str, details: Mapping[str, Any] | None = None) -> None:
        """Record how a trial ends before `end`, so that a resumed search ends it in the same way.

        `details` has the `divergence` of a diverged trial, or the `infeasibility` of an infeasible one, as a dict.
        """
        self._record_attr(number, "reason", reason)
        for name, content in (details or {}).items():
            self._record_attr(number, name, content)
        self._record_attr(number, "outcome", outcome)

    def end(self, number: int, outcome: str, reason: str = "", details: Mapping[str, Any] | None = None) -> None:
        """End a trial. Its value is its best report. For several objectives, see `objective_values`.

        A completed confirming run is pruned in Optuna, so that the study's best trial is one of the search. A diverged
        or infeasible trial is pruned and violates a constraint: samplers ignore failed trials, and would propose
        similar values again.
        """
        if "outcome" not in self.get_trial(number).user_attrs:
            self.record_end(number, outcome, reason, details)
        trial = self.get_trial(number)
        if not is_confirming(trial):
            self._set_constraints(trial)
        if outcome == "completed" and not is_confirming(trial):
            self._study.tell(number, objective_values(trial, self.objectives))
        elif outcome == "failed":
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, state=TrialState.PRUNED)

    def _set_constraints(self, trial: FrozenTrial) -> None:
        """Set the constraints of `trial` that it lacks. An earlier driver may have died before it called `tell`."""
        constraints = get_constraints(trial, self.objectives[0])
        if missing := {name: value for name, value in constraints.items() if name not in trial.constraints}:
            self._study.sampler = RandomSampler()  # required, but not used
            writer = optuna.Trial(self._study, self._get_trial_id(trial.number))
            for name, value in missing.items():
                writer.set_constraint(name, value)

    def repair_reports(self) -> None:
        """Complete the reports that a search recorded without their intermediate value before it died."""
        for trial in self.get_trials() if len(self.objectives) == 1 else ():  # else a report is one write
            if trial.state == TrialState.RUNNING:
                for epoch, report in get_reports(trial).items():
                    value = report["metrics"][self.objectives[0].metric]
                    if epoch not in trial.intermediate_values and math.isfinite(value):
                        self._storage.set_trial_intermediate_value(self._get_trial_id(trial.number), epoch, value)

    def get_trial(self, number: int) -> FrozenTrial:
        return self._storage.get_trial(self._get_trial_id(number))

    def _get_trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _record_attr(self, number: int, key: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._get_trial_id(number), key, value)


def create_study(
    place: StoragePath,
    sampler: Callable[[int], BaseSampler],
    objectives: Sequence[Objective],
    *,
    earlier: Sequence[FrozenTrial] = (),
    url: str = "",
    new: bool = False,
) -> tuple[SearchStudy, StudyStore]:
    """Return the study of the search at `place`, created if it is missing, and its store.

    Args:
        url: Of the database, or "" for a journal in the folder.
        new: Whether it must not exist yet.

    Raises:
        UsageError: It exists, another process has it open, or it cannot be stored there.
    """
    store = open_store(place, url, new)
    return SearchStudy(store.storage, place.name, sampler, objectives, earlier, store.commit), store
