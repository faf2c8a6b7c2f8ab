"""What a trial may have got when a stretch of it ends: samples or GPU-seconds, counted from its beginning."""

from collections.abc import Mapping
from typing import Any


class SegmentBudget:
    """Counts what the epochs of a stretch take; a stretch without an allowance ends by its epochs alone.

    Args:
        given: `of`, the name of what is counted; `spent`, how much of it the trial has got by `epoch`; and `until`, how
            much it may get. An epoch that is done again, since its checkpoint could not be read, does not count twice.
    """

    def __init__(self, given: dict[str, Any] | None) -> None:
        self._now = given

    @property
    def is_limited(self) -> bool:
        return self._now is not None

    @property
    def is_spent(self) -> bool:
        return self._now is not None and self._now["spent"] >= self._now["until"]

    def add_epoch(self, epoch: int, costs: Mapping[str, float]) -> dict[str, Any]:
        """Take in what `epoch` took, the same on all ranks.

        Returns:
            What its report holds of it: `costs`, and the allowance of a worker that goes on from there.
        """
        if self._now is None:
            return dict(costs)
        if epoch > self._now["epoch"]:
            spent = self._now["spent"] + costs[self._now["of"]]
            self._now = {**self._now, "epoch": epoch, "spent": spent}
        return {**costs, "allowance": self._now}
