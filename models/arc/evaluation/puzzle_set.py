"""Puzzles with all that a policy is trained and evaluated on: statistics, and the results of all programs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from searchlight.models.arc.policy import compute_statistics
from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, FreeEnergy, Program, ProgramResult, RewardTable, rank
from searchlight.models.arc.puzzles import Grid, Puzzle

OPERATION_COUNT = len(OPERATIONS)


class PuzzleSet(NamedTuple):
    """P puzzles with the results of all programs: A of one operation, and combinations.

    Attributes:
        puzzles: The puzzles.
        statistics: See `compute_statistics`, float32 of shape (P, S).
        is_valid: Which operations apply to the demonstrations, bool of shape (P, A).
        rewards: The rewards on hidden demonstrations, float32 of shape (P, A).
        results: For each puzzle, the results of all operations, then that of a readout of the inputs.
        combinations: For each puzzle, the results of the best combinations of operations.
    """

    puzzles: Sequence[Puzzle]
    statistics: Tensor
    is_valid: Tensor
    rewards: Tensor
    results: Sequence[Sequence[ProgramResult]]
    combinations: Sequence[Sequence[ProgramResult]]

    def answer(self, order: Tensor, programs: int, free_energy: FreeEnergy | None = None) -> list[tuple[Grid, Grid]]:
        """Answer each test twice with the first programs of an order, their combinations, and the inputs' readout.

        Args:
            order: Operations, the first to execute first, int64 of shape (P, A).
            programs: The number of programs that are executed for each puzzle.
            free_energy: The weights of the terms by which answers are ranked. None: the defaults.

        Returns:
            Two attempts for each test, in the order of the puzzles and their tests.
        """
        attempts = []
        for index, puzzle in enumerate(self.puzzles):
            found = rank(self._list_results(index, order, programs), free_energy)
            attempts += list(_complete(puzzle, found))
        return attempts

    def find_best(self, puzzle: int, order: Tensor, programs: int) -> Program:
        """Return the best program of those that `answer` executes for a puzzle, if possible one that answers a test."""
        results = self._list_results(puzzle, order, programs)
        best: ProgramResult = max(results, key=lambda result: (result.answers[0] is not None, result.value))
        return best.program

    def _list_results(self, puzzle: int, order: Tensor, programs: int) -> list[ProgramResult]:
        """Return the results of the inputs' readout, of the first programs that apply, and of their combinations."""
        results, first = self.results[puzzle], order[puzzle, :programs].tolist()
        executed = [results[index] for index in first if results[index].is_valid]
        known = {*first}
        combinations = [each for each in self.combinations[puzzle] if known.issuperset(each.program.executed)]
        return [results[-1], *executed, *combinations]


def _complete(puzzle: Puzzle, found: Sequence[tuple[Grid, ...]]) -> Iterator[tuple[Grid, Grid]]:
    """Yield two attempts for each test, which repeat the first one, or the input, where there are fewer."""
    for (source, _), grids in zip(puzzle.tests, found, strict=True):
        first, second, *_ = (*grids, *grids, source, source)
        yield first, second


def prepare_puzzle_set(puzzles: Sequence[Puzzle], folder: Path | None, with_combinations: bool = False) -> PuzzleSet:
    """Execute all programs of one operation for puzzles, or read their results from a folder that keeps them.

    `with_combinations` also searches combinations of operations, see `find_combinations`.
    """
    table = (
        RewardTable.build(puzzles, with_combinations=with_combinations)
        if folder is None
        else RewardTable.load_or_build(folder, puzzles, with_combinations=with_combinations)
    )
    results = [[table.get_result(index, program) for program in range(len(DEPTH_1))] for index in range(len(puzzles))]
    return PuzzleSet(
        puzzles,
        torch.from_numpy(np.stack([compute_statistics(puzzle.demonstrations) for puzzle in puzzles])),
        torch.from_numpy(table.is_valid[:, :OPERATION_COUNT].copy()),
        torch.from_numpy(table.rewards[:, :OPERATION_COUNT].astype(np.float32)),
        results,
        [table.get_combinations(index) for index in range(len(puzzles))],
    )
