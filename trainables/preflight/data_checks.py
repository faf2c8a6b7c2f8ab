"""Checks of the data of a task: shards, order, and samples that training and evaluation share."""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from searchlight.trainables.context import rng
from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.gradients import Prober
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.preflight.samples import digest_parts, digest_samples
from searchlight.trainables.task import Task

MOST_SAMPLES = 20_000  # of an epoch whose digests are compared
SMALL_SHARE = 0.01
NOISE_SEEDS = 4


declare_kinds(
    "Determinism and data",
    Kind("order-never-changes", "warning", "Shuffle each epoch, as self.context.shard does."),
    Kind("repeated-samples", "note", "Expected of sampling with replacement and of short sequences."),
    Kind("evaluation-in-training", "warning", "Take the samples out of the training data."),
    Kind("evaluation-changes-weights", "error", "Change no parameter in evaluate."),
)


@dataclass
class EpochData:
    """The digests of the samples that a rank draws in an epoch, in their order; `parts` are those of single tensors."""

    samples: list[str] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)
    is_whole: bool = True


def read_epoch(task: Task[Any], epoch: int, is_over: Callable[[], bool]) -> EpochData:
    """Return the samples of `task` in `epoch`, under the same random state as in a trial."""
    context, data = task.context, EpochData()
    rng.seed(context.generator, context.rank, task.config.seed, epoch)
    batches = iter(task.train_batches(epoch))
    for batch in batches:
        data.samples += digest_samples(batch)
        data.parts.update(digest_parts(batch))
        if len(data.samples) >= MOST_SAMPLES or is_over():
            data.is_whole = False
            break
    return data


def find_order_problems(trial: ObservedTrial, is_over: Callable[[], bool]) -> tuple[list[Finding], EpochData]:
    """Return findings about an order that never changes, and about samples that come twice in an epoch."""
    task = trial.task
    state, generator = copy.deepcopy(task.state_dict()), task.context.generator.get_state()
    task.load_state_dict(copy.deepcopy(trial.initial_state))  # what an epoch begins with
    first, second = (read_epoch(task, epoch, is_over) for epoch in (0, 1))
    task.load_state_dict(state)
    task.context.generator.set_state(generator)
    findings = []
    count = min(len(first.samples), len(second.samples))
    if count > 2 and len({*first.samples}) > 2 and first.samples[:count] == second.samples[:count]:
        findings.append(
            make_finding("order-never-changes", "train_batches", f"{count} samples in the same order twice")
        )
    repeated = len(first.samples) - len({*first.samples})
    if repeated > SMALL_SHARE * len(first.samples):
        figure = f"{repeated} of {len(first.samples)} samples came before in the same epoch"
        findings.append(make_finding("repeated-samples", "train_batches", figure))
    return findings, first


def find_evaluation_problems(
    trial: ObservedTrial, training: EpochData, is_over: Callable[[], bool]
) -> tuple[list[Finding], float, float]:
    """Return problems of `evaluate`, the objective, and its range over a few seeds of the random numbers."""
    findings, prober, objective = list[Finding](), Prober(trial), trial.task.objective
    before = [p.detach().clone() for p in prober.all_parameters()]
    values, seen = list[float](), set[str]()
    state = copy.deepcopy(trial.task.state_dict())  # it may count its evaluations
    for seed in range(NOISE_SEEDS):
        if (seed == 2 and values[0] == values[1]) or (seed and is_over()):
            break
        with prober.isolated(seed), watch_inputs(trial, seen) if seed == 0 else nullcontext():
            metrics = trial.evaluate()
        if metrics is None:
            return [], float("nan"), 0.0  # the error has a finding of its own
        if objective not in metrics:
            figure = f"evaluate returns {', '.join(sorted(metrics)) or 'nothing'}"
            return [make_finding("objective-missing", objective, figure)], float("nan"), 0.0
        trial.task.load_state_dict(copy.deepcopy(state))
        values.append(metrics[objective])
    if any(not torch.equal(a, p.detach()) for a, p in zip(before, prober.all_parameters(), strict=True)):
        findings.append(make_finding("evaluation-changes-weights", "evaluate", "parameters differ before and after it"))
    noise = max(values) - min(values)
    if not noise < float("inf"):  # NaN, too
        findings.append(make_finding("objective-not-finite", objective, f"{values[0]} after {trial.windows} windows"))
    shared = seen & training.parts
    if len(seen) > 3 and len(shared) > SMALL_SHARE * len(seen):
        figure = f"{len(shared)} of {len(seen)} different inputs are in the training data"
        findings.append(make_finding("evaluation-in-training", "evaluate", figure))
    return findings, values[0], noise


@contextmanager
def watch_inputs(trial: ObservedTrial, digests: set[str]) -> Iterator[None]:
    """Add the digests of the inputs of a trial's modules to `digests` inside the context."""

    def record(_: Any, args: Any, kwargs: Any) -> None:
        if len(digests) < MOST_SAMPLES:
            digests.update(itertools.islice(digest_parts((*args, *kwargs.values())), MOST_SAMPLES))

    with ExitStack() as hooks:
        for module in trial.task.modules.values():
            hooks.callback(module.register_forward_pre_hook(record, with_kwargs=True).remove)
        yield
