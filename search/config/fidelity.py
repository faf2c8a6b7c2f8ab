"""How much of its training a trial has got: what it is measured in, and what has come together by each report."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Unit = Literal["epochs", "samples", "gpu-seconds"]
COSTS: tuple[Unit, ...] = ("samples", "gpu-seconds")  # what a report tells of its epoch
UNLIMITED = 2**31  # epochs of a trial that only its function ends


def report_field(unit: Unit) -> str:
    """Under which name a report holds what its epoch took, in `unit`."""
    return unit.replace("-", "_")


def unit_label(unit: Unit) -> str:
    """`unit` as it is shown to people."""
    return "GPU-seconds" if unit == "gpu-seconds" else unit


def format_amount(amount: float) -> str:
    """`amount` as it is shown to people."""
    return f"{amount:.0f}" if amount >= 10 else f"{amount:.2g}"


def epoch_cost(report: Mapping[str, Any], unit: Unit) -> float:
    """What the epoch of `report` took."""
    return 1.0 if unit == "epochs" else report.get(report_field(unit), 0.0)


def cumulative_cost(reports: Mapping[int, Mapping[str, Any]], unit: Unit) -> dict[int, float]:
    """By epoch, what the trial has got when it was done, in order; an epoch counts once, however often it was done."""

    def accumulate() -> Iterator[tuple[int, float]]:
        total = 0.0
        for epoch in sorted(reports):
            total += epoch_cost(reports[epoch], unit)
            yield epoch, total

    return dict(accumulate())
