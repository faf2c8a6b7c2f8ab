"""Puzzles in words: what the demonstrations show, in plain English, or the grids themselves as digits.

No text holds anything of an answer: it is made of the demonstrations and of the query's input.
"""

from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from searchlight.models.arc.puzzles import SYMMETRIES, Grid, Pair, count_objects, transform

# Turning a puzzle turns its rule into another of the same group.
TURNS = {
    "turned by half": (2,),
    "turned by a quarter": (1, 3),
    "mirrored": (5, 7),
    "mirrored along a diagonal": (4, 6),
}


def describe_rule(demonstrations: Sequence[Pair], query: Grid) -> str:
    """Return a description of the demonstrations in at most 40 words.

    The text does not depend on symmetries and renamings of the puzzle or the order of its demonstrations, so that all
    views of a puzzle have one text.
    """
    asked = (
        f"The query has {_format_size(query)} cells, {_pluralize(len(np.unique(query)), 'colour')}, "
        f"{_pluralize(count_objects(query), 'object')}."
    )
    if not demonstrations:
        return f"Nothing is shown. {asked}"
    parts = (describe(demonstrations) for describe in (_describe_kind, _describe_sizes, _describe_contents))
    return " ".join([*parts, asked])


def format_grids(demonstrations: Sequence[Pair], query: Grid) -> str:
    """Return the grids as digits, with a line per row. The query comes first, so that it is never cut off."""
    parts = [f"query\n{_format_digits(query)}"]
    parts += [f"input\n{_format_digits(source)}\noutput\n{_format_digits(target)}" for source, target in demonstrations]
    return "\n".join(parts)


def _format_digits(grid: Grid) -> str:
    return "\n".join("".join(map(str, row)) for row in grid.tolist())


def _describe_kind(demonstrations: Sequence[Pair]) -> str:
    """Find the first kind of change that all demonstrations show."""
    for name, group in TURNS.items():
        if any(all(_is_equal(transform(a, symmetry), b) for a, b in demonstrations) for symmetry in group):
            return f"The grid is {name}."
    for sentence, holds in KINDS:
        if all(holds(source, target) for source, target in demonstrations):
            return sentence
    return "The grid is rebuilt."


def _describe_sizes(demonstrations: Sequence[Pair]) -> str:
    areas = fmean(target.size / source.size for source, target in demonstrations)
    if all(source.shape == target.shape for source, target in demonstrations):
        return "Sizes stay."
    if len({_format_size(target) for _, target in demonstrations}) == 1:
        return f"Outputs always have {_format_size(demonstrations[0][1])} cells."
    if areas > 1.1:
        return f"Outputs are {areas:.1f} times larger."
    return "Outputs are smaller." if areas < 0.9 else "Shapes differ."


def _describe_contents(demonstrations: Sequence[Pair]) -> str:
    """Describe colors, changed cells, symmetry and objects, means over the demonstrations."""
    added = round(fmean(len(np.setdiff1d(b, a)) for a, b in demonstrations))
    removed = round(fmean(len(np.setdiff1d(a, b)) for a, b in demonstrations))
    said = [f"{_pluralize(added, 'colour')} added", f"{removed} removed"]
    if all(a.shape == b.shape for a, b in demonstrations):
        changed = fmean(float((a != b).mean()) for a, b in demonstrations)
        said.append(f"{round(10 * changed) * 10}% changed")
    if all(_is_symmetric(b) for _, b in demonstrations):
        said.append("symmetric")
    before, after = (round(fmean(count_objects(pair[side]) for pair in demonstrations)) for side in (0, 1))
    return f"{', '.join(said)}. {_pluralize(before, 'object')} become {after}."


def _format_size(grid: Grid) -> str:
    """Return the sides of a grid as text, the shorter first, so that a rotated grid has the same text."""
    short, long = sorted(grid.shape)
    return f"{short} by {long}"


def _pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_equal(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def _is_copy(a: Grid, b: Grid) -> bool:
    return _is_equal(a, b)


def _is_renamed(a: Grid, b: Grid) -> bool:
    """Return whether the output of a cell depends on its color only."""
    return a.shape == b.shape and all(len(np.unique(b[a == color])) == 1 for color in np.unique(a))


def _is_filled(a: Grid, b: Grid) -> bool:
    return a.shape == b.shape and bool((a[a != b] == 0).all())


def _is_cleared(a: Grid, b: Grid) -> bool:
    return a.shape == b.shape and bool((b[a != b] == 0).all())


def _is_recolored(a: Grid, b: Grid) -> bool:
    return a.shape == b.shape and _is_equal(a != 0, b != 0)


def _is_moved(a: Grid, b: Grid) -> bool:
    return a.shape == b.shape and _is_equal(np.sort(a, axis=None), np.sort(b, axis=None))


def _is_edited(a: Grid, b: Grid) -> bool:
    return a.shape == b.shape and float((a != b).mean()) < 0.3


def _is_cropped(a: Grid, b: Grid) -> bool:
    """Return whether the output is a part of the input."""
    if b.size >= a.size or b.shape[0] > a.shape[0] or b.shape[1] > a.shape[1]:
        return False
    return bool((sliding_window_view(a, b.shape) == b).all((-2, -1)).any())


def _is_framed(a: Grid, b: Grid) -> bool:
    """Return whether the input is a part of the output."""
    return _is_cropped(b, a)


def _is_enlarged(a: Grid, b: Grid) -> bool:
    times = _count_repeats(a, b)
    return times is not None and _is_equal(a.repeat(times[0], 0).repeat(times[1], 1), b)


def _is_tiled(a: Grid, b: Grid) -> bool:
    """Return whether the output consists of copies of the input, which may be mirrored or turned by half."""
    times = _count_repeats(a, b)
    if times is None:
        return False
    tiles = b.reshape(times[0], a.shape[0], times[1], a.shape[1]).swapaxes(1, 2)
    flips = [a[::rows, ::columns] for rows, columns in product((1, -1), repeat=2)]
    return all(any(_is_equal(tile, flip) for flip in flips) for row in tiles for tile in row)


def _count_repeats(a: Grid, b: Grid) -> tuple[int, int] | None:
    """Return how many times the input fits into a larger output, down and across, or None if it does not fit."""
    if b.size <= a.size or b.shape[0] % a.shape[0] or b.shape[1] % a.shape[1]:
        return None
    return b.shape[0] // a.shape[0], b.shape[1] // a.shape[1]


# Another wording or spelling would be another input of the language model, and would miss in caches of its vectors.
KINDS: tuple[tuple[str, Callable[[Grid, Grid], bool]], ...] = (
    ("The grid is copied.", _is_copy),
    ("Colours are renamed.", _is_renamed),
    ("Background cells are filled.", _is_filled),
    ("Cells are removed.", _is_cleared),
    ("Objects change colour.", _is_recolored),
    ("Cells are moved.", _is_moved),
    ("Few cells are edited.", _is_edited),
    ("Many cells are edited.", lambda a, b: a.shape == b.shape),
    ("The grid is enlarged cell by cell.", _is_enlarged),
    ("The grid is tiled.", _is_tiled),
    ("The grid is cropped to a part.", _is_cropped),
    ("The grid is framed by more cells.", _is_framed),
    ("A small grid is composed.", lambda a, b: b.size < 0.9 * a.size),
    ("A large grid is composed.", lambda a, b: b.size > 1.1 * a.size),
)


def _is_symmetric(grid: Grid) -> bool:
    return any(_is_equal(transform(grid, symmetry), grid) for symmetry in range(1, SYMMETRIES))
