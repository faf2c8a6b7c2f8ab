"""Build the task `lm`, small enough for a fraction of a second."""

from pathlib import Path
from typing import Any

from searchlight.models.data import build_corpus
from searchlight.trainables.context import Context
from searchlight.trainables.lm import LmTask, data
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.training.trainer import TrialTrainer

SMALL: dict[str, Any] = {
    "width": 8,
    "depth": 2,
    "heads": 2,
    "length": 8,
    "batch_size": 4,
    "samples": 22,
    "test_samples": 21,
    "accumulation": 2,
    "epochs": 3,
    "gradient_check": "parameter",
    "loss_scale": 1024.0,
}


def build_small_corpus(files: Path) -> None:
    """Write what `LmTask.prepare` would, with less text."""
    build_corpus(files / data.CORPUS, 2000)


def make_lm(files: Path, rank: int = 0, ranks: int = 1, **config: Any) -> TrialTrainer:
    """Return a trial on nodes of two ranks."""
    context = Context("cpu", rank, ranks, files, local_world_size=min(ranks, 2))
    return TrialTrainer(LmTask(LmConfig(**{**SMALL, **config}), context))
