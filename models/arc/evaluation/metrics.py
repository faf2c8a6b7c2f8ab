"""ARC's scores of attempts at test outputs."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from searchlight.models.arc.puzzles import Grid, Puzzle


def find_hits(puzzles: Sequence[Puzzle], attempts: Sequence[tuple[Grid, Grid]]) -> list[list[bool]]:
    """Return for each puzzle which of its test outputs one of two attempts meets.

    Args:
        puzzles: The puzzles.
        attempts: Two attempts for each test, in the order of the puzzles and their tests.
    """
    remaining = iter(attempts)
    return [
        [
            any(np.array_equal(attempt, target) for attempt in two)
            for (_, target), two in zip(puzzle.tests, islice(remaining, len(puzzle.tests)), strict=True)
        ]
        for puzzle in puzzles
    ]


def compute_scores(hits: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Compute scores from `find_hits`.

    Returns:
        pass2_task: The share of puzzles of which all test outputs are met. This is the official score.
        pass2_output: The share of test outputs that are met.
    """
    return {
        "pass2_task": sum(map(all, hits)) / len(hits),
        "pass2_output": sum(map(sum, hits)) / sum(map(len, hits)),
    }
