"""The data sets that trials were trained and evaluated on."""

from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial

Told = Mapping[str, str]  # a data set as a report has it: name, digest, source, use


def get_datasets(trial: FrozenTrial) -> list[dict[str, str]]:
    """What a trial said that it uses."""
    return list(trial.user_attrs.get("datasets", []))


class Datasets:
    """The data sets of a search that is taken up, or begins.

    A task may take other data in each trial, since its config says so. So data is known to have changed if the trial
    itself had other data before, or if all trials of an earlier driver had the same.

    Args:
        earlier: Trials of the drivers before this one.
    """

    def __init__(self, earlier: Sequence[FrozenTrial]) -> None:
        self._of_trial = {trial.number: _get_digests(get_datasets(trial)) for trial in earlier}
        self._of_all: dict[tuple[str, str], set[str]] = {}
        for digests in self._of_trial.values():
            for key, digest in digests.items():
                self._of_all.setdefault(key, set()).add(digest)
        self._said: set[tuple[str, str]] = set()

    def describe_changes(self, number: int, datasets: Sequence[Told]) -> list[str]:
        """What is to be told of the data of a trial, a line for each data set that has changed, once."""
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
