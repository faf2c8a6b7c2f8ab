import json
from pathlib import Path

import numpy as np
import pytest

from models.arc import Puzzle, digest, load_puzzles
from models.arc.datasets import RE_ARC_PUZZLES
from models.arc.generators.generator import EASY, FAMILIES


def write(folder: Path, split: str, name: str, content: object) -> None:
    (folder / split).mkdir(parents=True, exist_ok=True)
    (folder / split / f"{name}.json").write_text(json.dumps(content))


def pair(rows: object) -> dict[str, object]:
    return {"input": [[1, 2]], "output": rows}


def test_the_packaged_set_is_arc_agi_1() -> None:
    training, evaluation = (
        load_puzzles("arc-agi-1", "training", max_side=30),
        load_puzzles("arc-agi-1", "evaluation", max_side=30),
    )
    assert (len(training), len(evaluation)) == (400, 400)
    assert not {puzzle.id for puzzle in training} & {puzzle.id for puzzle in evaluation}
    assert sum(len(puzzle.tests) for puzzle in training) == 416
    assert sum(len(puzzle.tests) for puzzle in evaluation) == 419


def test_puzzles_are_sorted_and_all_their_grids_fit() -> None:
    puzzles = load_puzzles("arc-agi-1", "evaluation", max_side=10)
    assert [puzzle.id for puzzle in puzzles] == sorted(puzzle.id for puzzle in puzzles)
    assert len(puzzles) == 77
    assert max(puzzle.side for puzzle in puzzles) == 10
    assert all(grid.dtype == np.uint8 for puzzle in puzzles for pair in puzzle.pairs for grid in pair)


def test_a_folder_in_the_public_layout_is_read(tmp_path: Path) -> None:
    write(tmp_path, "training", "b", {"train": [pair([[3], [4]])], "test": [pair([[5]])]})
    write(tmp_path, "training", "a", {"train": [pair([[1, 2]])], "test": [pair([[0, 9]])]})
    write(tmp_path, "training", "large", {"train": [pair([[0] * 13])], "test": [pair([[0]])]})
    first, second = load_puzzles(str(tmp_path), "training")
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
        load_puzzles(str(tmp_path), "evaluation")
    assert "\n" not in str(refusal.value)


def test_broken_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "x.json").write_text("{")
    with pytest.raises(ValueError, match="must hold JSON, but got"):
        load_puzzles(str(tmp_path), "training")


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of training, evaluation, but got 'test'"):
        load_puzzles("arc-agi-1", "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_side must lie in 1\.\.30, but got 0"):
        load_puzzles("arc-agi-1", "training", max_side=0)
    with pytest.raises(ValueError, match=r"source must be a folder with training/\*\.json or tasks"):
        load_puzzles(str(tmp_path), "training")
    with pytest.raises(ValueError, match="max_side must keep at least one training puzzle of arc-agi-1, but got 1"):
        load_puzzles("arc-agi-1", "training", max_side=1)


def test_arc_agi_2_is_another_set() -> None:
    training, evaluation = (load_puzzles("arc-agi-2", split, max_side=30) for split in ("training", "evaluation"))
    assert (len(training), len(evaluation)) == (1000, 120)


def test_generated_puzzles_fit_and_are_the_same_every_time() -> None:
    training, evaluation = (load_puzzles("generated", split, max_side=9) for split in ("training", "evaluation"))
    assert (len(training), len(evaluation)) == (400, 96)
    assert max(puzzle.side for puzzle in training + evaluation) == 9
    assert {puzzle.id.split("-")[0] for puzzle in evaluation} == set(FAMILIES)
    assert {puzzle.id.split("-")[0] for puzzle in load_puzzles("generated-easy", "training")} == set(EASY)
    assert digest(training) == digest(load_puzzles("generated", "training", max_side=9))


def re_arc(folder: Path, task: str, sides: list[int]) -> list[np.ndarray]:
    """Write a file in the layout of re-arc, and return its inputs."""
    random = np.random.default_rng(0)
    inputs = [random.integers(0, 10, size=(side, 2)) for side in sides]
    content = [{"input": grid.tolist(), "output": grid.T.tolist()} for grid in inputs]
    (folder / "tasks").mkdir(exist_ok=True)
    (folder / "tasks" / f"{task}.json").write_text(json.dumps(content))
    return inputs


