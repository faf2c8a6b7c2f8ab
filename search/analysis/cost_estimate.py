"""The estimated cost of a whole search, from the cost of an epoch that an audit measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

START_S = 15.0  # Ray and the first workers


@dataclass(frozen=True)
class CostEstimate:
    """The time of a search, from the defaults to the most expensive config that was measured.

    Attributes:
        seconds: The lowest and the highest duration of the search.
        device_hours: The lowest and the highest GPU-hours of all trials. On CPUs, worker-hours.
        unit: "GPU-hours" or "worker-hours".
    """

    seconds: tuple[float, float]
    device_hours: tuple[float, float]
    unit: str


def estimate_cost(
    epochs: float | None,
    trials: int,
    concurrent: int,
    devices: float,
    costs: Sequence[Mapping[str, Any]],
    has_gpus: bool = False,
) -> CostEstimate | None:
    """Return the cost of a search of `epochs` epochs over all trials, or None if no epoch was measured.

    Args:
        concurrent: The number of trials that run at a time.
        devices: The number of GPUs of a trial, or of its workers on CPUs.
        costs: The measured cost of each config, the defaults first.
    """
    known = [(cost["epoch_s"], cost["build_s"]) for cost in costs if cost["epoch_s"] is not None]
    if epochs is None or not known:
        return None
    totals = [epochs * epoch_s + trials * build_s for epoch_s, build_s in known]
    low, high = totals[0], max(totals)
    hours = (low * devices / 3600, high * devices / 3600)
    at_once = max(1, min(concurrent, trials))
    seconds = (START_S + low / at_once, START_S + high / at_once)
    return CostEstimate(seconds, hours, "GPU-hours" if has_gpus else "worker-hours")
