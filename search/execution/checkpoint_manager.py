"""The checkpoints of a search's trials: which ones are kept, and from which one a trial resumes."""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from optuna.trial import FrozenTrial

from searchlight.search.errors import StoreError
from searchlight.search.folder.deletion_queue import DeletionQueue
from searchlight.search.folder.retry import retry_while_unavailable
from searchlight.search.space.objectives import Objective, select_non_dominated
from searchlight.search.study.trial import (
    WITH_RESULT,
    get_best_epoch,
    get_confirming_run,
    get_outcome,
    get_reports,
    intermediate_values,
    objective_losses,
)
from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import images
from searchlight.trainables.checkpoint.file import DIGEST
from searchlight.trainables.filesystem.paths import (
    StoragePath,
    delete_except,
    get_outage_errors,
    list_sizes,
    may_exist,
    parse_path,
)

logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"


class BestCheckpoints:
    """The checkpoints of ended trials that a search keeps: of the `num_kept` best trials and the Pareto front.

    Of the runs that confirm a config, the best one is kept, too: it is deployed if the config wins. A deleted
    checkpoint is never needed later, since the values of ended trials do not change.
    """

    def __init__(self, objectives: Sequence[Objective], num_kept: int) -> None:
        self._objectives = objectives
        self._num_kept = num_kept
        self._names: dict[int, str] = {}  # by trial
        self._losses: dict[int, tuple[float, ...]] = {}
        self._with_result: set[int] = set()  # these rank before the others
        self._confirmed: dict[int, int | None] = {}  # the confirmed trial, by confirming run

    def add(self, trial: FrozenTrial, name: str) -> None:
        """Add the best checkpoint of a trial that has ended."""
        self._names[trial.number] = name
        self._losses[trial.number] = objective_losses(trial, self._objectives) or ()
        if get_outcome(trial) in WITH_RESULT:
            self._with_result.add(trial.number)
        if (run := get_confirming_run(trial)) is not None:
            self._confirmed[trial.number] = run.trial

    def drop_worst(self) -> dict[int, str]:
        """Drop the trials whose checkpoints are not kept. Return the names of those checkpoints."""
        if len(self._names) <= self._num_kept:
            return {}
        ranked = sorted(self._names, key=lambda n: (n not in self._with_result, self._losses[n][0], n))
        searched = [number for number in ranked if number not in self._confirmed]
        best_runs = {self._confirmed[number]: number for number in reversed(ranked) if number in self._confirmed}
        kept = {*searched[: self._num_kept], *best_runs.values()}
        if len(self._objectives) > 1:
            with_result = self._with_result - self._confirmed.keys()
            kept |= {*select_non_dominated({number: self._losses[number] for number in with_result})}
        dropped = {number: name for number, name in self._names.items() if number not in kept}
        for number in dropped:
            del self._names[number], self._losses[number]
            self._confirmed.pop(number, None)
            self._with_result.discard(number)
        return dropped