def inputs_of(puzzle: Puzzle) -> list[object]:
    return [source.tolist() for source, _ in puzzle.pairs]


def test_a_file_of_re_arc_becomes_several_puzzles_of_the_pairs_that_fit(tmp_path: Path) -> None:
    inputs = re_arc(tmp_path, "007bbfb7", [3, 13, 4, 5, 6, 3, 3, 3, 20, 3, 3])
    first, second = load_puzzles(str(tmp_path), "training")
    fit = [inputs[place].tolist() for place in (0, 2, 3, 4, 5, 6, 7, 9)]
    assert (first.id, second.id) == ("007bbfb7-0", "007bbfb7-1")
    assert inputs_of(first) + inputs_of(second) == fit
    assert (len(first.demonstrations), len(first.tests)) == (3, 1)
    assert all(np.array_equal(target, source.T) for source, target in first.pairs)
    assert first.level is None


def test_a_file_of_re_arc_becomes_a_few_puzzles_at_most(tmp_path: Path) -> None:
    re_arc(tmp_path, "007bbfb7", [3] * 200)
    assert len(load_puzzles(str(tmp_path), "training")) == RE_ARC_PUZZLES


def test_the_difficulties_of_re_arc_are_the_levels_of_its_puzzles(tmp_path: Path) -> None:
    re_arc(tmp_path, "007bbfb7", [3, 13, 3, 3, 3])
    re_arc(tmp_path, "00d62c1b", [3] * 4)
    metadata = {"007bbfb7": {"pso_difficulties": [0.1, 0.9, 0.2, 0.3, 0.4], "rng_difficulties": [0.5] * 5}}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    known, unknown = load_puzzles(str(tmp_path), "training")
    assert known.level == pytest.approx(0.25)
    assert unknown.level is None


@pytest.mark.parametrize("content", [[1], {"007bbfb7": {}}, {"007bbfb7": {"pso_difficulties": ["hard"]}}])
def test_metadata_without_difficulties_are_refused_in_one_line(tmp_path: Path, content: object) -> None:
    re_arc(tmp_path, "007bbfb7", [3] * 4)
    (tmp_path / "metadata.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"metadata\.json must hold a list of numbers named 'pso_diff.*, but got"
    ) as refusal:
        load_puzzles(str(tmp_path), "training")
    assert "\n" not in str(refusal.value)


def test_re_arc_has_nothing_to_evaluate_on(tmp_path: Path) -> None:
    re_arc(tmp_path, "007bbfb7", [3] * 4)
    with pytest.raises(ValueError, match=r"source must have an evaluation split, but got .* layout of re-arc"):
        load_puzzles(str(tmp_path), "evaluation")


@pytest.mark.parametrize("content", [{}, [], {"train": []}])
def test_a_file_that_is_not_of_re_arc_is_refused(tmp_path: Path, content: object) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "x.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"x\.json must hold a list of pairs, but got"):
        load_puzzles(str(tmp_path), "training")


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"source must be arc-agi-1, .* or the absolute path .* but got 'arc-agi-3'"):
        load_puzzles("arc-agi-3", "training")
    with pytest.raises(ValueError, match="max_side must be at least 6 for generated puzzles, but got 5"):
        load_puzzles("generated", "training", max_side=5)
    re_arc(tmp_path, "007bbfb7", [13] * 4)
    with pytest.raises(ValueError, match=r"max_side must keep at least one training puzzle of .*, but got 12"):
        load_puzzles(str(tmp_path), "training", max_side=12)
    (tmp_path / "training").mkdir()
    with pytest.raises(ValueError, match=r"source must have puzzles in training/\*\.json, but got"):
        load_puzzles(str(tmp_path), "training")


def test_a_folder_without_the_split_that_is_asked_for_says_which_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    with pytest.raises(ValueError, match=r"^source must have puzzles in evaluation/\*\.json, but got .* none there\."):
        load_puzzles(str(tmp_path), "evaluation")
