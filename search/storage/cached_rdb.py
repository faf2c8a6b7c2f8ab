"""A cache of a study in a database, for the driver, which is its only writer."""

import copy
import json
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeVar, cast

from optuna.distributions import BaseDistribution
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import DBAPIError

Answer = TypeVar("Answer")
RETRIES = 9  # of one request, each over a new connection


def _forward(method: str) -> Any:
    """Return a method that queries the database at each call."""

    def ask(self: "CachedRDBStorage", *arguments: Any, **named: Any) -> Any:
        return self._retry_on_disconnect(lambda: getattr(self._database, method)(*arguments, **named))

    return ask


class CachedRDBStorage(BaseStorage):
    """Caches all trials in memory. Writes go to the database first, and are repeated if the connection is lost.

    Optuna's own cache reads every unfinished trial at each query, and many trials wait at rungs: see
    benchmarks/driver/study_stores.py.
    """

    def __init__(self, database: RDBStorage) -> None:
        self._database = database
        self._studies: dict[int, dict[int, FrozenTrial]] = {}  # trials by their id, in the order of their numbers
        self._numbers: dict[int, list[int]] = {}  # ids in that order
        self._study_of: dict[int, int] = {}

    create_new_study = _forward("create_new_study")
    set_study_user_attr = _forward("set_study_user_attr")
    set_study_system_attr = _forward("set_study_system_attr")
    get_study_id_from_name = _forward("get_study_id_from_name")
    get_study_name_from_id = _forward("get_study_name_from_id")
    get_study_directions = _forward("get_study_directions")
    get_study_user_attrs = _forward("get_study_user_attrs")
    get_study_system_attrs = _forward("get_study_system_attrs")
    get_all_studies = _forward("get_all_studies")

    def delete_study(self, study_id: int) -> None:
        self._ask("delete_study", study_id)
        self._studies.pop(study_id, None)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        trials = self._load_trials(study_id)
        trial_id: int = self._ask("create_new_trial", study_id, template_trial)
        trial = self._ask("get_trial", trial_id)
        if trial.number != len(trials):  # the connection was lost, and Optuna created a second trial
            del self._studies[study_id]
            self._load_trials(study_id)
            return trial_id
        trials[trial_id] = trial
        self._numbers[study_id].append(trial_id)
        self._study_of[trial_id] = study_id
        return trial_id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        value = distribution.to_external_repr(param_value_internal)
        self._ask("set_trial_param", trial_id, param_name, param_value_internal, distribution)
        self._update_trial(trial_id, "params", param_name, value)
        self._update_trial(trial_id, "distributions", param_name, distribution)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        begun = False

        def write() -> bool:
            nonlocal begun
            if begun and self._database.get_trial(trial_id).state == state:
                return True  # the write succeeded, but its answer was lost
            begun = True
            return self._database.set_trial_state_values(trial_id, state, values)

        written = self._retry_on_disconnect(write)
        self._load_trials(self._study_of[trial_id])[trial_id] = self._ask("get_trial", trial_id)
        return written

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        self._ask("set_trial_intermediate_value", trial_id, step, intermediate_value)
        self._update_trial(trial_id, "intermediate_values", step, intermediate_value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._ask("set_trial_user_attr", trial_id, key, value)
        self._update_trial(trial_id, "user_attrs", key, _normalize_json(value))

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._ask("set_trial_system_attr", trial_id, key, value)
        self._update_trial(trial_id, "system_attrs", key, _normalize_json(value))

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        self._load_trials(study_id)
        numbers = self._numbers[study_id]
        if trial_number >= len(numbers):
            raise KeyError(f"no trial {trial_number} in study {study_id}")
        return numbers[trial_number]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if trial_id not in self._study_of:
            return cast(FrozenTrial, self._ask("get_trial", trial_id))
        return self._studies[self._study_of[trial_id]][trial_id]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = [trial for trial in self._load_trials(study_id).values() if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def remove_session(self) -> None:
        self._database.remove_session()

    def _load_trials(self, study_id: int) -> dict[int, FrozenTrial]:
        if study_id not in self._studies:
            trials = self._ask("get_all_trials", study_id, False)
            trials.sort(key=lambda trial: trial.number)
            self._studies[study_id] = {trial._trial_id: trial for trial in trials}
            self._numbers[study_id] = [*self._studies[study_id]]
            self._study_of.update(dict.fromkeys(self._studies[study_id], study_id))
        return self._studies[study_id]

    def _update_trial(self, trial_id: int, field: str, key: str | int, value: Any) -> None:
        """Replace the trial by an updated copy, since callers hold the old object."""
        trials = self._studies[self._study_of[trial_id]]
        trial = copy.copy(trials[trial_id])
        setattr(trial, field, {**getattr(trial, field), key: value})
        trials[trial_id] = trial

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._retry_on_disconnect(lambda: getattr(self._database, method)(*arguments))

    def _retry_on_disconnect(self, action: Callable[[], Answer]) -> Answer:
        """Return the result of `action`. Call it again if the connection is lost."""
        for _ in range(RETRIES):
            try:
                return action()
            except StorageInternalError as error:
                lost = isinstance(error.__cause__, DBAPIError) and error.__cause__.connection_invalidated
                if not lost:
                    raise
        return action()


def _normalize_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
