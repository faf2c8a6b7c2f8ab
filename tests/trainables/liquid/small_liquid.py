"""Build the task `liquid`, small enough for a fraction of a second."""

from typing import Any, ClassVar

from torch import Tensor

from searchlight.trainables.context import Context
from searchlight.trainables.liquid import LiquidTask
from searchlight.trainables.liquid.config import LiquidConfig
from searchlight.trainables.liquid.task import Batch
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import UpdateReport
from tests.trainables.toy_models import identical

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


class Watched(LiquidTask):
    """Notes its batches, its reports, and whether plastic weights moved; its first `spoilt` windows are infinite."""

    spoilt: ClassVar[int] = 0

    def build(self) -> None:
        super().build()
        self.reports: list[UpdateReport] = []
        self.seen: list[tuple[str, bool]] = []
        self.batches: list[Batch] = []

    def loss(self, batch: Batch) -> Any:
        self.batches.append(batch)
        loss, weight = super().loss(batch)
        return loss * (float("inf") if len(self.reports) < self.spoilt else 1.0), weight

    def after_update(self, report: UpdateReport) -> None:
        before = plastic(self)
        super().after_update(report)
        self.reports.append(report)
        self.seen.append((report.outcome, not identical(before, plastic(self))))


def config_of(**config: Any) -> LiquidConfig:
    """Return a small config; parts add to what is small of them."""
    both = {
        name: {**SMALL.get(name, {}), **value} if isinstance(value, dict) else value for name, value in config.items()
    }
    return LiquidConfig.model_validate({**SMALL, **both})


def liquid(task_class: type[LiquidTask] = LiquidTask, **config: Any) -> Any:
    return task_class(config_of(**config), KEPT.for_next_trial())


def trained(task: LiquidTask, epochs: int = 1) -> TrialTrainer:
    training = TrialTrainer(task)
    for _ in range(epochs):
        training.run_epoch()
    return training


def plastic(task: LiquidTask) -> list[Tensor]:
    """Return copies of the plastic weights, by layer."""
    return [synapses.weight.clone() for synapses in task.network.list_synapses()]


def has_pending(task: LiquidTask) -> bool:
    """Return whether synapses hold anything that they have seen since the last update."""
    return any(part.any() for synapses in task.network.list_synapses() for part in synapses.get_pending())
