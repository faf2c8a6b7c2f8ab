"""Programs of two operations: both on the inputs, whose grids the readout looks at together, or one after the other.

Two operations on the inputs color a cell by what both say about it, so they state a rule with two conditions. Executing
them costs no more than they do alone: only readouts are fitted. One after the other is a rule with two steps.
"""

from collections.abc import Iterable, Sequence

from searchlight.models.arc.programs.operations import OPERATIONS
from searchlight.models.arc.programs.program import Executor, Program, ProgramResult

FIRST = 8  # operations that are combined with all others: those of the largest values
KEPT = 32  # combinations of a puzzle, of each kind


def find_combinations(
    executor: Executor, results: Sequence[ProgramResult], first_steps: int = FIRST
) -> list[ProgramResult]:
    """Return the results of the best combinations that are better than each of their operations, at most `2 * KEPT`.

    There are none if a program of one operation meets all hidden demonstrations, because no combination can be better.

    Args:
        executor: The executor of a puzzle.
        results: The results of programs of one operation for that puzzle.
        first_steps: The number of operations after which each other one is executed. 0: none is.
    """
    single = [result for result in results if result.is_valid and len(result.program.executed) == 1]
    if any(result.hidden_share == 1 for result in single):
        return []
    values = {result.program.operations[0]: result.value for result in single}
    distinct = {_hash_grids(executor, result.program): result.program.operations[0] for result in reversed(single)}
    known = sorted(reversed(distinct.values()), key=lambda index: -values[index])
    fitting = [index for index in known if values[index] > 0]  # the others do not give the outputs' sizes
    pairs = [(first, second) for place, first in enumerate(fitting[:FIRST]) for second in fitting[place + 1 :]]
    beside = (Program((first,), second) for first, second in pairs)
    in_turn = (Program((first, second)) for first in known[:first_steps] for second in range(len(OPERATIONS)))
    found = [*_execute_best(executor, beside, values), *_execute_best(executor, in_turn, values)]
    return sorted(found, key=lambda result: -result.value)


def _execute_best(executor: Executor, programs: Iterable[Program], values: dict[int, float]) -> list[ProgramResult]:
    """Return the results of the best programs that are better than each of their operations alone."""
    rated = []
    for program in programs:
        value = executor.rate(program)
        if value > max(values.get(index, 0.0) for index in program.executed):
            rated.append((value, program))
    rated.sort(key=lambda pair: -pair[0])
    return [executor.execute(program) for _, program in rated[:KEPT]]


def _hash_grids(executor: Executor, program: Program) -> bytes:
    """Return what the operation of a program makes of the demonstrations, as bytes."""
    shown = executor.trace(program)[1][: len(executor.puzzle.demonstrations)]
    return b"".join(bytes(grid.shape) + grid.tobytes() for grid in shown if grid is not None)
