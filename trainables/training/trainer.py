"""Training of one trial in memory: its epochs, evaluations and reports."""

import copy
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim.lr_scheduler import ReduceLROnPlateau

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import fork, sharded
from searchlight.trainables.checkpoint.images import Picture
from searchlight.trainables.checkpoint.placement import move_back, note_devices
from searchlight.trainables.context import rng
from searchlight.trainables.filesystem.paths import StoragePath, may_exist
from searchlight.trainables.isolation.determinism import use_deterministic_algorithms
from searchlight.trainables.precision import AUTO, Diverged, choose_common
from searchlight.trainables.task import Task
from searchlight.trainables.training.build_checks import GradientCheck, check_build, get_parameter_ids
from searchlight.trainables.training.divergence import (
    LossDivergenceDetector,
    check_finite,
    check_skipped_windows,
    check_weights,
    find_non_finite_parts,
)
from searchlight.trainables.training.epoch_metrics import EpochTotals, get_metric_prefix, training_metrics
from searchlight.trainables.training.evaluation import evaluate, render_images
from searchlight.trainables.training.resource_usage import ResourceUsage, aggregate_usage
from searchlight.trainables.training.updaters import create_updater
from searchlight.trainables.update import Updater, UpdateReport, windows
from searchlight.trainables.update.buffers import Buffers, resize_buffers
from searchlight.trainables.update.parameters import is_sharded, move_state_to_parameters
from searchlight.trainables.update.reduction import get_world_size

logger = logging.getLogger(__name__)
Sum = torch.Tensor | float
BUILD = 1  # the purpose of random numbers drawn by `build`, in addition to epochs and transforms
ENDLESS = 1000  # windows without weight in a row after which a stream counts as empty


