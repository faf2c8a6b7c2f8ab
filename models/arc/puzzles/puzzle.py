"""Puzzles and their grids."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.uint8]
Pair = tuple[Grid, Grid]

COLORS = 10
LARGEST_SIDE = 30


@dataclass(frozen=True, eq=False)
class Puzzle:
    """One puzzle: pairs that show the rule, and pairs that ask for it.

    Attributes:
        id: The puzzle's public name, eight hexadecimal digits in ARC-AGI.
        demonstrations: Pairs (input, output) of uint8 grids of shape (height, width), colors 0..9.
        tests: Pairs (input, output) in the same form; the output is the answer.
    """

    id: str
    demonstrations: tuple[Pair, ...]
    tests: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Return all pairs, demonstrations first."""
        return self.demonstrations + self.tests

    @property
    def side(self) -> int:
        """Return the longest side of any grid of the puzzle, answers included."""
        return find_longest_side(self.pairs)


def find_longest_side(pairs: Iterable[Pair]) -> int:
    """Return the longest side of all grids in `pairs`, in cells."""
    return max(int(side) for pair in pairs for grid in pair for side in grid.shape)


def hash_puzzles(puzzles: Iterable[Puzzle]) -> str:
    """Hash ids, shapes and cells, in the order given: sha256, 64 hexadecimal digits."""
    sha = hashlib.sha256()
    for puzzle in puzzles:
        sha.update(f"{puzzle.id} {len(puzzle.demonstrations)} {len(puzzle.tests)}\n".encode())
        for pair in puzzle.pairs:
            for grid in pair:
                sha.update(f"{grid.shape[0]} {grid.shape[1]}\n".encode())
                sha.update(np.ascontiguousarray(grid).tobytes())
    return sha.hexdigest()


def pack_grids(grids: Sequence[Grid]) -> NDArray[np.int8]:
    """Return grids as one int8 array of shape (grids, 30, 30), each in the upper left corner and padded with -1."""
    arrays = np.full((len(grids), LARGEST_SIDE, LARGEST_SIDE), -1, dtype=np.int8)
    for array, grid in zip(arrays, grids, strict=True):
        array[: grid.shape[0], : grid.shape[1]] = grid
    return arrays


def unpack_grids(arrays: NDArray[Any]) -> list[Grid]:
    """Return the grids that `pack_grids` put into one array.

    Raises:
        ValueError: A part of it is not a rectangle of colors 0..9 in the upper left corner.
    """
    grids = []
    for index, array in enumerate(arrays):
        inside = array != -1
        height, width = int(inside.any(-1).sum()), int(inside.any(-2).sum())
        grid = array[:height, :width]
        if not grid.size or inside.sum() != grid.size or not ((grid >= 0) & (grid < COLORS)).all():
            raise ValueError(
                f"grid {index} must be a rectangle of colors 0..9 in the upper left corner, and -1 elsewhere, but "
                f"got {shorten(array.tolist())}."
            )
        grids.append(grid.astype(np.uint8))
    return grids


def count_objects(grid: Grid) -> int:
    """Return the number of groups of cells of one color that share edges, without the background (color 0)."""
    return _count_objects(grid.tobytes(), grid.shape[1])


# The same grids are asked about again and again, each time with one of the pairs left out.
@lru_cache(maxsize=8192)
def _count_objects(cells: bytes, width: int) -> int:
    # A column of background on the right keeps the ends of neighboring rows apart.
    rows = [cells[start : start + width] + b"\0" for start in range(0, len(cells), width)]
    colors = bytearray(b"".join(rows))
    found = 0
    for start, color in enumerate(colors):
        if not color:
            continue
        found += 1
        waiting = [start]
        while waiting:
            cell = waiting.pop()
            if 0 <= cell < len(colors) and colors[cell] == color:
                colors[cell] = 0
                waiting += (cell - 1, cell + 1, cell - width - 1, cell + width + 1)
    return found


def shorten(value: object) -> str:
    """Shorten a value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
