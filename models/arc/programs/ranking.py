"""The ranking of programs by their expected free energy, and the two attempts that it gives.

Expected free energy (Da Costa et al. 2020, arXiv 2001.07203) is the sum of a risk, how far what a program is expected
to answer is from what is preferred, and an ambiguity, how uncertain an answer is. Hidden demonstrations are what is
preferred. A complexity stands for the prior, which prefers short programs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from searchlight.models.arc.programs.program import LARGEST_VALUE, ProgramResult
from searchlight.models.arc.puzzles import Grid


@dataclass(frozen=True)
class FreeEnergy:
    """The weights of its terms. Ambiguity and complexity have no measured effect, so they are 0 by default.

    Attributes:
        risk: The weight of what a program lacks on hidden demonstrations: the largest value minus its value.
        ambiguity: The weight of the mean entropy of an answer's cells, in nats.
        complexity: The weight of each operation, and of each component of the readout.
    """

    risk: float = 1.0
    ambiguity: float = 0.0
    complexity: float = 0.0

    def compute(self, result: ProgramResult, test: int) -> float:
        """Compute the expected free energy of a program's answer to a test, at least 0. Smaller is better."""
        risk = LARGEST_VALUE - result.value
        parts = len(result.program.executed) + result.components
        return self.risk * risk + self.ambiguity * result.ambiguity[test] + self.complexity * parts


def rank(results: Iterable[ProgramResult], free_energy: FreeEnergy | None = None) -> list[tuple[Grid, ...]]:
    """Choose two attempts for each test: the answers of the programs of the smallest expected free energy.

    Of equal programs, the one with fewer operations comes first, then the one that was given first.

    Args:
        results: Results of one puzzle.
        free_energy: The weights of its terms. None: the risk alone.

    Returns:
        The two best distinct answers for each test; fewer if there are fewer.
    """
    weights = FreeEnergy() if free_energy is None else free_energy
    listed = sorted(results, key=lambda result: len(result.program.executed))
    attempts = []
    for test in range(len(listed[0].answers) if listed else 0):
        energies = [weights.compute(result, test) for result in listed]
        attempts.append(_take_two([listed[index].answers[test] for index in np.argsort(energies, kind="stable")]))
    return attempts


def _take_two(answers: Sequence[Grid | None]) -> tuple[Grid, ...]:
    chosen: list[Grid] = []
    for grid in answers:
        if grid is not None and not any(np.array_equal(grid, other) for other in chosen):
            chosen.append(grid)
        if len(chosen) == 2:
            break
    return tuple(chosen)
