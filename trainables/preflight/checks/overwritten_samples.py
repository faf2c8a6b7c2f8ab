"""The check that a loss leaves the samples of its micro-batch as they are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.observation import FIRST_WINDOWS, Check, ObservedTrial
from searchlight.trainables.preflight.samples import digest_samples

declare_kinds(
    "Determinism and data",
    Kind("loss-changes-data", "warning", "Change a copy of the batch, e.g. x = x - mean for x -= mean."),
)


class OverwrittenSamples(Check):
    """Compares the samples of the first windows before and after each loss."""

    def __init__(self) -> None:
        self.digests = set[str]()  # of samples that a loss changed, before it

    @contextmanager
    def watch_loss(self, trial: ObservedTrial, update: str, batch: Any) -> Iterator[None]:
        before = digest_samples(batch) if trial.windows < FIRST_WINDOWS else []
        yield
        if before:
            self.digests |= {*before} - {*digest_samples(batch)}

    def find_in(self, epoch: Sequence[str]) -> Iterator[Finding]:
        """Yield a finding if the overwritten samples are missing in the digests of an `epoch` that is drawn again."""
        if self.digests and not self.digests & {*epoch}:  # a loss may change a copy that the task makes
            figure = f"the {len(self.digests)} samples of the first windows are no longer in the epoch"
            yield make_finding("loss-changes-data", "loss", figure)
