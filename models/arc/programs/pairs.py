"""Programs of two operations on the inputs, whose grids the readout looks at together.

Such a program colors a cell by what both operations say about it, so it states a rule with two conditions. Executing
it costs no more than its operations do, which are executed anyway: only readouts are fitted.
"""

from collections.abc import Sequence

from searchlight.models.arc.programs.program import Executor, Program, ProgramResult

FIRST = 8  # operations that are combined with all others: those of the largest values
KEPT = 32  # pairs of a puzzle


def find_pairs(executor: Executor, results: Sequence[ProgramResult]) -> list[ProgramResult]:
    """Return the results of the best pairs that are better than each of their operations, the best first.

    There are none if a program of one operation meets all hidden demonstrations, because no pair can be better.

    Args:
        executor: The executor of a puzzle.
        results: The results of programs of one operation for that puzzle.
    """
    fitted = [result for result in results if len(result.program.executed) == 1 and result.value > 0]
    if any(result.hidden_share == 1 for result in fitted):
        return []
    distinct = {_hash_grids(executor, result.program): result for result in reversed(fitted)}
    known = sorted(reversed(distinct.values()), key=lambda result: -result.value)
    rated = []
    for index, first in enumerate(known[:FIRST]):
        for second in known[index + 1 :]:  # its value is no larger
            program = Program(first.program.operations, *second.program.operations)
            value = executor.rate(program)
            if value > first.value:
                rated.append((value, program))
    rated.sort(key=lambda pair: -pair[0])
    return [executor.execute(program) for _, program in rated[:KEPT]]


def _hash_grids(executor: Executor, program: Program) -> bytes:
    """Return what the operation of a program makes of the demonstrations, as bytes."""
    shown = executor.trace(program)[1][: len(executor.puzzle.demonstrations)]
    return b"".join(bytes(grid.shape) + grid.tobytes() for grid in shown if grid is not None)
