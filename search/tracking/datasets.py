"""What the trials of a search train and evaluate on, and whether that is what it was."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

CONTEXT = "mlflow.data.context"  # the tag by which MLflow's UI says what data is used for
LONGEST_DIGEST = 36  # that MLflow takes
Told = Mapping[str, str]  # a data set as a report has it: name, digest, source, use


def datasets_of(trial: FrozenTrial) -> list[dict[str, str]]:
    """What a trial said that it uses."""
    return list(trial.user_attrs.get("datasets", []))


def as_inputs(datasets: Sequence[Told]) -> "dict[tuple[str, str], DatasetInput]":
    """Data sets as MLflow takes them, by name and digest: a run has one input for each, whatever it is used for."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    uses: dict[tuple[str, str], list[str]] = {}
    for data in datasets:
        uses.setdefault((data["name"], data["digest"][:LONGEST_DIGEST]), []).append(data["use"])
    sources = {(data["name"], data["digest"][:LONGEST_DIGEST]): data["source"] for data in datasets}
    return {
        key: DatasetInput(Dataset(*key, *_source(sources[key])), [InputTag(CONTEXT, ", ".join(used))])
        for key, used in uses.items()
    }


def _source(text: str) -> tuple[str, str]:
    """The kind of a source and the source, as MLflow has them."""
    if not text:
        return "code", json.dumps({"tags": {}})
    if text.startswith(("http://", "https://")):
        return "http", json.dumps({"url": text})
    return "local", json.dumps({"uri": text})


class Datasets:
    """The data sets of a search that is taken up, or begins.

    A task may take other data in each trial, since its config says so. So data is known to have changed if the trial
    itself had other data before, or if all trials of an earlier driver had the same.

    Args:
        earlier: Trials of the drivers before this one.
    """

    def __init__(self, earlier: Sequence[FrozenTrial]) -> None:
        self._of_trial = {trial.number: _digests(datasets_of(trial)) for trial in earlier}
        self._of_all: dict[tuple[str, str], set[str]] = {}
        for digests in self._of_trial.values():
            for key, digest in digests.items():
                self._of_all.setdefault(key, set()).add(digest)
        self._said: set[tuple[str, str]] = set()

    def changed(self, number: int, datasets: Sequence[Told]) -> list[str]:
        """What is to be told of the data of a trial, a line for each data set that has changed, once."""
        lines = []
        for (name, use), digest in _digests(datasets).items():
            own, all_ = self._of_trial.get(number, {}).get((name, use)), self._of_all.get((name, use), set())
            before = own if own is not None else next(iter(all_)) if len(all_) == 1 else digest
            if before != digest and (name, use) not in self._said:
                self._said.add((name, use))
                lines.append(
                    f"the {use} data {name!r} changed since the search last ran: its digest was {before[:12]}, and is "
                    f"{digest[:12]}. Values before and after do not compare"
                )
        return lines


def _digests(datasets: Sequence[Told]) -> dict[tuple[str, str], str]:
    return {(data["name"], data["use"]): data["digest"] for data in datasets}
