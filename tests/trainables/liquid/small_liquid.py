"""The task `liquid`, small enough for a fraction of a second."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from trainables.context import Context
from trainables.liquid import LiquidTask
from trainables.liquid.config import LiquidConfig
from trainables.liquid.task import Batch
from trainables.training.trainer import TrialTrainer

SMALL: dict[str, Any] = {
    "width": 8,
    "units": 8,
    "samples": 32,
    "test_samples": 20,
    "batch_size": 8,
    "length": 8,
    "ema_decay": None,
    "gradient_check": "parameter",
    "spiking": {"neurons": 8, "threshold": 0.3},
    "plasticity": {"rate": 10.0},
    "consolidation": {"fisher_samples": 6},
    "replay": {"size": 20},
}
KEPT = Context()  # data is read once for all tests


def config_of(**config: Any) -> LiquidConfig:
    """A small config; parts add to what is small of them."""
    both = {
        name: {**SMALL.get(name, {}), **value} if isinstance(value, dict) else value for name, value in config.items()
    }
    return LiquidConfig.model_validate({**SMALL, **both})


def liquid(task_class: type[LiquidTask] = LiquidTask, **config: Any) -> LiquidTask:
    return task_class(config_of(**config), KEPT.for_next_trial())


def drawn(training: TrialTrainer, epoch: int) -> list[Batch]:
    """The micro-batches of an epoch."""
    return list(training.task.train_batches(epoch))


def plastic(task: LiquidTask) -> list[Tensor]:
    """Copies of the plastic weights, by layer."""
    return [synapses.weight.clone() for synapses in task.network.synapses()]


def pending(task: LiquidTask) -> Iterator[Tensor]:
    """What synapses have seen since the last update."""
    for synapses in task.network.synapses():
        yield from synapses.pending()
