import json
from pathlib import Path

import numpy as np
import pytest

from searchlight.models.arc.puzzles import hash_puzzles, load_puzzles
from searchlight.models.arc.puzzles.datasets import RE_ARC_PUZZLES
from searchlight.models.arc.puzzles.generators.generator import EASY, FAMILIES


def write(folder: Path, split: str, name: str, content: object) -> None:
    (folder / split).mkdir(parents=True, exist_ok=True)
    (folder / split / f"{name}.json").write_text(json.dumps(content))


def pair(rows: object) -> dict[str, object]:
    return {"input": [[1, 2]], "output": rows}


def re_arc(folder: Path, task: str, sides: list[int]) -> list[np.ndarray]:
    """Write a file in the layout of re-arc, and return its inputs."""
    random = np.random.default_rng(0)
    inputs = [random.integers(0, 10, size=(side, 2)) for side in sides]
    content = [{"input": grid.tolist(), "output": grid.T.tolist()} for grid in inputs]
    (folder / "tasks").mkdir(exist_ok=True)
    (folder / "tasks" / f"{task}.json").write_text(json.dumps(content))
    return inputs


def test_the_packaged_sets_are_those_that_were_published() -> None:
    published = {"arc-agi-1": [(400, 416), (400, 419)], "arc-agi-2": [(1000, 1076), (120, 167)]}
    for name, sizes in published.items():
        found = [load_puzzles(name, split, max_side=30) for split in ("training", "evaluation")]
        assert [(len(puzzles), sum(len(puzzle.tests) for puzzle in puzzles)) for puzzles in found] == sizes
    small = load_puzzles("arc-agi-1", "evaluation", max_side=10)
    assert [puzzle.id for puzzle in small] == sorted(puzzle.id for puzzle in small)
    assert (len(small), max(puzzle.side for puzzle in small)) == (77, 10)
    assert {grid.dtype for puzzle in small for pair in puzzle.pairs for grid in pair} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    ("name", "families"),
    [("generated", set(FAMILIES)), pytest.param("generated-easy", set(EASY), marks=pytest.mark.slow)],
)
def test_generated_puzzles_fit_and_are_the_same_every_time(name: str, families: set[str]) -> None:
    puzzles, again = (load_puzzles(name, "evaluation", max_side=9) for _ in range(2))
    assert max(puzzle.side for puzzle in puzzles) == 9
    assert {puzzle.id.split("-")[0] for puzzle in puzzles} == families
    assert hash_puzzles(puzzles) == hash_puzzles(again)


def test_a_folder_in_the_public_layout_is_read(tmp_path: Path) -> None:
    write(tmp_path, "training", "b", {"train": [pair([[3], [4]])], "test": [pair([[5]])]})
    write(tmp_path, "training", "a", {"train": [pair([[1, 2]])], "test": [pair([[0, 9]])]})
    write(tmp_path, "training", "large", {"train": [pair([[0] * 13])], "test": [pair([[0]])]})
    first, second = load_puzzles(str(tmp_path), "training")
    assert (first.id, second.id) == ("a", "b")
    assert second.demonstrations[0][1].tolist() == [[3], [4]]
    assert second.tests[0][1].tolist() == [[5]]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "training/x",
            {"train": [pair([[1, 2], [3]])], "test": [pair([[1]])]},
            r"train\[0\]\.output must be a rectangle",
        ),
        ("training/x", {"train": [pair([[1]])], "test": [pair([[10]])]}, r"test\[0\]\.output must be .*got \[\[10\]\]"),
        ("training/x", {"train": [pair([[True]])], "test": [pair([[1]])]}, r"train\[0\]\.output must be"),
        ("training/x", {"train": [pair([])], "test": [pair([[1]])]}, r"train\[0\]\.output must be .*got \[\]"),
        ("training/x", {"train": [{"input": [[1]]}], "test": [pair([[1]])]}, r"train\[0\]\.output must be .*got None"),
        ("training/x", {"train": [pair([[1]])]}, "must hold a list of pairs named 'test', but got None"),
        ("training/x", [1], "must hold a list of pairs named 'train'"),
        ("training/x", "{", "must hold JSON, but got"),
        ("tasks/x", {}, r"x\.json must hold a list of pairs, but got"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(tmp_path: Path, file: str, content: object, message: str) -> None:
    (tmp_path / f"{file}.json").parent.mkdir(exist_ok=True)
    (tmp_path / f"{file}.json").write_text(content if content == "{" else json.dumps(content))
    with pytest.raises(ValueError, match=message) as refusal:
        load_puzzles(str(tmp_path), "training")
    assert "\n" not in str(refusal.value)


def test_a_file_of_re_arc_becomes_puzzles_of_pairs_that_fit(tmp_path: Path) -> None:
    inputs = re_arc(tmp_path, "007bbfb7", [3, 13, 4, 5, 6, 3, 3, 3, 20, 3, 3])
    first, second = load_puzzles(str(tmp_path), "training")
    assert (first.id, second.id) == ("007bbfb7-0", "007bbfb7-1")
    fit = [inputs[place].tolist() for place in (0, 2, 3, 4, 5, 6, 7, 9)]
    assert [source.tolist() for source, _ in first.pairs + second.pairs] == fit
    assert (len(first.demonstrations), len(first.tests)) == (3, 1)
    assert all(np.array_equal(target, source.T) for source, target in first.pairs)
    re_arc(tmp_path, "007bbfb7", [3] * 200)
    assert len(load_puzzles(str(tmp_path), "training")) == RE_ARC_PUZZLES


@pytest.mark.parametrize(
    ("source", "split", "side", "message"),
    [
        ("arc-agi-1", "training", 1, "max_side must keep at least one training puzzle of arc-agi-1, but got 1"),
        ("generated", "training", 5, "max_side must be at least 6 for generated puzzles, but got 5"),
        ("nothing", "training", 12, r"source must be a folder with training/\*\.json or tasks"),
        ("re-arc", "training", 12, "max_side must keep at least one training puzzle of .*, but got 12"),
        ("re-arc", "evaluation", 12, "source must have an evaluation split, but got .* layout of re-arc"),
        ("public", "training", 12, r"source must have puzzles in training/\*\.json, but got"),
        ("public", "evaluation", 12, r"^source must have puzzles in evaluation/\*\.json, but got .* none there\."),
    ],
)
def test_a_source_without_such_puzzles_is_refused(tmp_path: Path, source, split, side, message) -> None:
    for folder in ("nothing", "re-arc", "public/training"):
        (tmp_path / folder).mkdir(parents=True)
    re_arc(tmp_path / "re-arc", "007bbfb7", [13] * 4)
    given = str(tmp_path / source) if (tmp_path / source).exists() else source
    with pytest.raises(ValueError, match=message):
        load_puzzles(given, split, max_side=side)
