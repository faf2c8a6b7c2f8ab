"""How much of its training a trial has got: what it is measured in, and what has come together by each report."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Literal

Unit = Literal["epochs", "samples", "gpu-seconds"]
COSTS: tuple[Unit, ...] = ("samples", "gpu-seconds")  # what a report tells of its epoch
UNLIMITED = 2**31  # epochs of a trial that only its function ends


def report_field(unit: Unit) -> str:
    """Return the key of a report that holds what its epoch took, in `unit`."""
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
    """Return the budget that a trial had used after each epoch, in order; a repeated epoch counts once."""
    epochs = sorted(reports)
    return dict(zip(epochs, accumulate(epoch_cost(reports[epoch], unit) for epoch in epochs), strict=True))
