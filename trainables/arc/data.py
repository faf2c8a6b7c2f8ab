"""The puzzles that a trial of the task `arc` trains on and is evaluated on."""

import functools
from dataclasses import replace
from typing import NamedTuple

from searchlight.models.arc.puzzles import SOURCES, Puzzle, check_disjoint, drop_leaked, hash_puzzles, load_puzzles
from searchlight.trainables.task.config import renamed_errors

SAFE_SIDE = 10  # at which each source that comes with the package has puzzles


class Puzzles(NamedTuple):
    """The puzzles of a trial.

    Attributes:
        training: The puzzles of which all pairs are trained on.
        transductive: The puzzles of which only the demonstrations are trained on.
        evaluation: The puzzles whose tests are evaluated.
        digests: The digests of both sets in their sources, before tests are removed.
    """

    training: tuple[Puzzle, ...]
    transductive: tuple[Puzzle, ...]
    evaluation: tuple[Puzzle, ...]
    digests: tuple[str, str]


def load(data: str, evaluation_data: str | None, max_side: int, learn_from: str, leak: str) -> Puzzles:
    """Load the puzzles for the values of a config's fields.

    Raises:
        ValueError: A source has no puzzle that fits, or training and evaluation share puzzles. The message names the
            fields of the config.
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
    shown = training if learn_from != "demonstrations" else tuple(replace(puzzle, tests=()) for puzzle in training)
    besides = evaluation if learn_from == "transductive" else ()
    if not any(len(puzzle.pairs) > 1 for puzzle in shown) and not any(len(p.demonstrations) > 1 for p in besides):
        what = "demonstrations" if learn_from == "demonstrations" else "pairs"
        raise ValueError(
            f"data must have a puzzle with two {what}, one to be asked from the other, but got {data} with "
            f"{len(training)} puzzles without. {'Set learn_from=pairs.' if what == 'demonstrations' else 'Add some.'}"
        )
    return Puzzles(shown, besides, evaluation, (hash_puzzles(training), hash_puzzles(evaluation)))


@functools.lru_cache(maxsize=128)  # it takes half a second, and configs are made all the time
def check(data: str, evaluation_data: str | None, max_side: int, learn_from: str, leak: str) -> None:
    """Check before a search that `load` can load the puzzles. Raise the same errors as `load`."""
    if evaluation_data is None and data in SOURCES and max_side >= SAFE_SIDE:
        return  # what comes with the package is known to be right
    load(data, evaluation_data, max_side, learn_from, leak)
