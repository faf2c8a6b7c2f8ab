import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays
from hypothesis.strategies import integers, lists

from models.arc import Grid, Puzzle, digest, from_arrays, load_puzzles, to_arrays


def write(folder: Path, split: str, name: str, content: object) -> None:
    (folder / split).mkdir(parents=True, exist_ok=True)
    (folder / split / f"{name}.json").write_text(json.dumps(content))


def pair(rows: object) -> dict[str, object]:
    return {"input": [[1, 2]], "output": rows}


def test_the_packaged_set_is_arc_agi_1() -> None:
    training, evaluation = load_puzzles("training", max_side=30), load_puzzles("evaluation", max_side=30)
    assert (len(training), len(evaluation)) == (400, 400)
    assert not {puzzle.id for puzzle in training} & {puzzle.id for puzzle in evaluation}
    assert sum(len(puzzle.tests) for puzzle in training) == 416
    assert sum(len(puzzle.tests) for puzzle in evaluation) == 419


def test_puzzles_are_sorted_and_all_their_grids_fit() -> None:
    puzzles = load_puzzles("evaluation", max_side=10)
    assert [puzzle.id for puzzle in puzzles] == sorted(puzzle.id for puzzle in puzzles)
    assert len(puzzles) == 77
    assert max(puzzle.side for puzzle in puzzles) == 10
    assert all(grid.dtype == np.uint8 for puzzle in puzzles for pair in puzzle.pairs for grid in pair)


def test_a_folder_in_the_public_layout_is_read(tmp_path: Path) -> None:
    write(tmp_path, "training", "b", {"train": [pair([[3], [4]])], "test": [pair([[5]])]})
    write(tmp_path, "training", "a", {"train": [pair([[1, 2]])], "test": [pair([[0, 9]])]})
    write(tmp_path, "training", "large", {"train": [pair([[0] * 13])], "test": [pair([[0]])]})
    first, second = load_puzzles("training", path=tmp_path)
    assert (first.id, second.id) == ("a", "b")
    assert second.demonstrations[0][1].tolist() == [[3], [4]]
    assert second.tests[0][1].tolist() == [[5]]
    assert first.keeps_shape
    assert not second.keeps_shape


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": [pair([[1, 2], [3]])], "test": [pair([[1]])]}, r"train\[0\]\.output must be a rectangle"),
        ({"train": [pair([[1]])], "test": [pair([[10]])]}, r"test\[0\]\.output must be .*got \[\[10\]\]"),
        ({"train": [pair([[True]])], "test": [pair([[1]])]}, r"train\[0\]\.output must be"),
        ({"train": [pair([])], "test": [pair([[1]])]}, r"train\[0\]\.output must be .*got \[\]"),
        ({"train": [{"input": [[1]]}], "test": [pair([[1]])]}, r"train\[0\]\.output must be .*got None"),
        ({"train": [pair([[1]])]}, r"must hold a list of pairs named 'test', but got None"),
        ([1], r"must hold a list of pairs named 'train'"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(tmp_path: Path, content: object, message: str) -> None:
    write(tmp_path, "evaluation", "x", content)
    with pytest.raises(ValueError, match=message) as refusal:
        load_puzzles("evaluation", path=tmp_path)
    assert "\n" not in str(refusal.value)


def test_broken_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "x.json").write_text("{")
    with pytest.raises(ValueError, match="must hold JSON, but got"):
        load_puzzles("training", path=tmp_path)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of training, evaluation, but got 'test'"):
        load_puzzles("test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_side must lie in 1\.\.30, but got 0"):
        load_puzzles("training", max_side=0)
    with pytest.raises(ValueError, match=r"path must contain training/\*\.json"):
        load_puzzles("training", path=tmp_path)
    with pytest.raises(ValueError, match="max_side must keep at least one training puzzle, but got 1"):
        load_puzzles("training", max_side=1)


def test_the_digest_depends_on_every_cell_and_shape() -> None:
    grid = np.array([[1, 2, 3, 4]], dtype=np.uint8)
    other = grid.copy()
    other[0, 3] = 5
    variants = [
        Puzzle("a", ((grid, grid),), ((grid, grid),)),
        Puzzle("b", ((grid, grid),), ((grid, grid),)),
        Puzzle("a", ((grid, grid),), ((grid, other),)),
        Puzzle("a", ((grid, grid),), ((grid, grid.reshape(2, 2)),)),
        Puzzle("a", ((grid, grid), (grid, grid)), ()),
    ]
    assert len({digest([variant]) for variant in variants}) == len(variants)
    assert digest([variants[0]]) == digest([Puzzle("a", ((grid.copy(), grid),), ((grid, grid),))])
    assert len(digest([])) == 64


@given(lists(arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=30), elements=integers(0, 9)), max_size=3))
def test_grids_of_any_size_come_back_from_one_array(grids: list[Grid]) -> None:
    made = to_arrays(grids)
    assert made.shape == (len(grids), 30, 30)
    assert [grid.tolist() for grid in from_arrays(made)] == [grid.tolist() for grid in grids]


@pytest.mark.parametrize(
    "cells",
    [{}, {(1, 1): 3}, {(0, 0): 1, (0, 2): 1}, {(0, 0): 10}, {(0, 0): -2}, {(0, 0): 1, (0, 1): 1, (1, 0): 1}],
)
def test_an_array_that_holds_no_grid_is_refused(cells: dict[tuple[int, int], int]) -> None:
    array = np.full((1, 30, 30), -1)
    for place, colour in cells.items():
        array[0][place] = colour
    with pytest.raises(ValueError, match="grid 0 must be a rectangle of colours"):
        from_arrays(array)
