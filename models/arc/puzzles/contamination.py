"""Training puzzles that are also evaluation puzzles: ARC-AGI-2 trains on most evaluation puzzles of ARC-AGI-1."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from searchlight.models.arc.puzzles.puzzle import COLORS, Pair, Puzzle
from searchlight.models.arc.puzzles.symmetries import SYMMETRIES, transform

# ARC-AGI-1 as published holds two puzzles in both of its splits, one of them turned and recolored. Every score that
# is reported on it includes them.
PUBLISHED = {("40853293", "070dd51e"), ("caa06a1f", "50a16a69")}
CHANCE = 2  # shared demonstrations: one small pair may be the same by chance, and it answers nothing
SHOWN = 5

Form = tuple[Hashable, ...]


class Leak(NamedTuple):
    """A training puzzle that reveals an evaluation puzzle.

    Attributes:
        training: The id of the training puzzle.
        evaluation: The id of the evaluation puzzle.
        by: The part that they share: the "id", else the pair of a "test", else two "demonstrations" of the evaluation
            puzzle. In the training puzzle, these pairs may be tests or demonstrations.
    """

    training: str
    evaluation: str
    by: Literal["id", "test", "demonstrations"]


def find_leaks(training: Sequence[Puzzle], evaluation: Sequence[Puzzle]) -> list[Leak]:
    """Find the training puzzles that are also evaluation puzzles, each with the strongest reason.

    Two pairs are equal if a symmetry and a permutation of colors of `augment` map one to the other, because training
    uses these. Puzzles from one re-arc file have the id of the file.
    """
    ids = {_get_task_id(puzzle.id): puzzle.id for puzzle in evaluation}
    # Few pairs look alike before they are turned, so that few must be.
    alike = {
        _summarize_pair(pair) for puzzle in training if _get_task_id(puzzle.id) not in ids for pair in puzzle.pairs
    }

    answers: dict[Form, set[str]] = defaultdict(set)
    shown: dict[Form, set[str]] = defaultdict(set)
    for puzzle in evaluation:
        for found, pairs in (answers, puzzle.tests), (shown, puzzle.demonstrations):
            for pair in pairs:
                if _summarize_pair(pair) in alike:
                    found[_compute_form(pair)].add(puzzle.id)
    asked = {form[0] for form in (*answers, *shown)}

    leaks = []
    for puzzle in training:
        if (task := _get_task_id(puzzle.id)) in ids:
            leaks.append(Leak(puzzle.id, ids[task], "id"))
            continue
        forms = {_compute_form(pair) for pair in puzzle.pairs if _summarize_pair(pair) in asked}
        answered = {other for form in forms for other in answers.get(form, ())}
        often = Counter(other for form in forms for other in shown.get(form, ()))
        hinted = {other for other, count in often.items() if count >= CHANCE} - answered
        leaks += [Leak(puzzle.id, other, "test") for other in sorted(answered)]
        leaks += [Leak(puzzle.id, other, "demonstrations") for other in sorted(hinted)]
    return leaks


def check_disjoint(training: Sequence[Puzzle], evaluation: Sequence[Puzzle]) -> None:
    """Check that no training puzzle is also an evaluation puzzle.

    The two puzzles that ARC-AGI-1 itself publishes in both splits are allowed.

    Raises:
        ValueError: Some training puzzles are. The message contains their number and what they share.
    """
    leaks = {leak.training: leak.by for leak in find_leaks(training, evaluation) if leak[:2] not in PUBLISHED}
    if leaks:
        shared = ", ".join(f"{count} by {by}" for by, count in Counter(leaks.values()).items())
        named = ", ".join(list(leaks)[:SHOWN]) + (" and others" if len(leaks) > SHOWN else "")
        raise ValueError(
            f"training must share no puzzle with evaluation, but {len(leaks)} of its {len(training)} are there too "
            f"({shared}): {named}. Set leak=drop to train without them, or leak=allow to keep them."
        )


def drop_leaked(training: Sequence[Puzzle], evaluation: Sequence[Puzzle]) -> tuple[Puzzle, ...]:
    """Return the training puzzles that are not among the evaluation puzzles.

    Raises:
        ValueError: No puzzle is left.
    """
    leaked = {leak.training for leak in find_leaks(training, evaluation)}
    kept = tuple(puzzle for puzzle in training if puzzle.id not in leaked)
    if not kept:
        raise ValueError(
            f"training must hold puzzles that evaluation does not, but got {len(training)} that are all there too. "
            "Train on another source."
        )
    return kept


def _get_task_id(id: str) -> str:
    made = re.fullmatch(r"([0-9a-f]{8})-\d+", id)
    return made[1] if made else id


def _summarize_pair(pair: Pair) -> Hashable:
    """Return a key of a pair that symmetries and permutations of colors do not change."""
    counts = (np.bincount(grid.ravel(), minlength=COLORS) for grid in pair)
    return tuple(
        (tuple(sorted(grid.shape)), count[0], *sorted(count)) for grid, count in zip(pair, counts, strict=True)
    )


def _compute_form(pair: Pair) -> Form:
    """Return a key that two pairs share exactly if a symmetry and a permutation of colors map one to the other.

    Its first item is the key of `_summarize_pair`.
    """
    return _summarize_pair(pair), *min(
        _number_colors(transform(grid, symmetry) for grid in pair) for symmetry in range(SYMMETRIES)
    )


def _number_colors(grids: Iterable[np.ndarray]) -> tuple[tuple[tuple[int, ...], ...], bytes]:
    """Return shapes and cells, with colors numbered in the order of appearance and background 0."""
    listed = list(grids)
    cells = np.concatenate([grid.ravel() for grid in listed])
    colors, places = np.unique(cells, return_index=True)
    names = np.zeros(COLORS, dtype=np.uint8)
    appearing = [color for color in colors[places.argsort()] if color]
    names[appearing] = np.arange(1, len(appearing) + 1)
    return tuple(grid.shape for grid in listed), names[cells].tobytes()
