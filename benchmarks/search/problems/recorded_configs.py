"""The search spaces of the trainings whose curves are recorded."""

from typing import Literal

from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.task import TaskConfig, searchable


class DigitsConfig(TaskConfig):
    lr: float = searchable(0.03, low=1e-3, high=10.0, log=True)
    momentum: float = searchable(0.9, low=0.0, high=0.98)
    loss_weight: float = searchable(1.0, low=0.1, high=30.0, log=True)
    hidden: int = searchable(64, low=16, high=256, log=True)
    epochs: int = 27
    max_grad_norm: float | None = None


class SmallConfig(TaskConfig):
    data: str = "digits"
    model: Literal["mlp", "linear", "features", "conv", "gru", "attention", "autoencoder"] = "mlp"
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: float = searchable(3e-3, low=1e-4, high=0.1, log=True)
    momentum: float = searchable(0.9, low=0.0, high=0.98)
    weight_decay: float = searchable(1e-2, low=1e-5, high=1.0, log=True)
    dropout: float = searchable(0.0, low=0.0, high=0.6)
    smoothing: float = searchable(0.0, low=0.0, high=0.3)
    warmup: float = searchable(0.05, low=0.0, high=0.4)
    width: int = searchable(24, low=8, high=64, log=True)
    depth: int = searchable(1, low=1, high=5)
    gain: float = searchable(1.0, low=0.3, high=3.0, log=True)
    batch: int = searchable(100, choices=[25, 50, 100])
    epochs: int = 27


class SmallLmConfig(LmConfig):
    lr: float = searchable(5e-3, low=3e-4, high=0.3, log=True)
    embedding_lr: float = searchable(1e-2, low=1e-3, high=1.0, log=True)
    weight_decay: float = searchable(0.1, low=1e-3, high=1.0, log=True)
    warmup: float = searchable(0.05, low=0.0, high=0.4)
    batch_size: int = searchable(16, choices=[8, 16, 32])
    optimizer: Literal["adamw", "muon"] = "adamw"
    width: int = 32
    depth: int = 1
    heads: int = 2
    length: int = 32
    samples: int = 64
    epochs: int = 27
