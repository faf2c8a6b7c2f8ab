import enum
import json

import typer


class Optimizer(enum.StrEnum):
    adam = "adam"
    sgd = "sgd"


def main(data: str, lr: float = 0.1, batch_size: int = 3, optimizer: Optimizer = Optimizer.adam, fp16: bool = False):
    """Train. Use --foo."""
    print(json.dumps(locals()))


typer.run(main)
