"""What the windows of an epoch come to."""

import math
from dataclasses import dataclass

from trainables.update import UpdateReport


@dataclass
class Tally:
    """What one updater's windows of an epoch come to."""

    weight: float = 0.0
    applied: int = 0
    applied_weight: float = 0.0
    losses: float = 0.0
    norms: float = 0.0

    def add(self, report: UpdateReport) -> None:
        """Count a window."""
        self.weight += report.weight
        if report.outcome == "applied":
            self.applied += 1
            self.applied_weight += report.weight
            self.losses += report.loss * report.weight
            self.norms += report.grad_norm

    @property
    def loss(self) -> float:
        """The mean loss over the applied windows, NaN without one."""
        return self.losses / self.applied_weight if self.applied else math.nan

    @property
    def grad_norm(self) -> float:
        """The mean norm over the applied windows, NaN without one."""
        return self.norms / self.applied if self.applied else math.nan
