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
    """P puzzles, and the results of the programs of one operation, of which there are A.

    Attributes:
        puzzles: The puzzles.
        statistics: See `compute_statistics`, float32 of shape (P, S).
        is_valid: Which operations apply to the demonstrations, bool of shape (P, A).
        rewards: The rewards on hidden demonstrations, float32 of shape (P, A).
        results: For each puzzle, the results of all operations, then that of a readout of the inputs.
    """

    puzzles: Sequence[Puzzle]
    statistics: Tensor
    is_valid: Tensor
    rewards: Tensor
    results: Sequence[Sequence[ProgramResult]]

    def select(self, places: slice) -> "PuzzleSet":
        """Return a part of the puzzles."""
        return PuzzleSet(
            self.puzzles[places],
            self.statistics[places],
            self.is_valid[places],
            self.rewards[places],
            self.results[places],
        )

    def answer(self, order: Tensor, programs: int, free_energy: FreeEnergy | None = None) -> list[tuple[Grid, Grid]]:
        """Answer each test twice with the first programs of an order, those that apply, and the inputs' readout.

        Args:
            order: Operations, the first to execute first, int64 of shape (P, A).
            programs: The number of programs that are executed for each puzzle.
            free_energy: The weights of the terms by which answers are ranked. None: the defaults.

        Returns:
            Two attempts for each test, in the order of the puzzles and their tests.
        """
        attempts = []
        for puzzle, results, first in zip(self.puzzles, self.results, order[:, :programs].tolist(), strict=True):
            executed = [results[index] for index in first if results[index].is_valid]
            found = rank([*executed, results[-1]], free_energy)
            attempts += list(_complete(puzzle, found))
        return attempts

    def find_best(self, puzzle: int, order: Tensor, programs: int) -> Program:
        """Return the best program of those that `answer` executes for a puzzle, if possible one that answers a test."""
        results = self.results[puzzle]
        executed = [results[-1], *(results[index] for index in order[puzzle, :programs].tolist())]
        best: ProgramResult = max(executed, key=lambda result: (result.answers[0] is not None, result.value))
        return best.program


def _complete(puzzle: Puzzle, found: Sequence[tuple[Grid, ...]]) -> Iterator[tuple[Grid, Grid]]:
    """Yield two attempts for each test, which repeat the first one, or the input, where there are fewer."""
    for (source, _), grids in zip(puzzle.tests, found, strict=True):
        first, second, *_ = (*grids, *grids, source, source)
        yield first, second


def prepare_puzzle_set(puzzles: Sequence[Puzzle], folder: Path | None) -> PuzzleSet:
    """Execute all programs of one operation for puzzles, or read their results from a folder that keeps them."""
    table = RewardTable.build(puzzles) if folder is None else RewardTable.load_or_build(folder, puzzles)
    results = [[table.get_result(index, program) for program in range(len(DEPTH_1))] for index in range(len(puzzles))]
    return PuzzleSet(
        puzzles,
        torch.from_numpy(np.stack([compute_statistics(puzzle.demonstrations) for puzzle in puzzles])),
        torch.from_numpy(table.is_valid[:, :OPERATION_COUNT].copy()),
        torch.from_numpy(table.rewards[:, :OPERATION_COUNT].astype(np.float32)),
        results,
    )
