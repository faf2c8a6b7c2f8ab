"""The data sets that trials were trained and evaluated on."""

from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial

Told = Mapping[str, str]  # a data set in a report: name, digest, source, use


def get_datasets(trial: FrozenTrial) -> list[dict[str, str]]:
    """Return the data sets that a trial has reported."""
    return list(trial.user_attrs.get("datasets", []))


class Datasets:
    """The data sets of a new or resumed search.

    A task may use other data in each trial, depending on its config. Data has therefore changed only if the trial
    itself had other data before, or if all trials of earlier drivers had the same data.

    Args:
        earlier: Trials of earlier drivers.
    """

    def __init__(self, earlier: Sequence[FrozenTrial]) -> None:
        self._of_trial = {trial.number: _get_digests(get_datasets(trial)) for trial in earlier}
        self._of_all: dict[tuple[str, str], set[str]] = {}
        for digests in self._of_trial.values():
            for key, digest in digests.items():
                self._of_all.setdefault(key, set()).add(digest)
        self._said: set[tuple[str, str]] = set()

    def describe_changes(self, number: int, datasets: Sequence[Told]) -> list[str]:
        """Return a line for each data set of a trial that has changed, once per data set."""
        lines = []
        for (name, use), digest in _get_digests(datasets).items():
            own, all_ = self._of_trial.get(number, {}).get((name, use)), self._of_all.get((name, use), set())
            before = own if own is not None else next(iter(all_)) if len(all_) == 1 else digest
            if before != digest and (name, use) not in self._said:
                self._said.add((name, use))
                lines.append(
                    f"the {use} data {name!r} changed since the search last ran: its digest was {before[:12]}, and is "
                    f"{digest[:12]}. Values before and after do not compare"
                )
        return lines


def _get_digests(datasets: Sequence[Told]) -> dict[tuple[str, str], str]:
    return {(data["name"], data["use"]): data["digest"] for data in datasets}
