"""Tables of the results of many programs for many puzzles, so that a training looks rewards up."""

import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchlight.models.arc.programs.combinations import KEPT, KINDS, find_combinations
from searchlight.models.arc.programs.operations import OPERATIONS
from searchlight.models.arc.programs.program import Executor, Program, ProgramResult
from searchlight.models.arc.programs.ranking import rank
from searchlight.models.arc.puzzles import Grid, Puzzle, hash_puzzles
from searchlight.models.data.atomic_file import open_atomic

# One program for each operation, at its index, and the readout of the inputs last.
DEPTH_1 = (*(Program((index,)) for index in range(len(OPERATIONS))), Program())

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]
ARRAYS = ("is_valid", "numbers", "ambiguity", "sizes", "cells", "combinations")
NUMBERS = ("value", "reward", "accuracy", "hidden_share", "shown_share", "components")


@dataclass(frozen=True, eq=False)
class RewardTable:
    """The results of programs for each of N puzzles with M tests in all. P is their number, with that of combinations.

    Attributes:
        puzzles: The puzzles.
        programs: The programs that are the same for all puzzles.
        is_valid: `ProgramResult.is_valid`, shape (N, P).
        numbers: Value, reward, accuracy, shares of hidden and shown demonstrations, components, shape (6, N, P).
        ambiguity: The ambiguity of each answer, shape (M, P).
        sizes: Height and width of each answer, uint8 of shape (M, P, 2), 0 without an answer.
        cells: The colors of all answers one after the other, uint8.
        combinations: Three steps and the operation beside of each combination of a puzzle, see
            `find_combinations`, int16 of shape (N, combinations, 4), -1 where there is none. Their results come
            after those of `programs`.
    """

    puzzles: Sequence[Puzzle]
    programs: Sequence[Program]
    is_valid: Flags
    numbers: Numbers
    ambiguity: Numbers
    sizes: NDArray[np.uint8]
    cells: NDArray[np.uint8]
    combinations: NDArray[np.int16]

    @classmethod
    def build(
        cls, puzzles: Sequence[Puzzle], programs: Sequence[Program] = DEPTH_1, with_combinations: bool = False
    ) -> "RewardTable":
        """Execute all programs for all puzzles. With the default programs, this takes a tenth of a second a puzzle.

        `with_combinations` also searches combinations, see `find_combinations`. This takes a second or two.
        """
        combinations = np.full((len(puzzles), KINDS * KEPT if with_combinations else 0, 4), -1, np.int16)
        is_valid = np.zeros((len(puzzles), len(programs) + combinations.shape[1]), dtype=bool)
        numbers = np.zeros((len(NUMBERS), *is_valid.shape), dtype=np.float64)
        ambiguity, sizes, cells = [], [], []
        for row, puzzle in enumerate(puzzles):
            executor = Executor(puzzle)
            results = [executor.execute(program) for program in programs]
            found = find_combinations(executor, results) if with_combinations else []
            for slot, each in enumerate(found):
                steps, beside = each.program.operations, each.program.beside
                combinations[row, slot, : len(steps)] = steps
                combinations[row, slot, -1] = -1 if beside is None else beside
            results += found + [executor.miss(Program())] * (combinations.shape[1] - len(found))
            is_valid[row] = [result.is_valid for result in results]
            numbers[:, row] = [[getattr(result, name) for result in results] for name in NUMBERS]
            for test in range(len(puzzle.tests)):
                answers = [result.answers[test] for result in results]
                ambiguity.append([result.ambiguity[test] for result in results])
                sizes.append([(0, 0) if answer is None else answer.shape for answer in answers])
                cells += [answer.ravel() for answer in answers if answer is not None]
        flat = np.concatenate(cells) if cells else np.zeros(0, np.uint8)
        tables = np.array(ambiguity, np.float64), np.array(sizes, np.uint8)
        return cls(puzzles, programs, is_valid, numbers, *tables, flat, combinations)

    @classmethod
    def load_or_build(
        cls,
        folder: Path,
        puzzles: Sequence[Puzzle],
        programs: Sequence[Program] = DEPTH_1,
        with_combinations: bool = False,
    ) -> "RewardTable":
        """Load the table from a folder, or build it and save it there. Other code or puzzles give another file."""
        path = folder / f"{hash_table(puzzles, programs, with_combinations)}.npz"
        table = cls._load(path, puzzles, programs)
        if table is None:
            table = cls.build(puzzles, programs, with_combinations)
            table._save(path)
        return table

    @property
    def rewards(self) -> Numbers:
        """Return `ProgramResult.reward`, shape (N, P)."""
        rewards: Numbers = self.numbers[NUMBERS.index("reward")]
        return rewards

    @property
    def fits_exactly(self) -> Flags:
        """Return `ProgramResult.fits_exactly`, shape (N, P)."""
        return np.asarray(self.numbers[NUMBERS.index("shown_share")] == 1)

    @property
    def meets_hidden(self) -> Flags:
        """Return whether all hidden demonstrations are met, shape (N, P)."""
        return np.asarray(self.numbers[NUMBERS.index("hidden_share")] == 1)

    def get_result(self, puzzle: int, program: int) -> ProgramResult:
        """Return the result of a program for a puzzle, both by index. Combinations follow the programs."""
        tests = range(self._first_tests[puzzle], self._first_tests[puzzle + 1])
        named: dict[str, Any] = dict(zip(NUMBERS, self.numbers[:, puzzle, program].tolist(), strict=True))
        named["components"] = int(named["components"])
        return ProgramResult(
            self._get_program(puzzle, program),
            bool(self.is_valid[puzzle, program]),
            **named,
            answers=tuple(self._get_answer(test, program) for test in tests),
            ambiguity=tuple(self.ambiguity[test, program].item() for test in tests),
        )

    def rank(self, puzzle: int, programs: Iterable[int] | None = None) -> list[tuple[Grid, ...]]:
        """Return the attempts at a puzzle's tests, see `rank`, by the given programs, by default by all."""
        chosen = range(self.is_valid.shape[1]) if programs is None else programs
        return rank(self.get_result(puzzle, program) for program in chosen)

    def get_combinations(self, puzzle: int) -> list[ProgramResult]:
        """Return the results of the combinations of a puzzle, the best first."""
        number = int((self.combinations[puzzle, :, 0] >= 0).sum())
        return [self.get_result(puzzle, len(self.programs) + index) for index in range(number)]

    def _get_program(self, puzzle: int, program: int) -> Program:
        if program < len(self.programs):
            return self.programs[program]
        *steps, beside = self.combinations[puzzle, program - len(self.programs)].tolist()
        return Program(tuple(step for step in steps if step >= 0), beside if beside >= 0 else None)

    def _get_answer(self, test: int, program: int) -> Grid | None:
        height, width = self.sizes[test, program].tolist()
        end = self._ends[test, program]
        return self.cells[end - height * width : end].reshape(height, width) if height else None

    @cached_property
    def _first_tests(self) -> list[int]:
        """Return the number of tests before each puzzle, and that of all."""
        return list(accumulate((len(puzzle.tests) for puzzle in self.puzzles), initial=0))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Return where each answer ends in `cells`, shape (M, P)."""
        areas = self.sizes.astype(np.int64).prod(-1)
        ends: NDArray[np.int64] = areas.cumsum().reshape(areas.shape)
        return ends

    def _save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_atomic(path) as file:
            np.savez_compressed(file, allow_pickle=False, **{name: getattr(self, name) for name in ARRAYS})

    @classmethod
    def _load(cls, path: Path, puzzles: Sequence[Puzzle], programs: Sequence[Program]) -> "RewardTable | None":
        """Return the table from disk, or None if the file is missing or damaged. It is then built again."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls(puzzles, programs, **{name: arrays[name] for name in ARRAYS})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


def hash_table(puzzles: Sequence[Puzzle], programs: Sequence[Program], with_combinations: bool) -> str:
    """Return the SHA-256 of puzzles, programs, and the code that executes them, 64 hexadecimal digits."""
    parts = [hash_puzzles(puzzles), str([*programs, with_combinations]), _hash_code()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _hash_code() -> str:
    sha = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        sha.update(file.read_bytes())
    return sha.hexdigest()
