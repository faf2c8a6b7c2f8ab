"""The cost of an epoch: seconds, memory, and the largest micro-batch that fits."""

import copy
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from searchlight.trainables.context import Context, rng
from searchlight.trainables.precision import Diverged, Precision
from searchlight.trainables.preflight.checks.errors import name_error
from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, describe_error, make_finding
from searchlight.trainables.preflight.gradients import Prober, measure_saved
from searchlight.trainables.preflight.observation import UNLIMITED, ObservedTrial
from searchlight.trainables.preflight.samples import count_samples, select
from searchlight.trainables.registry import find_user_frame
from searchlight.trainables.task import Task, TaskConfig
from searchlight.trainables.training.resource_usage import GPU_MEMORY, MEMORY, ResourceUsage, measure_usable_memory
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import windows
from searchlight.trainables.update.parameters import get_parameters

WARM_UP = 2  # windows that are slower than those after them
EPOCHS = 4  # of a short epoch that are timed; the first one also sets up kernels and memory
PATIENCE = 3  # times the limit until they are done
DOMINATES = 0.5  # share of an epoch, or of a trial of one epoch
FP32_BYTES = 4
GROWTH = (1, 2)  # micro-batches that memory is measured with, in multiples of the task's own


declare_kinds(
    "Cost",
    Kind("config-fails", "warning", "Narrow the range, or correct the task for this corner of the space."),
    Kind("evaluation-dominates", "note", "Evaluate on fewer samples."),
    Kind("start-dominates", "note", "Keep in self.context.cache what build loads or prepares."),
)


@dataclass(frozen=True)
class EpochCost:
    """The cost of an epoch of one config.

    Attributes:
        where: The config, "" for the defaults.
        samples: The number of samples of a micro-batch.
        epoch_s: The seconds of training and evaluation. None if the epoch is too long to count its windows.
        measured: Whether the whole epoch ran, and was not extrapolated from its first windows.
        peak_bytes: The peak memory of the GPU, or of the process on a CPU.
        largest: The largest micro-batch that fits, in samples. None if it is unknown.
    """

    where: str
    precision: str
    samples: int
    build_s: float
    epoch_s: float | None
    evaluate_s: float
    windows: int | None
    measured: bool
    peak_bytes: int
    largest: int | None = None


def measure_cost(
    task_class: type[Task[Any]],
    config: TaskConfig,
    context: Context,
    where: str,
    limit_s: float,
    evaluate_s: float | None = None,
) -> tuple[EpochCost | None, list[Finding], float | None]:
    """Train an epoch, or as much of it as `limit_s` seconds allow, exactly as a trial does.

    Args:
        evaluate_s: The seconds of an evaluation, if known.

    Returns:
        The cost, the findings, and the objective at the end of the epoch.
    """
    trainer: TrialTrainer | None = None
    usage, start = ResourceUsage(context.device), time.perf_counter()
    try:
        task = task_class(config.model_copy(update=UNLIMITED), context.for_next_trial())
        trainer = TrialTrainer(task)
        build_s = time.perf_counter() - start
        samples = _watch_samples(task)
        metrics, epoch_s, evaluate_s, count = _train_epoch(trainer, limit_s, evaluate_s)
        taken = usage.measure()
        peak = int(taken.get(GPU_MEMORY, taken.get(MEMORY, 0.0)) * 2**30)
        cost = EpochCost(
            where, task.precision, samples[0], build_s, epoch_s, evaluate_s, count, metrics is not None, peak
        )
        return cost, _find_shares(cost, where), (metrics or {}).get(task.objective)
    except Diverged:  # an answer to the search, as of a learning rate that is too high
        return None, [], None
    except Exception as error:  # whatever a corner of the space makes the task raise
        kind = "does-not-fit" if name_error(error, "train") == "does-not-fit" else "config-fails"
        line = find_user_frame("".join(traceback.format_exception(error))) or "the task"
        return None, [make_finding(kind, line, describe_error(error), "warning", where)], None
    finally:
        if trainer is not None:
            trainer.close()


