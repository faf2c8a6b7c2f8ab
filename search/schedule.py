"""What a scheduler is asked and what it answers: pure arithmetic over what the study knows.

Nothing is kept between two questions. A search that is taken up after a crash asks again and goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Standing:
    """A trial that has begun: the objective after each epoch that it finished, and whether a gang trains it now.

    A copy begins at epoch `start` with the weights of `copied_from`, in the place of `replaces`, if that had not
    ended already. One that has `finished` came to its end, which for a function may lie before the last epoch.
    """

    number: int
    values: Mapping[int, float]
    state: Literal["running", "waiting", "ended"]
    start: int = 0
    copied_from: int | None = None
    replaces: int | None = None
    finished: bool = False

    @property
    def epoch(self) -> int:
        return max(self.values, default=self.start)


@dataclass(frozen=True)
class Stretch:
    """A trial's way from one epoch to another; `number` None asks for a new trial.

    `copied_from` and `replaces` are those of a copy, `draw` the seed of what is random in it.
    """

    kind: Literal["new", "continued", "promoted", "copied"]
    number: int | None
    start: int
    until: int
    copied_from: int | None = None
    replaces: int | None = None
    draw: str = ""


@dataclass(frozen=True)
class End:
    """A trial that goes no further."""

    number: int
    reason: str


class Schedule(Protocol):
    """Decides when trials pause, who goes on and who ends. Its text is what --dry-run says of it."""

    @property
    def epochs(self) -> int:
        """A trial's full length."""

    @property
    def mode(self) -> Mode:
        """Which values are better."""

    def next(self, trials: Sequence[Standing], may_start: bool) -> Stretch | End | None:
        """What to do now, or None if there is nothing to do before a running stretch has ended.

        Args:
            trials: All trials that have started, ended ones included.
            may_start: Whether the budget has room for a new trial.
        """

    def rests(self, trial: Standing) -> bool:
        """Whether `trial` waits because others were better, and has lost if the search ends now."""

    def expected_epochs(self, trials: int) -> float:
        """How many epochs so many trials take together."""


def sign(mode: Mode) -> int:
    """The factor with which the better value is the smaller one."""
    return 1 if mode == "min" else -1