class CheckpointManager:
    """The checkpoints of all trials of a search, in a folder per trial.

    Args:
        folder: The parent of the trials' folders.
        objectives: The first one decides which checkpoint of a trial is the best.
        num_kept: The number of ended trials that keep a checkpoint. See `BestCheckpoints`.
    """

    def __init__(self, folder: StoragePath, objectives: Sequence[Objective], num_kept: int) -> None:
        self._folder = folder
        self._objective = objectives[0]
        self._best = BestCheckpoints(objectives, num_kept)
        self._dropped: defaultdict[int, set[int]] = defaultdict(set)  # epochs whose checkpoint is gone, by trial
        self._deletions = DeletionQueue()

    def get_trial_folder(self, number: int) -> StoragePath:
        """Return the folder of a trial's checkpoints."""
        return self._folder / str(number)

    def resume_candidates(self, trial: FrozenTrial, epoch: int) -> list[str | None]:
        """Return the checkpoints up to `epoch`, the newest first. None at the end starts the trial anew."""
        reports = get_reports(trial)
        epochs = [
            known
            for known in sorted(reports, reverse=True)
            if known <= epoch and reports[known]["checkpoint"] is not None
        ]
        newest = [reports[known]["checkpoint"] for known in epochs[:1]]
        earlier = [reports[known]["checkpoint"] for known in epochs[1:] if self._is_kept(trial, known)]
        first = trial.user_attrs.get("copy", {}).get("checkpoint")  # copied from another trial
        return [*newest, *earlier, *([first] if first is not None else []), None]

    def copy(self, parent: FrozenTrial, number: int) -> tuple[str | None, int]:
        """Link the newest checkpoint of `parent` into the folder of trial `number`. Return its path and epoch.

        Return (None, 0) if the parent has no checkpoint: the copy then trains from the start.

        Raises:
            StoreError: The bucket stays unavailable, or the disk cannot be written, e.g. because it is full.
        """
        for epoch, report in sorted(get_reports(parent).items(), reverse=True):
            path = self.get_trial_folder(number) / f"copied-from-{parent.number}.pt"
            if report["checkpoint"] is not None and epoch not in self._dropped[parent.number]:
                source = parse_path(report["checkpoint"])
                # This blocks Tune, so that an unavailable bucket does not end the search.
                try:
                    if retry_while_unavailable(partial(_try_link, source, path), errors=get_outage_errors(path)):
                        return str(path), epoch
                except OSError as error:
                    raise StoreError(f"{path} cannot be written: {error}") from error
        logger.warning("trial %d has no checkpoint to copy: trial %d starts without one", parent.number, number)
        return None, 0

    def replace(self, number: int, epoch: int, before: str | None, now: str) -> None:
        """Delete the checkpoint `before` of a repeated epoch, since it could not be read."""
        if before not in (None, now):
            self._delete(before)
        self._dropped[number].discard(epoch)

    def prune(self, trial: FrozenTrial) -> None:
        """Keep the best and the last two checkpoints of a trial that can continue, as one may be broken.

        A function may report without a checkpoint. The best report with one is kept then.
        """
        paths, kept = self._select_checkpoints(trial, keep_last=True)
        if kept:
            for epoch in paths.keys() - kept - self._dropped[trial.number]:
                self._delete(paths[epoch])
                self._dropped[trial.number].add(epoch)

    def delete_for_ended(self, trials: Sequence[FrozenTrial]) -> None:
        """Keep the best checkpoint of each ended trial if it is among those that the search keeps.

        Delete its other checkpoints, including copied ones, those within epochs, and those of killed drivers. Keep
        pictures of the best report, since MLflow may not have them yet. The study must have recorded the trials' ends:
        a later driver repeats what this one does not finish.
        """
        entries: dict[str, set[str]] = {}
        for trial in trials:
            paths, kept = self._select_checkpoints(trial, keep_last=False)
            self._dropped[trial.number].update(paths.keys() - kept)
            names = [parse_path(paths[epoch]).name for epoch in kept]
            entries[str(trial.number)] = {f"{name}{suffix}" for name in names for suffix in ("", DIGEST, images.SUFFIX)}
            for name in names:
                self._best.add(trial, name)
        entries |= {str(number): {f"{name}{images.SUFFIX}"} for number, name in self._best.drop_worst().items()}
        if entries:
            self._deletions.submit(delete_except, self._folder, entries)

    def close(self) -> None:
        """Wait for deletions in the background."""
        self._deletions.close()

    def _select_checkpoints(self, trial: FrozenTrial, keep_last: bool) -> tuple[dict[int, str], set[int]]:
        """Return the reported checkpoints by epoch, and the epochs of those to keep."""
        paths = {epoch: report["checkpoint"] for epoch, report in get_reports(trial).items() if report["checkpoint"]}
        if not paths.keys() & intermediate_values(trial).keys():
            return paths, set()
        return paths, {get_best_epoch(trial, self._objective, among=paths), *(sorted(paths)[-2:] if keep_last else ())}

    def _is_kept(self, trial: FrozenTrial, epoch: int) -> bool:
        """Return whether the checkpoint of `epoch` was not dropped.

        Buckets are not queried, and drops of earlier drivers are unknown: a worker that finds no checkpoint takes the
        next.
        """
        path = parse_path(get_reports(trial)[epoch]["checkpoint"])
        return epoch not in self._dropped[trial.number] and may_exist(path, in_bucket=True)

    def _delete(self, path: str) -> None:
        """Delete a checkpoint in a trial's folder. Whoever may write the study could name any other path."""
        place = parse_path(path)
        if place.parent.parent == self._folder and place.name != "..":
            self._deletions.submit(checkpoint.delete, place)


def _try_link(source: StoragePath, target: StoragePath) -> bool:
    """Link a checkpoint. Return False if it does not exist any more."""
    try:
        checkpoint.link(source, target)
    except FileNotFoundError:
        return False
    return True


def measure_largest(folder: StoragePath) -> int:
    """Return the size of the largest checkpoint in the folder of all trials, in bytes, or 0 without one.

    Raises:
        OSError: The folder is in a bucket that cannot be read.
    """
    sizes: Counter[str] = Counter()
    for name, size in list_sizes(folder):
        checkpoint_name = "/".join(name.split("/")[:2])  # a directory is one checkpoint
        if not checkpoint_name.endswith((DIGEST, images.SUFFIX)):
            sizes[checkpoint_name] += size
    return max(sizes.values(), default=0)