def _train_epoch(
    trainer: TrialTrainer, limit_s: float, evaluate_s: float | None
) -> tuple[dict[str, float] | None, float | None, float, int | None]:
    """Return the metrics (None if the time ran out), the seconds of epoch and evaluation, and the windows."""
    state, most = copy.deepcopy(trainer.task.state_dict()), trainer.task.config.epochs
    began, warm, marks = time.perf_counter(), 0.0, list[float]()

    def stopping() -> bool:
        nonlocal warm
        if trainer.windows == WARM_UP:
            warm = time.perf_counter() - began
        spent = time.perf_counter() - began
        return spent > limit_s * (1 if trainer.windows > WARM_UP else PATIENCE)

    trainer.on_progress = lambda: marks.append(time.perf_counter())  # an evaluation begins, and has ended
    metrics = trainer.run_epoch(stopping)
    took = time.perf_counter() - began
    if metrics is not None:
        timed = [(trainer.seconds, marks[1] - marks[0])]
        with suppress(Diverged):  # the first one is known
            while len(timed) < EPOCHS and (len(timed) + 1) * took < limit_s and trainer.epoch < most:
                marks.clear()
                trainer.run_epoch()
                timed.append((trainer.seconds, marks[1] - marks[0]))
        return metrics, *min(timed), None  # other processes only make an epoch slower
    done, seconds = trainer.windows, evaluate_s
    if seconds is None:
        start = time.perf_counter()
        trainer.evaluate()
        seconds = time.perf_counter() - start
    trainer.task.load_state_dict(state)  # what an epoch begins with
    total = _count_windows(trainer.task, done, trainer.samples, limit_s)
    per_window = (took - warm) / (done - WARM_UP) if done > WARM_UP else took / max(1, done)
    return None, None if total is None else total * per_window + seconds, seconds, total


def _find_shares(cost: EpochCost, where: str) -> list[Finding]:
    findings = []
    if cost.epoch_s and cost.evaluate_s > DOMINATES * cost.epoch_s and cost.evaluate_s > 0.1:
        figure = f"{cost.evaluate_s:.2g} of {cost.epoch_s:.2g} s of an epoch"
        findings.append(make_finding("evaluation-dominates", "evaluate", figure, where=where))
    if cost.epoch_s and cost.build_s > cost.epoch_s and cost.build_s > 1:
        figure = f"{cost.build_s:.2g} s, as long as {cost.build_s / cost.epoch_s:.1f} epochs"
        findings.append(make_finding("start-dominates", "build", figure, where=where))
    return findings


def _watch_samples(task: Task[Any]) -> list[int]:
    """Return a list. Its only item becomes the number of samples of the first micro-batch."""
    samples, update = [0], task.update

    def watch(window: Sequence[Any]) -> None:
        samples[0] = samples[0] or count_samples(window[0])
        update(window)

    task.update = watch  # type: ignore[method-assign]
    return samples


def _count_windows(task: Task[Any], done: int, samples: float, limit_s: float) -> int | None:
    """Return the number of windows of an epoch, or None if counting takes longer than `limit_s` seconds."""
    if task.epoch_samples is not None:
        return math.ceil(task.epoch_samples / max(samples / max(1, done), 1e-9))
    start, count = time.perf_counter(), 0
    rng.seed(task.context.generator, task.context.rank, task.config.seed, 0)
    for _ in windows(task.train_batches(0), task.config.accumulation):
        count += 1
        if time.perf_counter() - start > limit_s:
            return None
    return count


def find_largest_batch(
    trial: ObservedTrial, precision: Precision, workers: int, is_over: Callable[[], bool]
) -> int | None:
    """Return about how many samples of a micro-batch fit into the memory, by the growth from one size to the next.

    On a GPU the peak of forward and backward is measured, on a CPU the bytes that the forward pass keeps.

    Args:
        workers: The ranks of a trial, of which this process is one.
    """
    name, record = next(iter(trial.updates.items()))
    if not record.batches or is_over():
        return None
    batch, loss = record.batches[0]
    count, prober, device = count_samples(batch), Prober(trial), trial.task.context.device
    if not count:
        return None
    peaks = []
    for times in GROWTH:
        larger = select(batch, [index % count for index in range(count * times)])
        peaks.append(_measure_peak(partial(prober.compute, name, loss, larger, precision=precision), device))
    per_sample = (peaks[1] - peaks[0]) / (count * (GROWTH[1] - GROWTH[0]))
    if per_sample <= 0:
        return None
    free = measure_usable_memory(device) - count_missing_bytes(trial.task, workers)
    return max(count, int(count + (free - peaks[0]) / per_sample))


def count_missing_bytes(task: Task[Any], workers: int) -> int:
    """Return the bytes that a trial of `workers` ranks will need in addition to what it has in this process.

    With several ranks, the gradients are summed in one tensor of fp32. A parameter that had no gradient yet will have
    as much state as others of its optimizer. An optimizer that has not stepped may need two numbers, as Adam does.
    """
    missing = 0.0
    for updater in task.updaters.values():
        for optimizer in updater.optimizers.values():
            parameters = [p for p in get_parameters(optimizer) if p.requires_grad]
            states = {p: _count_bytes(optimizer.state[p]) for p in parameters if optimizer.state.get(p)}
            each = sum(states.values()) / max(1, sum(p.numel() for p in states))
            if not updater.steps:
                each = 2 * FP32_BYTES
            missing += each * sum(p.numel() for p in parameters if p not in states)
            if workers > 1:
                missing += FP32_BYTES * sum(p.numel() for p in parameters)
    return int(missing)


def _count_bytes(state: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))


def _measure_peak(action: Callable[[], Any], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        action()
        return torch.cuda.max_memory_allocated(device)
    return sum(measure_saved(action).values())
