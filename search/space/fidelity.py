"""The budget of a trial: its unit, and how much was used by each report."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Literal

Unit = Literal["epochs", "samples", "gpu-seconds"]
COSTS: tuple[Unit, ...] = ("samples", "gpu-seconds")  # units whose costs a report contains
UNLIMITED = 2**31  # epochs of a trial whose function decides when it ends


def report_field(unit: Unit) -> str:
    """Return the key in a report of the epoch's cost in `unit`."""
    return unit.replace("-", "_")


def unit_label(unit: Unit) -> str:
    """Return `unit` as text for users."""
    return "GPU-seconds" if unit == "gpu-seconds" else unit


def format_amount(amount: float) -> str:
    """Return `amount` as text for users."""
    return f"{amount:.0f}" if amount >= 10 else f"{amount:.2g}"


def epoch_cost(report: Mapping[str, Any], unit: Unit) -> float:
    """Return the cost of the epoch of `report` in `unit`."""
    return 1.0 if unit == "epochs" else report.get(report_field(unit), 0.0)


def cumulative_cost(reports: Mapping[int, Mapping[str, Any]], unit: Unit) -> dict[int, float]:
    """Return the budget that a trial had used after each epoch, in order. A repeated epoch counts once."""
    epochs = sorted(reports)
    return dict(zip(epochs, accumulate(epoch_cost(reports[epoch], unit) for epoch in epochs), strict=True))
