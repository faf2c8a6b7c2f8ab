"""A search as stored in its study, for reports, tables and other searches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import parse_storage, resolve_place
from searchlight.search.schedulers.factory import create_scheduler
from searchlight.search.schedulers.options import SchedulerOptions
from searchlight.search.space.fidelity import UNLIMITED, Unit
from searchlight.search.space.objectives import HasObjectives, Objective
from searchlight.search.steering.command import LogEntry, parse_entry
from searchlight.search.steering.state import build_state
from searchlight.search.storage.database import database_errors
from searchlight.search.storage.study_store import create_backend, read_study_url
from searchlight.search.study.trial import count_extension, max_epochs, split_trials
from searchlight.trainables.filesystem.paths import StoragePath

DRIVERS = "drivers"  # the user attribute of the study with the times of its drivers
COMMAND = "command/"  # the user attributes of the study with its commands, each with its number


@dataclass(frozen=True)
class SearchRecord(HasObjectives):
    """A finished or running search.

    Attributes:
        name: The name of the search.
        trials: The trials that have started, by number, without the confirming runs.
        objectives: The first one ranks trials during training.
        about: The metadata of `searchlight.search.experiment.opening`: `config`, the `first` points (the task's
            defaults among them), `searched` and `fixed`. Empty if the search died before they were stored.
        drivers: The start of each driver and the end of its trials (None: it was killed, or still runs), in seconds
            since 1970. Empty for a search of an older version.
        confirming_runs: Trials that train a finalist or the defaults once more, under a new seed.
        commands: What users asked of the running search, and the answers.
        is_open: Whether a driver had the study open when it was read, or None if that is not known.
        place: Its folder or bucket, or None if only its study is known.
    """

    name: str
    trials: Sequence[FrozenTrial]
    objectives: tuple[Objective, ...]
    about: Mapping[str, Any]
    drivers: Sequence[tuple[float, float | None]] = ()
    confirming_runs: Sequence[FrozenTrial] = ()
    commands: Sequence[LogEntry] = ()
    is_open: bool | None = None
    place: StoragePath | None = None

    @property
    def all_trials(self) -> Sequence[FrozenTrial]:
        """The trials and the confirming runs, by number."""
        return sorted([*self.trials, *self.confirming_runs], key=lambda trial: trial.number)

    def count_added_epochs(self, trial: int) -> int:
        """Return by how many epochs a trial was trained longer than planned, which its config does not have."""
        added = build_state(self.commands).get_extensions()[trial]
        own = next(each for each in self.trials if each.number == trial)
        return count_extension(own, max_epochs(own), added)

    @property
    def unit(self) -> Unit:
        """The unit of a trial's budget."""
        unit: Unit = self.about.get("config", {}).get("fidelity") or "epochs"
        return unit

    @property
    def rungs(self) -> Sequence[float]:
        """The budgets at which the scheduler compares trials, in the unit of a trial's budget."""
        stored = self.about["config"]
        values = {key: stored[key] for key in SchedulerOptions.model_fields if stored.get(key) is not None}
        return create_scheduler(SchedulerOptions(**values), UNLIMITED, self.objective.mode).rungs

    @property
    def default_trial(self) -> FrozenTrial | None:
        """The trial of the task's default values, or None if it was not begun.

        It is also None if a default lies outside of the search space: the sampler then chose that value.
        """
        first = self.about.get("first") or [None]
        defaults = self.about.get("defaults", first[0])  # older searches began with them, if only with {}
        return next((trial for trial in self.trials if trial.params and trial.params == defaults), None)


def load_search(place: str | StoragePath) -> SearchRecord:
    """Return the record of the search at `place`, its folder or its name in the folder `runs`.

    Raises:
        UsageError: It does not exist or cannot be read.
    """
    place = resolve_place(place, parse_storage("runs")) if isinstance(place, str) else place
    url = read_study_url(place)
    backend = create_backend(place, url)
    is_open = backend.is_open()  # first: a driver that ends meanwhile was not killed
    storage = backend.read()
    with database_errors(url):
        study_id = storage.get_study_id_from_name(place.name)
        about = storage.get_study_user_attrs(study_id)
        trials = storage.get_all_trials(study_id)
    if "mode" not in about:
        raise UsageError(f"name must be a search that has begun, but {place.name} has not.")
    others = (Objective(metric, mode) for metric, mode in about.get("others", {}).items())
    begun = [trial for trial in trials if trial.state != TrialState.WAITING]
    objectives = (Objective(about["objective"], about["mode"]), *others)
    drivers = [(start, end) for start, end in about.get(DRIVERS, ())]
    record = build_record(place.name, begun, objectives, about.get("search", {}), drivers, read_commands(about))
    return replace(record, is_open=is_open, place=place)


def build_record(
    name: str,
    trials: Sequence[FrozenTrial],
    objectives: tuple[Objective, ...],
    about: Mapping[str, Any],
    drivers: Sequence[tuple[float, float | None]] = (),
    commands: Sequence[LogEntry] = (),
) -> SearchRecord:
    """Return the record of a search from all `trials` that have begun, including confirming runs."""
    searched, confirming_runs = split_trials(trials)
    return SearchRecord(name, searched, objectives, about, drivers, confirming_runs, commands)


def read_commands(attributes: Mapping[str, Any]) -> list[LogEntry]:
    """Return the log of commands from the user attributes of a study."""
    entries = (parse_entry(content) for name, content in attributes.items() if name.startswith(COMMAND))
    return sorted(entries, key=lambda entry: entry.revision)
