"""A search as its study has it: what reports, tables and other searches read of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from search.config.objectives import Judged, Objective
from search.errors import UsageError
from search.storage.study_store import open_to_read, url_of
from trainables.filesystem.paths import Place


@dataclass(frozen=True)
class Searched(Judged):
    """A search that ran, or still runs.

    Attributes:
        name: Of the search.
        trials: Those that have begun, by number.
        objectives: The first leads.
        about: What it remembers of itself, see `search.experiment.resume`: `config`, the `first` points that it tried,
            among them the task's defaults, and what was `searched` and `fixed`. Empty if it died before it
            had put that down.
    """

    name: str
    trials: Sequence[FrozenTrial]
    objectives: tuple[Objective, ...]
    about: Mapping[str, Any]

    @property
    def defaults(self) -> FrozenTrial | None:
        """The trial of the task's own values, which a search tries first; None if it was never begun.

        There is none either where one of them lies outside of what is searched: the sampler then chose that one.
        """
        first = self.about.get("first") or [None]
        return next((trial for trial in self.trials if trial.params and trial.params == first[0]), None)


def read(place: Place) -> Searched:
    """The search at `place`, as its study has it.

    Raises:
        UsageError: There is none.
    """
    storage = open_to_read(place, url_of(place))
    study_id = storage.get_study_id_from_name(place.name)
    about = storage.get_study_user_attrs(study_id)
    if "mode" not in about:
        raise UsageError(f"name must be a search that has begun, but {place.name} has not.")
    others = (Objective(metric, mode) for metric, mode in about.get("others", {}).items())
    begun = [trial for trial in storage.get_all_trials(study_id) if trial.state != TrialState.WAITING]
    objectives = (Objective(about["objective"], about["mode"]), *others)
    return Searched(place.name, begun, objectives, about.get("search", {}))
