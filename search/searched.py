"""A search as its study has it: what reports, tables and other searches read of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from search.objectives import Judged, Objective


@dataclass(frozen=True)
class Searched(Judged):
    """A search that ran, or still runs.

    Attributes:
        name: Of the search.
        trials: Those that have begun, by number.
        objectives: The first leads.
        about: What it remembers of itself, see `search.resume`: `config`, the `first` points that it tried, among them
            the task's defaults, and what was `searched` and `fixed`. Empty if it died before it had put that down.
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
