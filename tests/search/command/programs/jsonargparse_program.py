import json
from dataclasses import asdict, dataclass

from jsonargparse import auto_cli


@dataclass
class Model:
    depth: int = 2
    dropout: float | None = None


def train(model: Model, lr: float = 0.1, fp16: bool = False, optimizer: str = "adam"):
    print(json.dumps({"model": asdict(model), "lr": lr, "fp16": fp16, "optimizer": optimizer}))


auto_cli(train)
