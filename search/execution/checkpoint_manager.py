"""The checkpoints of a search's trials: which are kept, and which one a trial goes on from."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from optuna.trial import FrozenTrial

from search.config.objectives import Objective
from search.storage.requests import DeletionQueue, retry_while_unavailable
from search.study.trial import get_best_epoch, get_reports, intermediate_values
from trainables import checkpoint
from trainables.checkpoint.file import DIGEST
from trainables.filesystem.paths import RemotePath, StoragePath, parse_path
from trainables.task import images

logger = logging.getLogger(__name__)


class CheckpointManager:
    """Of all trials of a search, in a folder for each. In a bucket they are deleted in the background.

    Args:
        folder: That holds the trials' folders.
        objective: The objective that decides which checkpoint is the best.
    """

    def __init__(self, folder: StoragePath, objective: Objective) -> None:
        self._folder = folder
        self._objective = objective
        self._dropped: defaultdict[int, set[int]] = defaultdict(set)  # epochs whose checkpoint is gone, by trial
        self._deletions = DeletionQueue() if isinstance(folder, RemotePath) else None

    def get_trial_folder(self, number: int) -> StoragePath:
        """Where the gangs write those of a trial."""
        return self._folder / str(number)

    def resume_candidates(self, trial: FrozenTrial, epoch: int) -> list[str | None]:
        """The newest one up to `epoch`, and those before it in case that it is broken; None begins the trial anew."""
        reports = get_reports(trial)
        epochs = [
            known
            for known in sorted(reports, reverse=True)
            if known <= epoch and reports[known]["checkpoint"] is not None
        ]
        newest = [reports[known]["checkpoint"] for known in epochs[:1]]
        earlier = [reports[known]["checkpoint"] for known in epochs[1:] if self._is_kept(trial, known)]
        first = trial.user_attrs.get("copy", {}).get("checkpoint")  # of the trial that it is a copy of
        return [*newest, *earlier, *([first] if first is not None else []), None]

    def copy(self, parent: FrozenTrial, number: int) -> tuple[str | None, int]:
        """The newest checkpoint of `parent` under a name of its own in the folder of trial `number`, and its epoch.

        (None, 0) if there is none that exists: the copy then trains from the start.

        Raises:
            StoreError: They lie in a bucket that stays away.
        """
        for epoch, report in sorted(get_reports(parent).items(), reverse=True):
            path = self.get_trial_folder(number) / f"copied-from-{parent.number}.pt"
            if report["checkpoint"] is not None and epoch not in self._dropped[parent.number]:
                source = parse_path(report["checkpoint"])
                # Tune waits for it, as it does for the study: a bucket that is away ends no search.
                if (
                    retry_while_unavailable(partial(_try_link, source, path))
                    if isinstance(path, RemotePath)
                    else _try_link(source, path)
                ):
                    return str(path), epoch
        logger.warning("trial %d has no checkpoint to copy: trial %d starts anew", parent.number, number)
        return None, 0

    def replace(self, number: int, epoch: int, before: str | None, now: str) -> None:
        """An epoch was done again, since the checkpoint `before` could not be read."""
        if before not in (None, now):
            self._delete(before)
        self._dropped[number].discard(epoch)

    def prune(self, trial: FrozenTrial, keep_last: bool = True) -> set[str]:
        """Keep the checkpoint of the best report, and the last two while the trial can go on: one may be broken.

        A function may report without one: the best of those that came with one is kept then. Returns their names.
        """
        paths, kept = self._select_checkpoints(trial, keep_last)
        if kept:
            for epoch in paths.keys() - kept - self._dropped[trial.number]:
                self._delete(paths[epoch])
                self._dropped[trial.number].add(epoch)
        return {parse_path(paths[epoch]).name for epoch in kept}

    def delete_for_ended_trial(self, trial: FrozenTrial) -> None:
        """Keep the best alone of a trial that ends, with its pictures: nothing from midway, copied, or of a driver that
        was killed."""
        folder = self.get_trial_folder(trial.number)
        if isinstance(folder, RemotePath):
            self.delete_orphans([trial])
            return
        kept = self.prune(trial, keep_last=False)
        for path in folder.glob("*"):
            if _get_checkpoint_name(path.name) not in kept:
                checkpoint.delete(path)

    def delete_orphans(self, ended: Sequence[FrozenTrial]) -> None:
        """In a bucket, as `clear` for all of `ended`: a driver before this one may not have come to the end of it."""
        if self._deletions is None or not ended:
            return
        names: dict[str, set[str]] = {}
        for trial in ended:
            paths, kept = self._select_checkpoints(trial, keep_last=False)
            self._dropped[trial.number].update(paths.keys() - kept)
            names[str(trial.number)] = {parse_path(paths[epoch]).name for epoch in kept}
        self._deletions.submit(_delete_all_except, self._folder, names)

    def close(self) -> None:
        """Wait for what is being deleted in the background."""
        if self._deletions is not None:
            self._deletions.close()

    def _select_checkpoints(self, trial: FrozenTrial, keep_last: bool) -> tuple[dict[int, str], set[int]]:
        """The checkpoints that were reported, by epoch, and the epochs of those to be kept."""
        paths = {epoch: report["checkpoint"] for epoch, report in get_reports(trial).items() if report["checkpoint"]}
        if not paths.keys() & intermediate_values(trial).keys():
            return paths, set()
        return paths, {get_best_epoch(trial, self._objective, among=paths), *(sorted(paths)[-2:] if keep_last else ())}

    def _is_kept(self, trial: FrozenTrial, epoch: int) -> bool:
        """Whether the checkpoint of `epoch` was not dropped.

        A bucket is not asked, and a driver before this one is not known: a worker that finds none takes the next.
        """
        path = parse_path(get_reports(trial)[epoch]["checkpoint"])
        return epoch not in self._dropped[trial.number] if isinstance(path, RemotePath) else path.exists()

    def _delete(self, path: str) -> None:
        if self._deletions is None:
            checkpoint.delete(parse_path(path))
        else:
            self._deletions.submit(checkpoint.delete, parse_path(path))


def _try_link(source: StoragePath, target: StoragePath) -> bool:
    """Whether there was a checkpoint to link: it may have been dropped."""
    try:
        checkpoint.link(source, target)
    except FileNotFoundError:
        return False
    return True


def _delete_all_except(folder: RemotePath, kept: Mapping[str, set[str]]) -> None:
    """Delete what trials have in the folder of all trials, but for the checkpoints that are `kept`, by number."""
    where = folder / next(iter(kept)) if len(kept) == 1 else folder
    for name in where.list_files():
        file = where / name
        number, _, inside = file.path.removeprefix(f"{folder.path}/").partition("/")
        if number in kept and _get_checkpoint_name(inside.partition("/")[0]) not in kept[number]:
            file.unlink(missing_ok=True)


def _get_checkpoint_name(name: str) -> str:
    """The name of the checkpoint that something beside it belongs to."""
    return name.removesuffix(DIGEST).removesuffix(images.SUFFIX)
