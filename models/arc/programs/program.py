"""Programs: sequences of operations with a readout, their rewards on hidden demonstrations, and their answers."""

from dataclasses import dataclass

import numpy as np

from searchlight.models.arc.programs.operations import OPERATIONS
from searchlight.models.arc.programs.readout import Components, Readout, Targets, answer, fit_readout
from searchlight.models.arc.puzzles import Grid, Puzzle

# The parts of a value: 1.5 in all.
SIZE, ACCURACY, SHOWN, HIDDEN, ALL_HIDDEN = 0.15, 0.35, 0.1, 0.4, 0.5
LARGEST_VALUE = SIZE + ACCURACY + SHOWN + HIDDEN + ALL_HIDDEN
COMPONENT_COST = 0.005  # of value: among equal readouts, the one with fewer components is taken

Grids = tuple[Grid | None, ...]


@dataclass(frozen=True)
class Program:
    """A sequence of operations, after which a readout gives the answer. Without operations: a readout of the inputs.

    Attributes:
        operations: Indices of `OPERATIONS`, the first step first.
        beside: The index of an operation on the inputs, whose grids the readout also looks at. None: there is none.
    """

    operations: tuple[int, ...] = ()
    beside: int | None = None

    @property
    def executed(self) -> tuple[int, ...]:
        """Return all operations, the one beside the others last."""
        return self.operations if self.beside is None else (*self.operations, self.beside)

    @property
    def steps(self) -> tuple[str, ...]:
        """Return each step in words, the readout last."""
        words = [OPERATIONS[index].description for index in self.operations]
        if self.beside is not None:
            words.append(f"of the input: {OPERATIONS[self.beside].description}")
        return (*words, "recolor" if self.beside is None else "recolor by both")

    def describe(self) -> str:
        """Return the steps in one line."""
        return ", ".join(self.steps)


@dataclass(frozen=True, eq=False)
class ProgramResult:
    """What a program gives for a puzzle. Only answers and ambiguity depend on the tests' inputs, nothing on outputs.

    Attributes:
        program: The program.
        is_valid: Whether each operation applies to each demonstration and changes one of them.
        value: 0 if the sizes of the demonstrations' outputs are missed. Otherwise 0.15, plus 0.35 times the gain in
            `accuracy` over a readout of the inputs (as a share of the largest gain), 0.1 if `fits_exactly`, 0.4 times
            `hidden_share`, and 0.5 if the program fits exactly and all hidden demonstrations are met.
        reward: How much larger the value is than that of a readout of the inputs, at least 0.
        accuracy: The share of right cells of a hidden demonstration, when the readout is fitted on the others: the
            mean over demonstrations.
        hidden_share: The share of hidden demonstrations that are met exactly.
        shown_share: The share of demonstrations that are met exactly when the readout is fitted on all.
        components: The number of grids that the readout looks at, 0 if there is no readout.
        answers: A grid for each test, or None where an operation does not apply to its input.
        ambiguity: The mean entropy of each answer's cells in nats, see `readout.answer`; 0 without an answer.
    """

    program: Program
    is_valid: bool
    value: float = 0.0
    reward: float = 0.0
    accuracy: float = 0.0
    hidden_share: float = 0.0
    shown_share: float = 0.0
    components: int = 0
    answers: tuple[Grid | None, ...] = ()
    ambiguity: tuple[float, ...] = ()

    @property
    def fits_exactly(self) -> bool:
        """Return whether the readout, fitted on all demonstrations, meets all of them."""
        return self.shown_share == 1


def compute_value(readout: Readout, baseline: float) -> float:
    """Compute `ProgramResult.value`, where a readout of the inputs has the accuracy `baseline`."""
    gain = max(0.0, (readout.accuracy - baseline) / (1 - baseline)) if baseline < 1 else 0.0
    fits = readout.shown_share == 1
    value = SIZE + ACCURACY * gain + SHOWN * fits + HIDDEN * readout.hidden_share
    return value + ALL_HIDDEN * (fits and readout.hidden_share == 1)


