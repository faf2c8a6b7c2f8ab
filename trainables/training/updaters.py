"""The updaters of a trial, as its task and config ask for them."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.nn import Parameter
from torch.optim.lr_scheduler import ReduceLROnPlateau

from searchlight.trainables.context import rng
from searchlight.trainables.precision import LossScale
from searchlight.trainables.task import Task
from searchlight.trainables.update import Ema, Updater, UpdateReport
from searchlight.trainables.update.parameters import get_named_parameters, is_sharded

TRANSFORM = 2  # what random numbers are for, beside epochs and the build


def create_updater(
    task: Task[Any], name: str, named: Mapping[str, Parameter], on_update: Callable[[UpdateReport], None]
) -> Updater:
    """Return the updater `name` of `task`.

    Args:
        task: That is built.
        named: The parameters of its optimizers, by name.
        on_update: Called with each report.
    """
    config = task.config
    optimizers = {key: task.optimizers[key] for key in task.updates[name]}
    kind, ema, options = _choose_classes(task)
    return kind(
        optimizers,
        precision=task.precision,
        device=task.context.device,
        max_grad_norm=config.max_grad_norm,
        schedulers=[
            scheduler
            for scheduler in task.schedulers
            if not isinstance(scheduler, ReduceLROnPlateau)
            and getattr(scheduler, "optimizer", None) in optimizers.values()
        ],
        ema=ema(named, config.ema_decay) if config.ema_decay else None,
        loss_scale=LossScale(initial=config.loss_scale, growth_interval=config.loss_scale_growth),
        max_consecutive_skips=config.max_consecutive_skips,
        on_update=on_update,
        modules=task.modules,
        **options,
        transform=_with_shared_rng(task, name, task.transforms[name]) if name in task.transforms else None,
    )


def _choose_classes(task: Task[Any]) -> tuple[type[Updater], Callable[..., Ema], dict[str, Any]]:
    """Return the classes of updater and averages, and what the updater takes beside the options of all."""
    if not is_sharded(get_named_parameters(task.modules).values()):
        return Updater, Ema, {}
    from searchlight.trainables.update.sharding import (  # imports what only sharded tasks need
        ShardedEma,
        ShardedUpdater,
    )

    @contextlib.contextmanager
    def padding() -> Iterator[None]:
        noting, task.noting = task.noting, {}
        try:
            yield
        finally:
            task.noting = noting

    ema = functools.partial(ShardedEma, modules=task.modules)
    return ShardedUpdater, ema, {"padding": padding, "reduce_each": task.reduce_each}


def _with_shared_rng(task: Task[Any], name: str, transform: Callable[[], None]) -> Callable[[], None]:
    """Return `transform` with the same random numbers on all ranks: else their weights would drift apart."""

    def apply_transform() -> None:
        updater = task.updaters[name]
        entropy = (task.config.seed, updater.steps, updater.skipped, TRANSFORM)
        with rng.same_on_all_ranks(task.context.device, *entropy):
            transform()

    return apply_transform
