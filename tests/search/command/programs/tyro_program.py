import dataclasses
import json
from typing import Literal

import tyro


@dataclasses.dataclass
class Optimizer:
    lr: float = 1e-3
    """the rate"""
    weight_decay: float = 0.0


@dataclasses.dataclass
class Args:
    opt: Optimizer = dataclasses.field(default_factory=Optimizer)
    learning_rate: float = 2.5e-4
    anneal_lr: bool = True
    """Toggle annealing, see --foo."""
    kind: Literal["a", "b"] = "a"
    target_kl: float | None = None
    betas: tuple[float, float] = (0.9, 0.99)


print(json.dumps(dataclasses.asdict(tyro.cli(Args))))
