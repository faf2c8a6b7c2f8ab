"""Programs of two operations on the inputs, whose grids the readout looks at together, and of two or three in turn.

Two operations on the inputs color a cell by what both say about it, so they state a rule with two conditions. Executing
them costs no more than they do alone: only readouts are fitted. Operations in turn state a rule with steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from searchlight.models.arc.programs.operations import OPERATIONS
from searchlight.models.arc.programs.program import Executor, Program, ProgramResult

FIRST = 8  # operations that are combined with all others: those of the largest values
EXTENDED = 4  # programs of two steps that all operations follow: those of the largest values
KEPT = 32  # combinations of a puzzle, of each kind
KINDS = 3  # two on the inputs, two in turn, three in turn

Rated = list[tuple[float, Program]]


def find_combinations(
    executor: Executor, results: Sequence[ProgramResult], first_steps: int = FIRST
) -> list[ProgramResult]:
    """Return the results of the best combinations, at most `KINDS * KEPT`.

    Each is better than its last operation alone, and than the program without that operation.

    There are none if a program of one operation meets all hidden demonstrations, because no combination can be better.
    For the same reason, none has three operations if one of two meets them.

    Args:
        executor: The executor of a puzzle.
        results: The results of programs of one operation for that puzzle.
        first_steps: The number of operations after which each other one is executed. 0: none is.
    """
    single = [result for result in results if result.is_valid and len(result.program.executed) == 1]
    if any(result.hidden_share == 1 for result in single):
        return []
    rated = sorted(((result.value, result.program) for result in single), key=lambda pair: -pair[0])
    values = {program.operations: value for value, program in rated}
    known = [*_list_distinct(executor, rated)]
    fitting = [program for value, program in known if value > 0]  # the others do not give the outputs' sizes
    pairs = [(first, second) for place, first in enumerate(fitting[:FIRST]) for second in fitting[place + 1 :]]
    beside = _rate(executor, (Program(first.operations, *second.operations) for first, second in pairs))
    in_turn = _rate(executor, _extend(known[:first_steps]))
    found = [*_execute_best(executor, beside, values), *_execute_best(executor, in_turn, values)]
    if not any(result.hidden_share == 1 for result in found):
        values |= {program.operations: value for value, program in in_turn}
        prefixes = islice(_list_distinct(executor, in_turn), EXTENDED)
        found += _execute_best(executor, _rate(executor, _extend(prefixes)), values)
    return sorted(found, key=lambda result: -result.value)


def _list_distinct(executor: Executor, rated: Iterable[tuple[float, Program]]) -> Iterator[tuple[float, Program]]:
    """Yield the first program of those whose last steps give the same grids for the demonstrations."""
    seen = set[bytes]()
    for value, program in rated:
        shown = executor.trace(program)[-1][: len(executor.puzzle.demonstrations)]
        grids = b"".join(bytes(grid.shape) + grid.tobytes() for grid in shown if grid is not None)
        if grids not in seen:
            yield value, program
        seen.add(grids)


def _extend(prefixes: Iterable[tuple[float, Program]]) -> Iterator[Program]:
    """Yield each program with each operation as one more step."""
    for _, prefix in prefixes:
        yield from (Program((*prefix.operations, last)) for last in range(len(OPERATIONS)))


def _rate(executor: Executor, programs: Iterable[Program]) -> Rated:
    """Return the programs with a value above 0, those of the largest values first."""
    rated = [(executor.rate(program), program) for program in programs]
    return sorted((pair for pair in rated if pair[0] > 0), key=lambda pair: -pair[0])


def _execute_best(executor: Executor, rated: Rated, values: Mapping[tuple[int, ...], float]) -> list[ProgramResult]:
    """Return the results of the best programs that are better than the last operation, and than what precedes it."""
    better = []
    for value, program in rated:
        last = program.operations[-1:] if program.beside is None else (program.beside,)
        before = program.operations[:-1] if program.beside is None else program.operations
        if value > max(values.get(before, 0.0), values.get(last, 0.0)):
            better.append(program)
    return [executor.execute(program) for program in better[:KEPT]]
