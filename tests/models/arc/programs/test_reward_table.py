"""Tables of rewards: what they hold is what execution gives, and they are read back from the cache."""

import numpy as np
import pytest

from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, Executor, Program, RewardTable, rank
from searchlight.models.arc.programs import reward_table as module
from searchlight.models.arc.puzzles import load_puzzles

PROGRAMS = DEPTH_1[:20] + DEPTH_1[-1:] + (Program((0, 1)),)


def check_equal(one, two):
    assert one.program == two.program
    for name in ("is_valid", "value", "reward", "accuracy", "hidden_share", "shown_share", "components", "ambiguity"):
        assert getattr(one, name) == getattr(two, name)
    for first, second in zip(one.answers, two.answers, strict=True):
        assert (first is None) == (second is None)
        assert first is None or np.array_equal(first, second)


def test_default_programs_are_operations_then_none():
    assert [program.operations for program in DEPTH_1] == [(index,) for index in range(len(OPERATIONS))] + [()]


def test_table_holds_what_execution_gives(puzzles):
    table = RewardTable.build(puzzles, PROGRAMS)
    for row, puzzle in enumerate(puzzles):
        executor = Executor(puzzle)
        results = [executor.execute(program) for program in PROGRAMS]
        for column, result in enumerate(results):
            check_equal(table.get_result(row, column), result)
            assert table.rewards[row, column] == result.reward
            assert table.fits_exactly[row, column] == result.fits_exactly
        expected, found = rank(results), table.rank(row)
        assert all(
            np.array_equal(a, b) for x, y in zip(expected, found, strict=True) for a, b in zip(x, y, strict=True)
        )
    assert table.fits_exactly.any()
    assert not table.is_valid.all()


def test_saved_table_is_not_built_again(puzzles, tmp_path, monkeypatch):
    built = RewardTable.load_or_build(tmp_path / "tables", puzzles, PROGRAMS)
    monkeypatch.delattr(module.RewardTable, "build")
    loaded = RewardTable.load_or_build(tmp_path / "tables", puzzles, PROGRAMS)
    for name in module.ARRAYS:
        assert np.array_equal(getattr(built, name), getattr(loaded, name))


@pytest.mark.parametrize("change", ["puzzles", "programs", "code"])
def test_other_inputs_have_another_table(puzzles, tmp_path, monkeypatch, change):
    RewardTable.load_or_build(tmp_path, puzzles, PROGRAMS)
    if change == "code":
        monkeypatch.setattr(module, "_hash_code", lambda: "other")
    other = (puzzles[1:] if change == "puzzles" else puzzles, PROGRAMS[1:] if change == "programs" else PROGRAMS)
    table = RewardTable.load_or_build(tmp_path, *other)
    assert table.rewards.shape == (len(other[0]), len(other[1]))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("keep", [0, 100, -100])
def test_damaged_table_is_built_again(puzzles, tmp_path, keep):
    expected = RewardTable.load_or_build(tmp_path, puzzles, PROGRAMS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:keep])
    table = RewardTable.load_or_build(tmp_path, puzzles, PROGRAMS)
    assert np.array_equal(table.rewards, expected.rewards)
    assert np.array_equal(RewardTable.load_or_build(tmp_path, puzzles, PROGRAMS).cells, expected.cells)


def test_small_training_puzzles_are_met_as_before():
    puzzles = load_puzzles("arc-agi-1", "training", max_side=5)[:10]
    table = RewardTable.build(puzzles)
    pairs = [pair for row in range(len(puzzles)) for pair in zip(table.rank(row), puzzles[row].tests, strict=True)]
    met = sum(any(np.array_equal(grid, target) for grid in attempts) for attempts, (_, target) in pairs)
    exact, hidden = table.fits_exactly.any(1).sum(), table.meets_hidden.any(1).sum()
    assert (len(puzzles), len(pairs), met, exact, hidden, table.is_valid.sum()) == (10, 14, 12, 8, 6, 1669)
    assert table.rewards.sum() == pytest.approx(38.64227635327636)
