"""Trainings in closed form: the loss by epoch, the time of an epoch in each precision, and the epoch of divergence.

Each has a known best value: the `floor` of a config is its value after all epochs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from searchlight.trainables.task import TaskConfig, searchable

Values = Mapping[str, Any]
NEVER = 10**9


class Form(ABC):
    """A training in closed form.

    Attributes:
        seconds: The seconds of an epoch in fp32.
        noise: The standard deviation of an evaluation.
        best, worst: The value of the best config, and that of an untrained one.
        delivered: What a side is judged by; see `Problem`.
    """

    config: ClassVar[type[TaskConfig]]
    epochs: ClassVar[int] = 27
    seconds: ClassVar[float] = 60.0
    noise: ClassVar[float] = 0.01
    best: ClassVar[float]
    worst: ClassVar[float]
    delivered: ClassVar[Literal["checkpoint", "config"]] = "checkpoint"

    @classmethod
    @abstractmethod
    def train(cls, v: Values) -> tuple[list[float], float, int]:
        """Return the value after each epoch, the seconds of an epoch, and the epoch of divergence (or NEVER)."""


def compute_falling(floor: float, start: float, half: float, power: float, epochs: int) -> list[float]:
    """Compute a power law from `start` to `floor` in the last epoch. It is half way after about `half` epochs."""
    left = [(1 + epoch / half) ** -power for epoch in range(1, epochs + 1)]
    return [floor + (start - floor) * (share - left[-1]) / (1 - left[-1]) for share in left]


def find_divergence(beyond: float, epochs: int, hurry: float) -> int:
    """Compute the epoch of divergence, the earlier the farther `beyond` the cliff. NEVER if it is not beyond."""
    return max(1, math.ceil(epochs * math.exp(-hurry * beyond))) if beyond > 0 else NEVER


class CliffConfig(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1.0, log=True)
    reward_scale: float = searchable(1.0, low=0.5, high=20.0, log=True)
    curriculum: float = searchable(0.5, low=0.0, high=1.0)
    weight_decay: float = searchable(1e-3, low=1e-6, high=1e-1, log=True)


class Cliff(Form):
    """A problem whose best learning rate is just below divergence in bf16. fp16 diverges before it."""

    config, best, worst = CliffConfig, 0.2, 2.5

    @classmethod
    def train(cls, v: Values) -> tuple[list[float], float, int]:
        scale = math.log10(v["reward_scale"])
        step = math.log10(v["lr"]) + 0.5 * scale  # of the effective learning rate
        limit = {"fp32": -1.0, "bf16": -1.3, "fp16": -1.8 - 0.4 * max(0.0, scale - 0.5)}[v["precision"]]
        off = step + 1.45
        floor = 0.2 + 0.25 * off**2 + 0.3 * (v["curriculum"] - 0.35) ** 2 + 0.1 * (scale - 0.7) ** 2
        floor += 0.02 * (math.log10(v["weight_decay"]) + 3) ** 2
        values = compute_falling(min(floor, 2.3), 2.5, 10 ** (-0.4 * off), 1.2, cls.epochs)
        seconds = cls.seconds * {"fp32": 1.0, "bf16": 0.6, "fp16": 0.55}[v["precision"]]
        return values, seconds, find_divergence(step - limit, cls.epochs, 6.0)


class CrossingConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    regularization: float = searchable(0.5, low=0.0, high=1.0)
    width: float = searchable(64.0, low=16.0, high=512.0, log=True)


class Crossing(Form):
    """A problem in which regularized and wide models start slowly and end best."""

    config, best, worst = CrossingConfig, 0.3, 2.0

    @classmethod
    def train(cls, v: Values) -> tuple[list[float], float, int]:
        rate, width = math.log10(v["lr"]) + 1.8, math.log10(v["width"]) - 2.4
        floor = 0.3 + 0.5 * (v["regularization"] - 0.8) ** 2 + 0.12 * rate**2 + 0.15 * width**2
        half = 0.4 * 10 ** (1.2 * v["regularization"] + 0.3 * width - 0.3 * rate)
        precise = {"fp32": 0.0, "bf16": 0.005, "fp16": 0.002}[v["precision"]]
        values = compute_falling(min(floor + precise, 1.8), 2.0, half, 1.0, cls.epochs)
        seconds = cls.seconds * {"fp32": 1.0, "bf16": 0.7, "fp16": 0.7}[v["precision"]]
        return (
            values,
            seconds,
            find_divergence(rate - {"fp32": 1.4, "bf16": 1.2, "fp16": 0.8}[v["precision"]], cls.epochs, 4),
        )


class CurriculumConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    easy: float = searchable(0.5, low=0.0, high=1.0)
    pace: float = searchable(0.5, low=0.1, high=1.0)
    reward_scale: float = searchable(1.0, low=0.5, high=20.0, log=True)


class Curriculum(Form):
    """A problem that evaluates on the curriculum, so that early values are better than final ones and mislead."""

    config, best, worst, delivered = CurriculumConfig, 0.4, 2.0, "config"

    @classmethod
    def train(cls, v: Values) -> tuple[list[float], float, int]:
        rate, scale = math.log10(v["lr"]) + 2, math.log10(v["reward_scale"]) - 0.6
        floor = 0.4 + 0.6 * (v["easy"] - 0.3) ** 2 + 0.15 * rate**2 + 0.1 * scale**2 + 0.2 * (v["pace"] - 0.4) ** 2
        half = 1.5 * 10 ** (-0.4 * rate)
        bonus = 0.5 * v["easy"]
        values = [
            value - bonus * (1 - epoch / cls.epochs) ** (1 / v["pace"])
            for epoch, value in enumerate(compute_falling(min(floor, 1.8), 2.0, half, 1.0, cls.epochs), 1)
        ]
        seconds = cls.seconds * {"fp32": 1.0, "bf16": 0.6, "fp16": 0.6}[v["precision"]]
        limit = {"fp32": 1.5, "bf16": 1.3, "fp16": 0.6 - 0.5 * scale}[v["precision"]]
        return values, seconds, find_divergence(rate - limit, cls.epochs, 5.0)


class FinetuneConfig(TaskConfig):
    lr: float = searchable(1e-4, low=1e-6, high=1e-2, log=True)
    head_lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    warmup: float = searchable(0.1, low=0.0, high=0.3)
    batch: int = searchable(32, choices=[8, 16, 32, 64, 128, 256])
    dropout: float = searchable(0.1, low=0.0, high=0.5)
    layers: Literal["head", "half", "all"] = searchable("all", choices=["head", "half", "all"])
    scale_log2: float = searchable(16.0, low=4.0, high=24.0, when={"precision": "fp16"})


class Finetune(Form):
    """A problem of seven parameters, one for fp16 only. Long warm-ups help late, and small batches cost time."""

    config, best, worst, noise, seconds = FinetuneConfig, 0.1, 1.0, 0.015, 120.0

    @classmethod
    def train(cls, v: Values) -> tuple[list[float], float, int]:
        batch = math.log10(v["batch"] / 32)
        rate = math.log10(v["lr"]) + 4.2 - 0.5 * batch
        head = math.log10(v["head_lr"]) + 2.8
        layers = {"head": 0.08, "half": 0.0, "all": 0.01}[v["layers"]]
        floor = (
            0.1 + 0.06 * rate**2 + 0.03 * head**2 + 1.5 * (v["warmup"] - 0.12) ** 2 + 0.4 * (v["dropout"] - 0.15) ** 2
        )
        floor += layers + 0.02 * batch**2 + {"fp32": 0.0, "bf16": 0.006, "fp16": 0.0}[v["precision"]]
        half = 1.2 * 10 ** (1.5 * v["warmup"] - 0.3 * rate) * (0.5 if v["layers"] == "head" else 1.0)
        values = compute_falling(min(floor, 0.9), 1.0, half, 1.5, cls.epochs)
        cost = {"fp32": 1.0, "bf16": 0.5, "fp16": 0.45}[v["precision"]]
        cost *= (0.6 + 6 / v["batch"]) * {"head": 0.4, "half": 0.7, "all": 1.0}[v["layers"]]
        limit = 0.35 + 2.0 * v["warmup"] - {"fp32": 0.0, "bf16": 0.1, "fp16": 0.2}[v["precision"]]
        beyond = rate - limit
        if v["precision"] == "fp16":
            beyond = max(beyond, 0.15 * (v["scale_log2"] - 18), 0.15 * (7 - v["scale_log2"]))
        return values, cls.seconds * cost, find_divergence(beyond, cls.epochs, 3.0)


class AnnealedConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    momentum: float = searchable(0.9, low=0.5, high=0.99)
    schedule: Literal["cosine", "linear", "step"] = searchable("cosine", choices=["cosine", "linear", "step"])
    warm: float = searchable(0.05, low=0.0, high=0.2)
    smoothing: float = searchable(0.1, low=0.0, high=0.4)


class Annealed(Form):
    """A problem in which high learning rates stay on a plateau until annealed, and end best."""

    config, best, worst, noise = AnnealedConfig, 0.5, 2.3, 0.02

    @classmethod
    def train(cls, v: Values) -> tuple[list[float], float, int]:
        rate = math.log10(v["lr"]) - math.log10(1 - v["momentum"]) - 0.1
        schedule = {"cosine": 0.0, "linear": 0.01, "step": 0.05}[v["schedule"]]
        floor = 0.5 + 0.15 * rate**2 + schedule + 2 * (v["warm"] - 0.06) ** 2 + 0.8 * (v["smoothing"] - 0.1) ** 2
        plateau = 0.25 * 10 ** (0.5 * min(rate, 1.5))
        values = []
        for epoch, value in enumerate(compute_falling(min(floor, 2.2), 2.3, 10 ** (-0.5 * rate), 1.3, cls.epochs), 1):
            share = epoch / cls.epochs
            heat = {"cosine": (1 + math.cos(math.pi * share)) / 2, "linear": 1 - share, "step": float(share < 0.67)}
            values.append(min(2.3, value + plateau * heat[v["schedule"]]))
        seconds = cls.seconds * {"fp32": 1.0, "bf16": 0.55, "fp16": 0.5}[v["precision"]]
        limit = {"fp32": 1.0, "bf16": 0.8, "fp16": 0.3}[v["precision"]] + 2 * v["warm"]
        return values, seconds, find_divergence(rate - limit, cls.epochs, 8.0)