class Executor:
    """The execution of programs for one puzzle. It keeps the grids after each prefix, and each fitted readout."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle
        self._outputs = [output for _, output in puzzle.demonstrations]
        self._targets = Targets.from_grids(self._outputs)
        self._inputs: Grids = tuple(source for source, _ in puzzle.pairs)
        self._after: dict[tuple[int, ...], Grids | None] = {(): self._inputs}
        self._readouts: dict[bytes, Readout] = {}
        self._baseline = 0.0  # the accuracy of a readout of the inputs
        alone = self._choose(self._inputs, self._inputs, ())
        if alone is not None:
            self._baseline = alone[1].accuracy
        self._value_alone = 0.0 if alone is None else compute_value(alone[1], self._baseline)

    def execute(self, program: Program) -> ProgramResult:
        """Execute a program on the demonstrations, fit its readout, and answer the tests."""
        grids = self._execute_operations(program)
        if grids is None:
            return self.miss(program, False)
        choice = self._choose(*grids)
        if choice is None:
            return self.miss(program, True)
        sources, readout = choice
        value = compute_value(readout, self._baseline)
        answered = [self._answer(sources, readout, test) for test in range(len(self._outputs), len(self._inputs))]
        return ProgramResult(
            program,
            True,
            value,
            max(0.0, value - self._value_alone),
            readout.accuracy,
            readout.hidden_share,
            readout.shown_share,
            len(sources),
            tuple(grid for grid, _ in answered),
            tuple(ambiguity for _, ambiguity in answered),
        )

    def rate(self, program: Program) -> float:
        """Compute `ProgramResult.value` alone, without an answer to the tests."""
        grids = self._execute_operations(program, with_tests=False)
        choice = None if grids is None else self._choose(*grids)
        return 0.0 if choice is None else compute_value(choice[1], self._baseline)

    def trace(self, program: Program) -> list[Grids]:
        """Return the grids before the first step and after each step, those of the demonstrations first.

        Raises:
            ValueError: An operation does not apply to the demonstrations.
        """
        traced, prefixes = [], [program.operations[:length] for length in range(len(program.operations) + 1)]
        for operations in (*prefixes, *([] if program.beside is None else [(program.beside,)])):
            grids = self._find_grids(operations)
            if grids is None:
                raise ValueError(
                    f"program must apply to the demonstrations of {self.puzzle.id}, but got {program.describe()!r}. "
                    "Trace programs whose result is valid."
                )
            traced.append(grids)
        return traced

    def _execute_operations(self, program: Program, with_tests: bool = True) -> tuple[Grids, Grids, Grids] | None:
        """Return the grids after the last step, those before it, and those beside it; None if one does not apply.

        Without `with_tests`, the last step of a program in turn is not executed for the tests.
        """
        if program.beside is not None:  # both are asked for again and again, so they are kept
            grids, beside = self._find_grids(program.operations), self._find_grids((program.beside,))
            previous = self._find_grids(program.operations[:-1])
            return None if grids is None or beside is None or previous is None else (grids, previous, beside)
        before = self._find_grids(program.operations[:-1])
        asked = before if before is None or with_tests else before[: len(self._outputs)]
        grids = self._step(asked, program.operations[-1]) if program.operations else self._inputs
        return None if grids is None or before is None else (grids, before, ())

    def _find_grids(self, operations: tuple[int, ...]) -> Grids | None:
        if operations not in self._after:
            self._after[operations] = self._step(self._find_grids(operations[:-1]), operations[-1])
        return self._after[operations]

    def _step(self, grids: Grids | None, operation: int) -> Grids | None:
        """Return the grids after an operation, or None if it does not apply or changes no demonstration."""
        changed = None if grids is None else OPERATIONS[operation].transform(grids, self._outputs)
        if changed is None or grids is None:
            return None
        shown = slice(len(self._outputs))
        pairs = zip(changed[shown], grids[shown], strict=True)
        is_same = all(new is not None and old is not None and np.array_equal(new, old) for new, old in pairs)
        return None if is_same else changed

    def _choose(self, grids: Grids, before: Grids, beside: Grids) -> tuple[tuple[Grids, ...], Readout] | None:
        """Choose what the readout looks at: the grids alone, or also those before the last step, or the inputs.

        It always looks at the grids `beside`, if there are some.

        Returns:
            The grids of each component, for demonstrations and tests, and the readout. None if the grids' sizes are
            not those of the outputs.
        """
        own = (grids, beside) if beside else (grids,)
        if not all(map(self._has_sizes, own)):
            return None
        others = [self._inputs] if before is self._inputs else [self._inputs, before]
        choices = [own, *((other, *own) for other in others if other is not grids and self._has_sizes(other))]
        fitted = [(sources, self._fit(sources)) for sources in choices]
        return max(fitted, key=lambda one: compute_value(one[1], self._baseline) - COMPONENT_COST * len(one[0]))

    def _fit(self, sources: tuple[Grids, ...]) -> Readout:
        """Fit a readout. Programs that give the same grids share it."""
        components = self._gather(sources)
        key = components.colors.tobytes()
        if key not in self._readouts:
            self._readouts[key] = fit_readout(components, self._targets)
        return self._readouts[key]

    def _has_sizes(self, grids: Grids) -> bool:
        pairs = zip(self._outputs, grids, strict=False)
        return all(grid is not None and grid.shape == output.shape for output, grid in pairs)

    def _gather(self, sources: tuple[Grids, ...]) -> Components:
        """Return the components of the demonstrations."""
        shown = len(self._outputs)
        return Components.from_grids([[grid for grid in grids[:shown] if grid is not None] for grids in sources])

    def _answer(self, sources: tuple[Grids, ...], readout: Readout, test: int) -> tuple[Grid | None, float]:
        """Answer the test at index `test` of the grids."""
        grids = [part[test] for part in sources]
        found = [grid for grid in grids if grid is not None]
        if len(found) < len(grids) or len({grid.shape for grid in found}) > 1:
            return None, 0.0
        asked = Components.from_grids([[grid] for grid in found])
        colors, ambiguity = answer(self._gather(sources), self._targets, asked, readout.copies_first)
        return colors.reshape(found[0].shape).astype(np.uint8), ambiguity

    def miss(self, program: Program, is_valid: bool = False) -> ProgramResult:
        """Return the result of a program that answers no test."""
        tests = len(self.puzzle.tests)
        return ProgramResult(program, is_valid, answers=(None,) * tests, ambiguity=(0.0,) * tests)


def execute(program: Program, puzzle: Puzzle) -> ProgramResult:
    """Execute one program for a puzzle. For many programs of a puzzle, use one `Executor`."""
    return Executor(puzzle).execute(program)
