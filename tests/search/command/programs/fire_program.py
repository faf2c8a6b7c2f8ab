import json

import fire


def train(data, lr=0.1, depth: int = 2, fp16=False):
    """Train.

    Args:
        lr: The rate, like --this.
    """
    print(json.dumps(locals()))


fire.Fire(train)