class TrialTrainer:
    """One trial on one rank, from `build` on.

    All random numbers are seeded for each epoch from (seed, epoch, rank). So a trial that resumes from a checkpoint
    gives the same results as one that was never interrupted.

    Attributes:
        epoch: The number of finished epochs.
        windows: The number of finished windows of the next epoch.
        seconds: The seconds of training and evaluation in the current epoch, or in the last one between two epochs.
        pictures: The images that the task rendered of the last epoch, on rank 0. Empty unless that is the best so far.
        on_progress: A function that is called when an evaluation starts and when it has ended, as a sign of progress.
        autosave: The path and the interval in seconds of checkpoints within an epoch. None: no such checkpoints.

    Raises:
        ValueError: The task's `build` did not set a required attribute, or named an object that it did not create.
    """

    def __init__(self, task: Task[Any]) -> None:
        if task.context.world_size != get_world_size():
            raise ValueError(
                f"context.world_size must be that of the process group, {get_world_size()}, but got "
                f"{task.context.world_size}."
            )
        self.task = task
        self.epoch = 0
        self.windows = 0
        self.seconds = 0.0
        self.pictures: dict[str, Picture] = {}
        self._best: float | None = None  # the lowest cost of an evaluation
        self._excess_samples = 0.0  # samples that finished epochs of a stream took in excess: the next one takes fewer
        self.on_progress: Callable[[], None] = lambda: None
        self.autosave: tuple[StoragePath, float] | None = None
        self._was_midway = False  # whether there is a checkpoint from within the epoch
        self._usage = ResourceUsage(task.context.device)
        if task.config.precision == AUTO:
            task.precision = choose_common(task.context.gather(task.precision))
        if task.config.deterministic:
            use_deterministic_algorithms()
        # The same seed on all ranks, since a data split or a fixed projection that build draws must not differ.
        rng.seed(task.context.generator, 0, task.config.seed, 0, BUILD)
        task.build()
        named = check_build(task)
        for module in task.modules.values():
            module.to(task.context.device)
        for optimizer in task.optimizers.values():
            move_state_to_parameters(optimizer)
        self._buffers = Buffers(task.modules)
        self._sharded = is_sharded(named.values())
        task.context.any(False)  # wait for the slowest build here: in a broadcast, NCCL's hang detector would count
        task.context.broadcast([parameter for parameter in named.values() if not is_sharded([parameter])])
        self._buffers.broadcast(task.context)
        trained = {name for name, parameter in named.items() if parameter.requires_grad}
        self._not_finite_at_start = {*find_non_finite_parts(task.modules)} - trained
        self._tallies = {name: EpochTotals() for name in task.updates}
        self._blowups = {name: LossDivergenceDetector() for name in task.updates}
        self._gradient_checks = {name: GradientCheck(task, name) for name in task.updates}
        self._plateaus: list[ReduceLROnPlateau] = [s for s in task.schedulers if isinstance(s, ReduceLROnPlateau)]
        task.updaters = {name: self._create_updater(name, named) for name in task.updates}
        self._built = fork.initial_state(task, self._plateaus)
        self._remaining: Iterator[list[Any]] | None = None  # windows of the current epoch
        self._task_at_start: dict[str, Any] = {}  # the task's state at the start of the epoch
        self._writer = checkpoint.Writer()
        if task.config.precision == AUTO:
            logger.info("precision auto is %s on %s", task.precision, task.context.device)

    @property
    def current(self) -> int:
        """The current epoch, or the last one between two epochs, counted from 1."""
        return self.epoch + (self._remaining is not None)

    @property
    def samples(self) -> float:
        """The weight that the first update was trained on in the current epoch, summed over ranks."""
        return next(iter(self._tallies.values())).weight

    def run_epoch(self, stopping: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Train and evaluate one epoch, or the rest of it.

        Args:
            stopping: A function that is called between windows. True on any rank stops all ranks after the current
                window.

        Returns:
            The report of the epoch, or None if it was stopped. A stopped trial is between two windows, where it can be
            saved and resumed.

        Raises:
            Diverged: The trial cannot continue, or its objective is not a finite number.
            ValueError: `evaluate` does not return the objective, or returns a name of training, or a module does not
                learn.
        """
        task, start = self.task, time.perf_counter()
        if self._remaining is None:
            self._begin_epoch()
        finished = self._train(stopping)
        self.seconds += time.perf_counter() - start
        if not finished:
            return None
        self._remaining = None
        self.epoch += 1
        self.windows = 0
        if task.epoch_samples is not None:
            self._excess_samples = max(0.0, self._excess_samples + self.samples - task.epoch_samples)
        steps = sum(updater.steps for updater in task.updaters.values())
        check_skipped_windows(self._tallies.values(), self.epoch, steps, self.epoch >= task.config.epochs)
        for name, check in self._gradient_checks.items():
            check.finish_epoch(task.updaters[name])
        trained = time.perf_counter()
        metrics = training_metrics(self.task, self._tallies, self.seconds)
        evaluated = self.evaluate()
        if taken := sorted(metrics.keys() & evaluated.keys()):
            raise ValueError(f"evaluate must return other names than training reports, but got {', '.join(taken)}.")
        metrics |= evaluated
        if task.objective not in metrics:
            raise ValueError(
                f"evaluate must return the objective {task.objective!r}, but got {', '.join(sorted(metrics))}."
            )
        cost = metrics[task.objective] * (-1 if task.mode == "max" else 1)
        self.pictures = self._render_images(cost)
        self.seconds += time.perf_counter() - trained
        metrics["time/epoch_s"] = self.seconds
        metrics |= aggregate_usage(task.context.gather(self._usage.measure()))
        if not math.isfinite(metrics[task.objective]):
            reason = f"{task.objective} is {metrics[task.objective]} after epoch {self.epoch}"
            raise Diverged(reason, metrics, agreed=True, kind="objective")
        for blowup in self._blowups.values():
            blowup.add_evaluation(cost)
        for plateau in self._plateaus:
            plateau.step(metrics[task.objective])  # once per epoch, since it counts metrics and not updates
        return metrics

    def save(self, path: StoragePath) -> None:
        """Save the trial between two windows. Call this on all ranks: rank 0 writes, and each rank writes its shards.

        Raises:
            CheckpointError: The state has other objects than tensors and plain Python values.
            Diverged: A weight is not finite. Such a checkpoint must not replace a good one.
        """
        state = self._get_state()
        if self.task.context.rank == 0:
            self._writer.wait()  # it may still write or delete the checkpoint of that name
        if self._sharded:
            sharded.save(state, path, self.task.context)
        elif self.task.context.rank == 0:
            checkpoint.save(state, path)

    def begin_save(self, path: StoragePath, replaced: StoragePath | None = None) -> None:
        """Save the trial as `save` does, but let training continue while rank 0 writes. Call this on all ranks.

        Sharded modules are written at once, since all ranks must agree whether they could be.

        Args:
            path: The path of the checkpoint.
            replaced: A checkpoint from the middle of the epoch, which is deleted once the new one is written.

        Raises:
            Diverged: A weight is not finite.
            OSError: An earlier checkpoint could not be written.
        """
        is_writer = self.task.context.rank == 0
        if self._sharded:
            self.save(path)
            if is_writer and replaced is not None:
                self.discard(replaced)
            return
        state = self._get_state()
        if is_writer:
            self._writer.wait()
            # A check for a missing checkpoint takes six requests in a bucket.
            exists = replaced is not None and may_exist(replaced, in_bucket=self._was_midway)
            self._writer.save(state, path, replaced if exists else None)
        self._was_midway = self._was_midway and replaced is None

    @property
    def is_saved(self) -> bool:
        """Whether no checkpoint is being written by this rank. `finish_save` tells if it could not be."""
        return self._writer.is_idle

    def finish_save(self) -> None:
        """Wait until the checkpoint of `begin_save` is on the storage.

        Raises:
            OSError: It could not be written.
        """
        self._writer.wait()

    def discard(self, path: StoragePath) -> None:
        """Delete the checkpoint from the middle of an epoch. Call this on rank 0.

        In a bucket the deletion runs in the background.
        """
        if may_exist(path, in_bucket=self._was_midway):  # see begin_save
            self._writer.delete(path)
        self._was_midway = False

    def load(self, path: StoragePath) -> None:
        """Resume the trial from the checkpoint at `path`."""
        self.restore(checkpoint.load(path))

    def restore(self, state: dict[str, Any], of_another: bool = False) -> None:
        """Resume the trial from `state`, the content of a checkpoint.

        If `of_another`, the weights, moments and counters are those of another trial, and the hyperparameters those of
        this one.

        Raises:
            CheckpointError: The checkpoint is from the middle of an epoch and another number of ranks.
            ValueError: The weights of the other trial have other shapes.
        """
        task, midway = self.task, state["midway"]
        if midway is not None and len(midway["ranks"]) != task.context.world_size:
            raise checkpoint.CheckpointError(
                f"a checkpoint from the middle of epoch {state['epoch'] + 1} must be resumed by as many ranks as "
                f"saved it, {len(midway['ranks'])}, but got {task.context.world_size}. "
                "Use one from the end of an epoch."
            )
        if self._sharded or sharded.FOLDER in state:
            state = sharded.fill(state, sharded.get_layouts(task))
        if of_another:
            fork.check_shapes(task, state)
            state = fork.adapt_state(state, self._built)
        state = move_back(state, task.context.device)
        midway = state["midway"]
        for name, module in task.modules.items():
            resize_buffers(module, state["modules"][name], task.context.device)
            module.load_state_dict(state["modules"][name])
        if state.get("buffers"):  # checkpoints of earlier versions have none
            self._buffers.set_temporary_values(state["buffers"], task.context.device)
        is_loaded = self._has_other_groups(state)
        if is_loaded:  # the task may add what training had added, such as a layer to unfreeze
            task.load_state_dict(dict(state["task"]))
        for name, updater in task.updaters.items():
            updater.load_state_dict(state["updaters"][name])
        for plateau, saved in zip(self._plateaus, state["plateaus"], strict=True):
            plateau.load_state_dict(saved)
        self._blowups = {name: LossDivergenceDetector(**saved) for name, saved in state["blowups"].items()}
        for name, check in self._gradient_checks.items():
            check.load_state_dict(state.get("gradient_checks", {}).get(name))
        self._best = None if of_another else state["best"]
        self.epoch = state["epoch"]
        self.windows = 0
        self._excess_samples = state["ahead"]
        self._remaining = None
        if midway is not None:
            self._was_midway = True
            self._replay_epoch(midway)
        if midway is not None or not is_loaded:
            task.load_state_dict(state["task"])
        if midway is not None:
            context = task.context
            # Last, since the code above may draw random numbers.
            rng.set_state(midway["ranks"][context.rank]["rng"], context.generator, context.device)

    def _has_other_groups(self, state: Mapping[str, Any]) -> bool:
        """Return whether an optimizer has another number of parameter groups than in `state`."""
        return any(
            len(optimizer.param_groups) != len(state["updaters"][name]["optimizers"][key]["param_groups"])
            for name, updater in self.task.updaters.items()
            for key, optimizer in updater.optimizers.items()
        )

    def close(self) -> None:
        """Close the data loaders of an unfinished epoch, and wait until the checkpoint is written."""
        self._remaining = None  # a loader that the garbage collector closes waits five seconds for each process
        try:
            self._writer.close()
        except Exception as error:  # any, since the trial has ended: nothing would read this checkpoint
            logger.warning("a checkpoint from the middle of an epoch could not be written: %s", error)
        self.task.context.close()

    def _get_state(self) -> dict[str, Any]:
        task = self.task
        when = f"after epoch {self.epoch}, window {self.windows}"
        check_finite(task.modules, task.context, when, self._not_finite_at_start)
        midway = self._get_mid_epoch_state() if self._remaining is not None else None
        if midway is None:
            self._buffers.broadcast(task.context)
        state = {
            "epoch": self.epoch,
            "midway": midway,
            "ahead": self._excess_samples,
            "best": self._best,
            "config": task.config.model_dump(mode="json", round_trip=True),
            "modules": {name: module.state_dict() for name, module in task.modules.items()},
            "buffers": self._buffers.get_temporary_values() if midway is None else {},  # each rank has its own midway
            "updaters": {name: updater.state_dict() for name, updater in task.updaters.items()},
            "built": self._built,
            "plateaus": [plateau.state_dict() for plateau in self._plateaus],
            "blowups": {name: asdict(blowup) for name, blowup in self._blowups.items()},
            "gradient_checks": {name: check.state_dict() for name, check in self._gradient_checks.items()},
            "task": task.state_dict(),
        }
        return note_devices(checkpoint.make_plain(state), task.context.device)

    def _get_mid_epoch_state(self) -> dict[str, Any]:
        """Return the state that an unfinished epoch needs in addition to `_get_state`, gathered from all ranks."""
        self._was_midway = True
        self.task.keep_noted()
        rank_state = {
            "rng": rng.get_state(self.task.context.generator, self.task.context.device),
            "noted": {name: _move_sums(sums, "cpu") for name, sums in self.task.noted.items()},
            "buffers": self._buffers.get_values(),
        }
        return {
            "windows": self.windows,
            "seconds": self.seconds,
            "tallies": {name: asdict(tally) for name, tally in self._tallies.items()},
            "task_at_start": self._task_at_start,
            "ranks": self.task.context.gather(rank_state),
        }

    def _replay_epoch(self, midway: Mapping[str, Any]) -> None:
        """Start the epoch again and draw the trained windows, so that the next window is the right one."""
        task = self.task
        task.load_state_dict(midway["task_at_start"])
        self._begin_epoch()
        assert self._remaining is not None
        for _ in itertools.islice(self._remaining, midway["windows"]):
            pass
        rank_state = midway["ranks"][task.context.rank]
        self.windows = midway["windows"]
        self.seconds = midway["seconds"]
        self._tallies.update((name, EpochTotals(**tally)) for name, tally in midway["tallies"].items())
        task.noted.update((name, _move_sums(sums, task.context.device)) for name, sums in rank_state["noted"].items())
        self._buffers.set_values(rank_state["buffers"], task.context.device)

    def _begin_epoch(self) -> None:
        task = self.task
        rng.seed(task.context.generator, task.context.rank, task.config.seed, self.epoch)
        self._usage.begin()
        self._tallies = {name: EpochTotals() for name in task.updates}
        task.noted.clear()
        task.noting.clear()
        self.windows = 0
        self.seconds = 0.0
        self._task_at_start = copy.deepcopy(task.state_dict())
        batches = task.train_batches(self.epoch)
        if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):  # `iter` takes either
            raise ValueError(
                f"train_batches must return an iterable of micro-batches, but got {type(batches).__name__}."
            )
        self._remaining = windows(batches, task.config.accumulation)

    def _train(self, stopping: Callable[[], bool]) -> bool:
        """Train the rest of the epoch and return whether it finished.

        Each drawn window is trained, since drawing it advances the random generators.
        """
        task, alone = self.task, self.task.context.world_size == 1
        assert self._remaining is not None
        saved_at, weightless = time.monotonic(), 0
        (stop,) = task.context.any(stopping())
        while not stop and (
            task.epoch_samples is None or not self.windows or self._excess_samples + self.samples < task.epoch_samples
        ):
            window = next(self._remaining, [])
            due = self.autosave is not None and time.monotonic() > saved_at + self.autosave[1]
            # Ranks may have different numbers of windows, so all continue until the last one is done. The same call
            # makes them stop at the same window.
            more, stop, due = task.context.any(bool(window), not alone and stopping(), due)
            if not more:
                return True
            before = self.samples
            task.update(window)
            self.windows += 1
            weightless = weightless + 1 if self.samples == before else 0
            if task.epoch_samples is not None and weightless >= ENDLESS:
                raise ValueError(
                    f"train_batches must give {task.epoch_samples:g} samples, but {ENDLESS} windows in a row had none."
                )
            if due and self.autosave is not None:
                self.begin_save(self.autosave[0])
                saved_at = time.monotonic()
            stop = stop or (alone and stopping())
        return not stop

    def evaluate(self) -> dict[str, float]:
        """Return the current metrics of the trial, reduced over ranks. The evaluation changes no state."""
        self.on_progress()
        metrics = evaluate(self.task, self._buffers)
        self.on_progress()
        return metrics

    def _render_images(self, cost: float) -> dict[str, Picture]:
        """Return the images of the epoch if its `cost` is the lowest so far, else an empty dict."""
        if not math.isfinite(cost) or (self._best is not None and cost >= self._best):
            return {}
        self._best = cost
        pictures = render_images(self.task, self._buffers)
        self.on_progress()
        return pictures

    def _create_updater(self, name: str, named: Mapping[str, Parameter]) -> Updater:
        task = self.task
        owned = get_parameter_ids([task.optimizers[key] for key in task.updates[name]])
        # Frozen ones too, since a task may unfreeze them.
        parameters = {key: p for key, p in named.items() if id(p) in owned}

        def on_update(report: UpdateReport) -> None:
            self._tallies[name].add(report, has_loss_scale=task.updaters[name].loss_scale is not None)
            if report.outcome == "applied":
                task.keep_noted()
                self._check_loss_divergence(name, report.loss)
            elif report.outcome == "skipped" and task.updaters[name].consecutive_skips == 1:
                check_weights(parameters, task.context, task.updaters[name].steps, report)
            task.noting.clear()  # after a window that was not applied, too
            self._gradient_checks[name].add(task.updaters[name], report)
            task.after_update(report)
            task.keep_noted()

        return create_updater(task, name, parameters, on_update)

    def _check_loss_divergence(self, name: str, loss: float) -> None:
        rise, blowup = self.task.config.max_loss_rise, self._blowups[name]
        if rise is not None and blowup.add(loss, rise):
            where = f"by epoch {self.epoch + 1}, window {self.windows + 1}"
            reason = f"{get_metric_prefix(name)}/loss rose to {loss:.3g} from {blowup.first[0]:.3g} {where}"
            raise Diverged(reason, agreed=True, kind="loss")


def train(task: Task[Any], epochs: int | None = None) -> Iterator[dict[str, float]]:
    """Train `task` in this process and yield the metrics of each epoch. Use it in tests, notebooks and debuggers.

    Args:
        task: The task, with its config.
        epochs: The number of epochs. Default: `task.config.epochs`.
    """
    training = TrialTrainer(task)
    while training.epoch < (epochs or task.config.epochs):
        if (metrics := training.run_epoch()) is not None:
            yield metrics


def _move_sums(sums: tuple[Sum, Sum], device: str | torch.device) -> tuple[Sum, Sum]:
    first, second = (part.to(device) if isinstance(part, torch.Tensor) else part for part in sums)
    return first, second
