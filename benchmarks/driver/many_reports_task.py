"""The function of many_reports.py, which reports as soon as it can."""

import ray.train


def train(config: dict[str, float]) -> None:
    """Report `config["epochs"]` times, with metrics that fall towards the distance of `config["lr"]` to 0.01."""
    level = abs(config["lr"] - 0.01)
    for epoch in range(1, int(config["epochs"]) + 1):
        metrics = {f"part_{part}": level + part / epoch for part in range(4)}
        ray.train.report({"loss": level + 1 / epoch, **metrics})
