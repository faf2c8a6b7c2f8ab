"""Pictures of puzzles, attempts and programs, in the colors of ARC-AGI."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from searchlight.models.arc.programs import Executor, Program
from searchlight.models.arc.puzzles import Grid

PALETTE = (
    "#000000",
    "#0074D9",
    "#FF4136",
    "#2ECC40",
    "#FFDC00",
    "#AAAAAA",
    "#F012BE",
    "#FF851B",
    "#7FDBFF",
    "#870C25",
)
TITLES = ("shown", "becomes", "input", "target", "first attempt", "second attempt")
BACKGROUND, INK, LINE, RULE = "#FFFFFF", "#222222", "#555555", "#DDDDDD"
RIGHT, WRONG = "#1A9641", "#D7191C"
PANEL = 186  # the longest side of a grid, in pixels
CELL = 24  # of a cell, at most: a small grid is a small picture
MARGIN, GAP, MARK = 20, 44, 16
HEADER = 40
TITLE_LETTERS, TITLE_LINES, LINE_HEIGHT = 30, 3, 15  # of the words above a grid

Point = tuple[int, int]


class Case(NamedTuple):
    """A puzzle: a demonstration of its rule, a test with its answer, and the attempts."""

    puzzle: str
    shown: Grid
    becomes: Grid
    input: Grid
    target: Grid
    first: Grid
    second: Grid

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Return the grids in the order of their columns."""
        return self[1:]


class ProgramCase(NamedTuple):
    """A test of a puzzle and what each step of a program makes of it.

    Attributes:
        puzzle: The id of the puzzle.
        titles: What is seen: the input, then each step of the program in words, the readout last.
        grids: The grid of each title.
        target: The right answer.
    """

    puzzle: str
    titles: tuple[str, ...]
    grids: tuple[Grid, ...]
    target: Grid


def trace_program(executor: Executor, program: Program, test: int) -> ProgramCase | None:
    """Return what a program makes of a test of the executor's puzzle, or None if it does not answer that test."""
    puzzle, answer = executor.puzzle, executor.execute(program).answers[test]
    if answer is None:
        return None
    grids = [step[len(puzzle.demonstrations) + test] for step in executor.trace(program)]
    shown = tuple(grid for grid in (*grids, answer) if grid is not None)
    return ProgramCase(puzzle.id, ("input", *program.steps), shown, puzzle.tests[test][1])


def draw(cases: Sequence[Case]) -> NDArray[np.uint8]:
    """Draw a row for each puzzle: a demonstration, input, target and both attempts.

    The frame of an attempt is green if it is right, else red. All grids of a row have cells of one size, so that a
    wrong size is visible.

    Returns:
        RGB, shape (height, width, 3).
    """
    title_font, font = ImageFont.load_default(16), ImageFont.load_default(14)
    beside = int(max(font.getlength(case.puzzle) for case in cases)) + MARGIN
    lefts = [MARGIN + beside + column * (PANEL + GAP) for column in range(len(TITLES))]
    cells = [_compute_cell_side(case.grids) for case in cases]
    heights = [
        cell * max(grid.shape[0] for grid in case.grids) + 1 + GAP for case, cell in zip(cases, cells, strict=True)
    ]
    width = lefts[-1] + PANEL + GAP + MARGIN

    image = Image.new("RGB", (width, HEADER + sum(heights) + MARGIN // 2), BACKGROUND)
    pen = ImageDraw.Draw(image)
    for left, title in zip(lefts, TITLES, strict=True):
        pen.text((left, HEADER // 2), title, INK, title_font, anchor="lm")

    top = HEADER
    for case, cell, height in zip(cases, cells, heights, strict=True):
        pen.line((MARGIN, top, width - MARGIN, top), RULE)
        pen.text((MARGIN, top + GAP // 2), case.puzzle, INK, font)
        corners = [(left, top + GAP // 2) for left in lefts]
        for grid, corner in zip(case.grids, corners, strict=True):
            _draw_grid(pen, grid, cell, corner)
        for attempt, corner in zip((case.first, case.second), corners[4:], strict=True):
            _mark(pen, attempt, np.array_equal(attempt, case.target), cell, corner)
        top += height
    return np.array(image)


def draw_programs(cases: Sequence[ProgramCase]) -> NDArray[np.uint8]:
    """Draw a row for each test: the input, the grid after each step, the answer with a frame as in `draw`, the target.

    Returns:
        RGB, shape (height, width, 3).
    """
    font = ImageFont.load_default(12)
    beside = int(max(font.getlength(case.puzzle) for case in cases)) + 2 * MARGIN
    rows = [(*case.grids, case.target) for case in cases]
    cells = [_compute_cell_side(grids) for grids in rows]
    words = TITLE_LINES * LINE_HEIGHT
    heights = [
        words + cell * max(grid.shape[0] for grid in grids) + GAP for grids, cell in zip(rows, cells, strict=True)
    ]
    width = beside + max(map(len, rows)) * (PANEL + GAP) + MARGIN

    image = Image.new("RGB", (width, sum(heights) + MARGIN), BACKGROUND)
    pen = ImageDraw.Draw(image)
    top = MARGIN
    for case, grids, cell, height in zip(cases, rows, cells, heights, strict=True):
        pen.line((MARGIN, top - MARGIN // 2, width - MARGIN, top - MARGIN // 2), RULE)
        pen.text((MARGIN, top + words), case.puzzle, INK, font)
        for column, (title, grid) in enumerate(zip((*case.titles, "target"), grids, strict=True)):
            corner = (beside + column * (PANEL + GAP), top + words)
            lines = textwrap.wrap(title, TITLE_LETTERS)
            pen.multiline_text((corner[0], corner[1] - 8), "\n".join(lines), INK, font, anchor="ld", spacing=2)
            _draw_grid(pen, grid, cell, corner)
            if column == len(case.titles) - 1:
                _mark(pen, grid, np.array_equal(grid, case.target), cell, corner)
        top += height
    return np.array(image)


def _draw_grid(pen: ImageDraw.ImageDraw, grid: Grid, cell: int, corner: Point) -> None:
    """Draw each cell with the line around it, which it shares with its neighbors."""
    left, top = corner
    for (row, column), color in np.ndenumerate(grid):
        x, y = left + column * cell, top + row * cell
        pen.rectangle((x, y, x + cell, y + cell), PALETTE[color], LINE)


def _mark(pen: ImageDraw.ImageDraw, grid: Grid, right: bool, cell: int, corner: Point) -> None:
    """Draw a frame around an attempt, and a tick or a cross next to it for readers who cannot tell green from red."""
    (left, top), (height, width) = corner, grid.shape
    color, end = RIGHT if right else WRONG, left + width * cell
    pen.rectangle((left - 6, top - 6, end + 6, top + height * cell + 6), outline=color, width=3)
    x, y = end + 12, top - 6
    if right:
        pen.line(((x, y + MARK // 2), (x + MARK // 3, y + MARK - 2), (x + MARK, y + 2)), color, 3, joint="curve")
    else:
        pen.line((x + 2, y + 2, x + MARK - 2, y + MARK - 2), color, 3)
        pen.line((x + 2, y + MARK - 2, x + MARK - 2, y + 2), color, 3)


def _compute_cell_side(grids: Sequence[Grid]) -> int:
    """Compute the side of a cell with its line, in pixels, for grids that have cells of one size."""
    longest = max(max(grid.shape) for grid in grids)
    return min(CELL, int(PANEL // longest))
