"""The study: the one place that knows what was tried and what came of it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from search.config.objectives import Objective
from search.config.search_space import Space
from search.samplers.distinct import DistinctSampler
from search.storage.backend import StudyStore
from search.storage.study_store import open_store
from search.study.record import DRIVERS, SearchRecord, build_record
from search.study.sampler_view import sampler_view
from search.study.trial import get_reports, get_segments, is_confirming, objective_values
from trainables.filesystem.paths import StoragePath


class SearchStudy:
    """An Optuna study, with what a search asks of it and tells it.

    It is written to by number of the trial, and asked with a sampler that is made anew for each question: nothing is
    kept here, so that a search which is taken up again goes on as if it had never stopped.

    Args:
        storage: Where the study is kept. One of that name in it is taken up.
        name: Of the study.
        sampler: Makes the sampler that proposes a trial, from the trial's number.
        objectives: The first is the one that trials are judged by while they train.
        earlier: Trials of other searches that the sampler sees before those of the study.
        commit: Makes sure that what was written is kept: called before anybody acts on it.

    Attributes:
        live: Numbers of the trials that a gang is training now.
        compared: Gives the values of a trial that was stopped by the steps at which samplers are to compare it with
            others: to TPE, whoever came further is the better one. None: by epoch.
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
        self.objectives = tuple(objectives)
        self._storage = storage
        self._sampler = sampler
        self._study = optuna.create_study(
            study_name=name,
            storage=sampler_view(storage, self, earlier),
            directions=["maximize" if each.mode == "max" else "minimize" for each in self.objectives],
            load_if_exists=True,
        )
        first, *others = self.objectives
        self._study.set_user_attr("objective", first.metric)
        self._study.set_user_attr("mode", first.mode)
        if others:
            self._study.set_user_attr("others", {other.metric: other.mode for other in others})
        self._id = storage.get_study_id_from_name(name)

    @property
    def metadata(self) -> dict[str, Any]:
        """What was remembered of the search; empty if it died before."""
        return dict(self._storage.get_study_user_attrs(self._id).get("search", {}))

    def save_metadata(self, about: dict[str, Any]) -> None:
        """Keep with the study what the search can be taken up from, as JSON."""
        self._storage.set_study_user_attr(self._id, "search", about)

    def get_record(self) -> SearchRecord:
        """Return the search as its study has it now."""
        return build_record(self._study.study_name, self.get_trials(), self.objectives, self.metadata, self._drivers)

    @property
    def _drivers(self) -> list[tuple[float, float | None]]:
        return [(start, end) for start, end in self._storage.get_study_user_attrs(self._id).get(DRIVERS, ())]

    def record_driver_start(self, at: float) -> None:
        """Record that a driver runs the search since `at`, in seconds since 1970."""
        self._storage.set_study_user_attr(self._id, DRIVERS, [*self._drivers, (at, None)])

    def record_driver_end(self, at: float) -> None:
        """Record when the trials of the present driver had ended."""
        *others, (start, _) = self._drivers
        self._storage.set_study_user_attr(self._id, DRIVERS, [*others, (start, at)])

    def get_trials(self) -> list[FrozenTrial]:
        """All trials that have begun, as they are; not to be changed."""
        return [trial for trial in self._get_all_trials() if trial.state != TrialState.WAITING]

    def get_searched_trials(self) -> list[FrozenTrial]:
        """Return `get_trials` without the confirming runs."""
        return [trial for trial in self.get_trials() if not is_confirming(trial)]

    def enqueue(self, values: dict[str, Any]) -> None:
        """Try `values` next, unless this search tried them or they wait to be."""
        if values not in [trial.system_attrs.get("fixed_params", trial.params) for trial in self._get_all_trials()]:
            self._study.enqueue_trial(values)

    def ask(self, space: Space) -> tuple[int, dict[str, Any]]:
        """Begin a trial: its number and the values that it gets."""
        trials = self._get_all_trials()
        enqueued = (trial.number for trial in trials if trial.state == TrialState.WAITING)
        self._study.sampler = DistinctSampler(self._sampler(next(enqueued, len(trials))), space)
        trial = self._study.ask()
        return trial.number, space.suggest(trial)

    def resume_ask(self, number: int, space: Space) -> dict[str, Any]:
        """The values of a trial that had begun when its search died, maybe before it had all of them."""
        self._study.sampler = DistinctSampler(self._sampler(number), space)
        return space.suggest(optuna.Trial(self._study, self._get_trial_id(number)))

    def get_next_number(self) -> int:
        """The number of the copy that begins next."""
        return len(self._get_all_trials())

    def create_copy(self, space: Space, values: dict[str, Any], attributes: dict[str, Any]) -> int:
        """Begin a trial with `values`, as one write: a crash leaves all of it or nothing. Return its number."""
        distributions = {p.name: p.distribution for p in space.parameters if p.name in values}
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING, params=values, distributions=distributions, user_attrs=attributes
        )
        return self._storage.get_trial_number_from_id(self._storage.create_new_trial(self._id, template))

    def record_config(self, number: int, config: dict[str, Any]) -> None:
        """Keep the whole config of a trial, fixed parameters included."""
        self._record_attr(number, "config", config)

    def record_datasets(self, number: int, datasets: list[dict[str, str]]) -> None:
        """Keep what a trial trains and evaluates on."""
        self._record_attr(number, "datasets", datasets)

    def report(self, number: int, epoch: int, objective: float, report: dict[str, Any]) -> None:
        """Note the report of an epoch: the (first) objective, and beside it `report` as JSON."""
        if len(self.objectives) > 1:  # Optuna has intermediate values for one objective alone: see `curve_of`
            return self.record_report(number, epoch, {**report, "objective": objective})
        self.record_report(number, epoch, report)
        self._storage.set_trial_intermediate_value(self._get_trial_id(number), epoch, objective)

    def record_report(self, number: int, epoch: int, report: dict[str, Any]) -> None:
        """Keep the report of an epoch that has no finite objective to rank it by."""
        self._record_attr(number, f"report/{epoch}", report)

    def record_segment(self, number: int, stretch: dict[str, Any]) -> None:
        """Keep what a stretch that has ended was, as JSON; see `search.study.trial.stretches_of`."""
        self._record_attr(number, f"stretch/{len(get_segments(self.get_trial(number))) + 1}", stretch)

    def record_end(self, number: int, outcome: str, reason: str, divergence: dict[str, Any] | None = None) -> None:
        """Keep how a trial ends, before it does: `end` is then certain to come, also if the search dies.

        Of one that diverged, `divergence` has the `kind` and the `epoch`.
        """
        self._record_attr(number, "reason", reason)
        if divergence is not None:
            self._record_attr(number, "divergence", divergence)
        self._record_attr(number, "outcome", outcome)

    def end(self, number: int, outcome: str, reason: str = "", divergence: dict[str, Any] | None = None) -> None:
        """End a trial. Its value is the best that it reported; of several, see `objective_values`.

        A confirming run that was completed is pruned to Optuna, so that the study's best trial is one of the search.
        One that diverged is an answer: samplers see it as pruned and outside of a constraint. They ignore failed
        trials, and would propose the like again.
        """
        if "outcome" not in self.get_trial(number).user_attrs:
            self.record_end(number, outcome, reason, divergence)
        if outcome == "completed" and not is_confirming(self.get_trial(number)):
            self._study.tell(number, objective_values(self.get_trial(number), self.objectives))
        elif outcome == "failed":
            self._study.tell(number, state=TrialState.FAIL)
        else:
            trial = self.get_trial(number)
            if (
                outcome == "diverged" and not trial.constraints and not is_confirming(trial)
            ):  # else the search died here
                self._study.sampler = RandomSampler()  # which is asked for nothing here
                optuna.Trial(self._study, self._get_trial_id(number)).set_constraint("diverged", 1.0)
            self._study.tell(number, state=TrialState.PRUNED)

    def repair_reports(self) -> None:
        """Rank the reports that a search which died had noted, but not ranked."""
        for trial in self.get_trials() if len(self.objectives) == 1 else ():  # else they are one write
            if trial.state == TrialState.RUNNING:
                for epoch, report in get_reports(trial).items():
                    value = report["metrics"][self.objectives[0].metric]
                    if epoch not in trial.intermediate_values and math.isfinite(value):
                        self._storage.set_trial_intermediate_value(self._get_trial_id(trial.number), epoch, value)

    def get_trial(self, number: int) -> FrozenTrial:
        """One trial as it is."""
        return self._storage.get_trial(self._get_trial_id(number))

    def _get_all_trials(self) -> list[FrozenTrial]:
        return self._storage.get_all_trials(self._id, deepcopy=False)

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
    """The study of the search at `place`, made if there is none, and the store that it is kept in.

    Args:
        url: Of the database; empty: a journal in the folder.
        new: It must not exist yet.

    Raises:
        UsageError: It exists, another process has it open, or it cannot be kept there.
    """
    store = open_store(place, url, new)
    return SearchStudy(store.storage, place.name, sampler, objectives, earlier, store.commit), store
