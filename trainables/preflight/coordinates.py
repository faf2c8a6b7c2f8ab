"""The coordinate check: whether activations keep their size over the sizes of a task after a few updates.

In a parametrization whose best learning rate does not move with the width, such as muP, they do (Yang et al. 2022,
arXiv:2203.03466, appendix D.1).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from statistics import linear_regression
from typing import Any

import torch
from torch import Tensor, nn

from searchlight.trainables.context import Context
from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, describe_error, make_finding
from searchlight.trainables.preflight.observation import UNLIMITED, find_tensors
from searchlight.trainables.task import Task
from searchlight.trainables.training.trainer import TrialTrainer

UPDATES = 6
SEEDS = 2
STEEP = 0.2  # exponent of the activations over the size: 0.5 is the growth of a sum of independent terms
MOST = 12  # modules in the findings

Sizes = dict[str, float]  # by module: the root of the mean square of its outputs

declare_kinds(
    "Sizes",
    Kind("grows-with-size", "warning", "Scale its initial weights, its learning rate or its output, e.g. as in muP."),
    Kind("shrinks-with-size", "note", "Expected of an output layer in muP at the start; else scale it up."),
    Kind("keeps-its-size", "note", "The best learning rate should hardly move with the size."),
)


def check_coordinates(
    load: Callable[[], type[Task[Any]]], configs: Sequence[tuple[float, dict[str, Any]]], context: Context
) -> list[Finding]:
    """Train a few updates at each size. Return the modules whose activations grow or shrink with it, the worst first.

    Args:
        load: Returns the task's class.
        configs: Each size, as a number such as the width, with its config. At least two sizes.
        context: That of a trial.
    """
    measured: dict[float, Sizes] = {}
    for size, values in configs:
        try:
            measured[size] = _measure_size(load, values, context)
        except (Exception, SystemExit) as error:  # whatever the task raises at this size is what is to be told
            return [make_finding("not-audited", f"size {size:g}", describe_error(error))]
    modules = [name for name in next(iter(measured.values())) if all(name in own for own in measured.values())]
    if not modules:
        return [make_finding("not-audited", "sizes", "no module has outputs at all sizes")]
    logs = [math.log(size) for size in measured]
    exponents = {
        name: linear_regression(logs, [math.log(max(own[name], 1e-30)) for own in measured.values()]).slope
        for name in modules
    }
    ends = min(measured), max(measured)
    steep = sorted((name for name in modules if abs(exponents[name]) >= STEEP), key=lambda name: -abs(exponents[name]))
    found: list[Finding] = []
    for name in steep[:MOST]:
        change = " to ".join(f"{measured[end][name]:.3g}" for end in ends)
        figure = f"{change} from size {ends[0]:g} to {ends[1]:g}, exponent {exponents[name]:.2f}"
        found.append(make_finding("grows-with-size" if exponents[name] > 0 else "shrinks-with-size", name, figure))
    if (largest := max(exponents.values())) < STEEP:
        figure = f"after {UPDATES} updates, the largest exponent of {len(modules)} modules is {largest:.2f}"
        found.append(make_finding("keeps-its-size", "activations", figure))
    return found


def _measure_size(load: Callable[[], type[Task[Any]]], values: dict[str, Any], context: Context) -> Sizes:
    """Return the size of each module's outputs after UPDATES updates, the mean over SEEDS."""
    sums: defaultdict[str, float] = defaultdict(float)
    for seed in range(SEEDS):
        task_class = load()
        config = task_class.config_class().model_validate({**values, "seed": values.get("seed", 0) + seed})
        config = config.model_copy(update={**UNLIMITED, "precision": "fp32"})
        trainer = TrialTrainer(task_class(config, context.for_next_trial()))
        try:
            for name, size in _train(trainer).items():
                sums[name] += size / SEEDS
        finally:
            trainer.close()
    return dict(sums)


def _train(trainer: TrialTrainer) -> Sizes:
    """Return the size of each module's outputs in the last of UPDATES + 1 windows."""
    squares: defaultdict[str, list[float]] = defaultdict(list)

    def see(name: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            for tensor in find_tensors(outputs):
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    squares[name].append(float(tensor.detach().float().square().mean()))

    handles = [
        part.register_forward_hook(partial(see, f"{key}.{name}" if name else key))
        for key, module in trainer.task.modules.items()
        for name, part in module.named_modules()
    ]
    try:
        for _ in range(UPDATES + 1):
            _train_window(trainer, squares.clear)
    finally:
        for handle in handles:
            with suppress(RuntimeError):
                handle.remove()
    return {name: math.sqrt(sum(each) / len(each)) for name, each in squares.items()}


def _train_window(trainer: TrialTrainer, before: Callable[[], None]) -> None:
    """Call `before` and train the next window, which is the first of the next epoch if this one has no more.

    Raises:
        ValueError: The next epoch has no window either.
    """
    for _ in range(2):
        before()
        start = trainer.windows
        if trainer.run_epoch(lambda start=start: trainer.windows > start) is None:  # type: ignore[misc]
            return
    raise ValueError("train_batches must give a batch, but an epoch had none.")
