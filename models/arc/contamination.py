"""Training puzzles that are among the evaluation puzzles: ARC-AGI-2 trains on most of what ARC-AGI-1 asks."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from models.arc.augment import SYMMETRIES, transform
from models.arc.puzzles import COLOURS, Pair, Puzzle

# ARC-AGI-1 as published holds two puzzles in both of its splits, one of them turned and recoloured. Every score that
# is reported on it includes them.
PUBLISHED = {("40853293", "070dd51e"), ("caa06a1f", "50a16a69")}
CHANCE = 2  # shared demonstrations: one small pair may be the same by chance, and it answers nothing
SHOWN = 5

Form = tuple[Hashable, ...]


class Leak(NamedTuple):
    """A training puzzle that gives an evaluation puzzle away.

    Attributes:
        training: Id of the one.
        evaluation: Id of the other.
        by: What they share: the "id", or else the pair of a "test", or else two "demonstrations" of the evaluation
            puzzle, whatever they are to the training puzzle.
    """

    training: str
    evaluation: str
    by: Literal["id", "test", "demonstrations"]


def find_leaks(training: Sequence[Puzzle], evaluation: Sequence[Puzzle]) -> list[Leak]:
    """Find the training puzzles that are among the evaluation puzzles, each with the strongest reason.

    A pair is the same pair when it is turned, mirrored or renamed as training does it (`augment`): what a training
    puzzle becomes there is what must not be asked. Ids of puzzles made of one re-arc file are that file's.
    """
    ids = {_task(puzzle.id): puzzle.id for puzzle in evaluation}
    # Few pairs look alike before they are turned, so that few must be.
    alike = {_look(pair) for puzzle in training if _task(puzzle.id) not in ids for pair in puzzle.pairs}
    answers: dict[Form, set[str]] = defaultdict(set)
    shown: dict[Form, set[str]] = defaultdict(set)
    for puzzle in evaluation:
        for found, pairs in (answers, puzzle.tests), (shown, puzzle.demonstrations):
            for pair in pairs:
                if _look(pair) in alike:
                    found[_form(pair)].add(puzzle.id)
    asked = {form[0] for form in (*answers, *shown)}
    leaks = []
    for puzzle in training:
        if (task := _task(puzzle.id)) in ids:
            leaks.append(Leak(puzzle.id, ids[task], "id"))
            continue
        forms = {_form(pair) for pair in puzzle.pairs if _look(pair) in asked}
        answered = {other for form in forms for other in answers.get(form, ())}
        often = Counter(other for form in forms for other in shown.get(form, ()))
        hinted = {other for other, count in often.items() if count >= CHANCE} - answered
        leaks += [Leak(puzzle.id, other, "test") for other in sorted(answered)]
        leaks += [Leak(puzzle.id, other, "demonstrations") for other in sorted(hinted)]
    return leaks


def check_disjoint(training: Sequence[Puzzle], evaluation: Sequence[Puzzle]) -> None:
    """Refuse training puzzles that are among the evaluation puzzles.

    The two puzzles that ARC-AGI-1 itself publishes in both splits pass.

    Raises:
        ValueError: There are some; the message says how many, and what they share.
    """
    leaks = {leak.training: leak.by for leak in find_leaks(training, evaluation) if leak[:2] not in PUBLISHED}
    if leaks:
        shared = ", ".join(f"{count} by {by}" for by, count in Counter(leaks.values()).items())
        named = ", ".join(list(leaks)[:SHOWN]) + (" and others" if len(leaks) > SHOWN else "")
        raise ValueError(
            f"training must share no puzzle with evaluation, but {len(leaks)} of its {len(training)} are there too "
            f"({shared}): {named}. Set leak=drop to train without them, or leak=allow to keep them."
        )


def without(training: Sequence[Puzzle], evaluation: Sequence[Puzzle]) -> tuple[Puzzle, ...]:
    """Return the training puzzles that are not among the evaluation puzzles.

    Raises:
        ValueError: None is left.
    """
    leaked = {leak.training for leak in find_leaks(training, evaluation)}
    kept = tuple(puzzle for puzzle in training if puzzle.id not in leaked)
    if not kept:
        raise ValueError(
            f"training must hold puzzles that evaluation does not, but got {len(training)} that are all there too. "
            "Train on another source."
        )
    return kept


def _task(id: str) -> str:
    made = re.fullmatch(r"([0-9a-f]{8})-\d+", id)
    return made[1] if made else id


def _look(pair: Pair) -> Hashable:
    """Return what a pair keeps when it is turned and renamed."""
    counts = (np.bincount(grid.ravel(), minlength=COLOURS) for grid in pair)
    return tuple(
        (tuple(sorted(grid.shape)), count[0], *sorted(count)) for grid, count in zip(pair, counts, strict=True)
    )


def _form(pair: Pair) -> Form:
    """Return what a pair shares with another exactly if one is the other turned and renamed; its look comes first."""
    return _look(pair), *min(_renamed(transform(grid, symmetry) for grid in pair) for symmetry in range(SYMMETRIES))


def _renamed(grids: Iterable[np.ndarray]) -> tuple[tuple[tuple[int, ...], ...], bytes]:
    """Return shapes, and cells whose colours are numbered as they appear; the background stays 0."""
    listed = list(grids)
    cells = np.concatenate([grid.ravel() for grid in listed])
    colours, places = np.unique(cells, return_index=True)
    names = np.zeros(COLOURS, dtype=np.uint8)
    appearing = [colour for colour in colours[places.argsort()] if colour]
    names[appearing] = np.arange(1, len(appearing) + 1)
    return tuple(grid.shape for grid in listed), names[cells].tobytes()
