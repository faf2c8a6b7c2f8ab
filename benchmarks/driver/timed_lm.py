"""The task `lm` as a trial of benchmarks/driver/trial_turnaround.py."""

from typing import Any

from tiny_task import note

from searchlight.trainables.lm import LmTask
from searchlight.trainables.update import UpdateReport


class TimedLm(LmTask):
    def build(self) -> None:
        super().build()
        self.updates_done = self.evaluated = 0

    def after_update(self, report: UpdateReport) -> None:
        super().after_update(report)
        self.updates_done += 1
        if self.updates_done == 1:
            note("first-update", self.context.rank)

    def evaluate(self) -> Any:
        metrics = super().evaluate()
        self.evaluated += 1
        note("end" if self.evaluated == self.config.epochs else "report", self.context.rank)
        return metrics
