"""Puzzles of this project's own making: always the same ones, of any difficulty, and as many as are asked for."""

from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np

from searchlight.models.arc.puzzles.contamination import find_leaks
from searchlight.models.arc.puzzles.generators.families import EASY, FAMILIES, SMALLEST_SIDE, TRIES, Draft
from searchlight.models.arc.puzzles.puzzle import Pair, Puzzle

__all__ = ["EASY", "FAMILIES", "SMALLEST_SIDE", "generate", "generate_split"]

PUZZLES = {"training": 400, "evaluation": 96}  # of a split, spread evenly over families and levels


def generate(
    family: str, level: float, random: np.random.Generator | int, max_side: int = 12, number: int = 0
) -> Puzzle:
    """Make a puzzle of three or four demonstrations and one test.

    All its inputs differ, every pair changes its input, and the test has no color that no demonstration shows.

    Args:
        family: One of `FAMILIES`.
        level: 0..1, from the easiest puzzles of the family to the hardest.
        random: A generator, or a seed for one.
        max_side: Longest side of a grid, 6..30.
        number: The last part of the puzzle's id, `family-level-number`.
    """
    random = np.random.default_rng(random)
    draw_input, apply_rule = FAMILIES[family](Draft(level, max_side, random))
    count = int(random.integers(4, 6))
    pairs: list[Pair] = []

    for _ in range(TRIES):
        source = np.ascontiguousarray(draw_input())
        target = np.ascontiguousarray(apply_rule(source), dtype=np.uint8)
        known = any(np.array_equal(source, other) for other, _ in pairs)
        if known or not source.any() or np.array_equal(source, target):
            continue
        pairs.append((source, target))
        if len(pairs) == count and _collect_colors(pairs[-1:]) <= _collect_colors(pairs[:-1]):
            return Puzzle(f"{family}-{level:.2f}-{number}", tuple(pairs[:-1]), tuple(pairs[-1:]))
        pairs = pairs[1 - count :]  # a test with a color of its own becomes a demonstration
    raise RuntimeError(f"{family} made no puzzle at level {level} in {TRIES} tries")


def generate_split(split: str, max_side: int = 12, families: Iterable[str] = FAMILIES) -> list[Puzzle]:
    """Make the puzzles of a split, always the same ones: levels from 0 to 1 for each family.

    No puzzle for evaluation shares a pair with one for training, turned or renamed ones included.

    Args:
        split: "training" (400 puzzles) or "evaluation" (96).
        max_side: Longest side of a grid, 6..30.
        families: Names of the families; each has the same share.
    """
    names = list(families)
    share = {name: count // len(names) for name, count in PUZZLES.items()}
    training = [_draw(*place, max_side) for place in _list_puzzles(names, 0, share["training"])]
    if split == "training":
        return training
    puzzles = {place: _draw(*place, max_side) for place in _list_puzzles(names, share["training"], share["evaluation"])}
    for attempt in range(1, TRIES):
        leaked = {leak.evaluation for leak in find_leaks(training, list(puzzles.values()))}
        if not leaked:
            return list(puzzles.values())
        again = [place for place, puzzle in puzzles.items() if puzzle.id in leaked]
        puzzles |= {place: _draw(*place, max_side, attempt) for place in again}
    raise RuntimeError(f"{', '.join(sorted(leaked))} were among the training puzzles in {TRIES} tries")


def _list_puzzles(families: Sequence[str], first: int, count: int) -> list[tuple[str, int, float]]:
    """Return the family, number and level of each puzzle."""
    levels = list(enumerate(np.linspace(0, 1, count).tolist(), first))
    return [(family, number, level) for family in families for number, level in levels]


def _draw(family: str, number: int, level: float, max_side: int, attempt: int = 0) -> Puzzle:
    random = np.random.default_rng([crc32(family.encode()), number, attempt])
    return generate(family, level, random, max_side, number)


def _collect_colors(pairs: Iterable[Pair]) -> set[int]:
    return {int(color) for pair in pairs for grid in pair for color in np.unique(grid)}
