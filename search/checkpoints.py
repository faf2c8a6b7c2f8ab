"""The checkpoints of a search's trials: which are kept, and which one a trial goes on from."""

import logging
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from optuna.trial import FrozenTrial

from search.trials import best_epoch, curve_of, reports_of
from trainables import checkpoint, pictures

logger = logging.getLogger(__name__)


class Checkpoints:
    """Of all trials of a search, in a folder for each.

    Args:
        folder: That holds the trials' folders.
        mode: Of the objective that says which is the best.
    """

    def __init__(self, folder: Path, mode: str) -> None:
        self._folder = folder
        self._mode = mode
        self._dropped: defaultdict[int, set[int]] = defaultdict(set)  # epochs whose checkpoint is gone, by trial

    def folder_of(self, number: int) -> Path:
        """Where the gangs write those of a trial."""
        return self._folder / str(number)

    def to_go_on_from(self, trial: FrozenTrial, epoch: int) -> list[str | None]:
        """The newest one up to `epoch`, and those before it in case that it is broken; None begins the trial anew."""
        reports = reports_of(trial)
        paths = [
            reports[known]["checkpoint"]
            for known in sorted(reports, reverse=True)
            if known <= epoch and reports[known]["checkpoint"] is not None
        ]
        earlier = [path for path in paths[1:] if Path(path).exists()]  # the others were dropped
        first = trial.user_attrs.get("copy", {}).get("checkpoint")  # of the trial that it is a copy of
        return [*paths[:1], *earlier, *([first] if first is not None else []), None]

    def copy(self, parent: FrozenTrial, number: int) -> tuple[str | None, int]:
        """The newest checkpoint of `parent` under a name of its own in the folder of trial `number`, and its epoch.

        (None, 0) if there is none that exists: the copy then trains from the start.
        """
        for epoch, report in sorted(reports_of(parent).items(), reverse=True):
            path = self.folder_of(number) / f"copied-from-{parent.number}.pt"
            with suppress(FileNotFoundError):  # it was dropped
                if report["checkpoint"] is not None:
                    checkpoint.link(Path(report["checkpoint"]), path)
                    return str(path), epoch
        logger.warning("trial %d has no checkpoint to copy: trial %d starts anew", parent.number, number)
        return None, 0

    def replace(self, number: int, epoch: int, before: str | None, now: str) -> None:
        """An epoch was done again, since the checkpoint `before` could not be read."""
        if before not in (None, now):
            checkpoint.delete(Path(before))
        self._dropped[number].discard(epoch)

    def drop(self, trial: FrozenTrial, keep_last: bool = True) -> set[str]:
        """Keep the checkpoint of the best report, and the last two while the trial can go on: one may be broken.

        A function may report without one: the best of those that came with one is kept then. Returns their names.
        """
        paths = {epoch: report["checkpoint"] for epoch, report in reports_of(trial).items() if report["checkpoint"]}
        if not paths.keys() & curve_of(trial).keys():
            return set()
        kept = {best_epoch(trial, self._mode, among=paths)}
        if keep_last:
            kept.update(sorted(paths)[-2:])
        for epoch in paths.keys() - kept - self._dropped[trial.number]:
            checkpoint.delete(Path(paths[epoch]))
            self._dropped[trial.number].add(epoch)
        return {Path(paths[epoch]).name for epoch in kept}

    def clear(self, trial: FrozenTrial) -> None:
        """Keep the best alone of a trial that ends, with its pictures: nothing from midway, copied, or of a driver that
        was killed."""
        kept = self.drop(trial, keep_last=False)
        for path in self.folder_of(trial.number).glob("*"):
            if path.name.removesuffix(".sha256").removesuffix(pictures.SUFFIX) not in kept:
                checkpoint.delete(path)
