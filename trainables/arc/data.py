"""The puzzles that a trial of the task `arc` trains on and is evaluated on."""

import functools
from typing import NamedTuple

from searchlight.models.arc.puzzles import SOURCES, Puzzle, check_disjoint, drop_leaked, load_puzzles
from searchlight.trainables.task.config import renamed_errors

SAFE_SIDE = 10  # at which each source that comes with the package has puzzles


class Puzzles(NamedTuple):
    """The puzzles of a trial: those that are trained on, and those that are evaluated on."""

    training: tuple[Puzzle, ...]
    evaluation: tuple[Puzzle, ...]

    @property
    def judged(self) -> tuple[Puzzle, ...]:
        """Return the evaluation puzzles that give the objective."""
        return self.evaluation[::2]

    @property
    def asked(self) -> tuple[Puzzle, ...]:
        """Return the evaluation puzzles whose tests are reported."""
        return self.evaluation[1::2]


def load(data: str, evaluation_data: str | None, max_side: int, leak: str) -> Puzzles:
    """Load the puzzles for the values of a config's fields.

    Raises:
        ValueError: A source has too few puzzles that fit, or training and evaluation share puzzles. The message names
            the fields of the config.
    """
    words = {"source ": "data ", "training ": "data "}
    with renamed_errors(words):
        training = load_puzzles(data, "training", max_side)
    with renamed_errors({word: "evaluation_data " for word in words} if evaluation_data else words):
        evaluation = load_puzzles(evaluation_data or data, "evaluation", max_side)
    with renamed_errors(words):
        if leak == "refuse":
            check_disjoint(training, evaluation)
        elif leak == "drop":
            training = drop_leaked(training, evaluation)
    if len(evaluation) < 2:
        raise ValueError(
            f"{'evaluation_data' if evaluation_data else 'data'} must have two evaluation puzzles, one for the "
            f"objective and one whose tests are reported, but got {evaluation_data or data} with one of sides up to "
            f"max_side={max_side}. Add some, or raise max_side."
        )
    if not any(len(puzzle.demonstrations) > 1 for puzzle in training):
        raise ValueError(
            f"data must have a puzzle with two demonstrations, one to be hidden, but got {data} with {len(training)} "
            "puzzles without. Add some."
        )
    return Puzzles(training, evaluation)


@functools.lru_cache(maxsize=128)  # it takes half a second, and configs are made all the time
def check(data: str, evaluation_data: str | None, max_side: int, leak: str) -> None:
    """Check before a search that `load` can load the puzzles. Raise the same errors as `load`."""
    if evaluation_data is None and data in SOURCES and max_side >= SAFE_SIDE:
        return  # what comes with the package is known to be right
    load(data, evaluation_data, max_side, leak)
