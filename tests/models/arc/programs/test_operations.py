"""Operations: what each makes of a small grid, written by hand, and what holds for all of them."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from searchlight.models.arc.programs import FAMILIES, OPERATIONS
from searchlight.models.arc.puzzles import COLORS, LARGEST_SIDE
from tests.models.arc.grids import grids_of

NAMED = {operation.name: operation for operation in OPERATIONS}
LINE = re.compile(r"(?P<name>\w+)( \[(?P<shapes>[\dx>]+)])?: (?P<source>.+) -> (?P<target>.+)")
SIMPLE = [operation for operation in OPERATIONS if operation.fit is None]
WHOLE = np.zeros((1, 1), np.uint8)


def read_table():
    """Return the lines of each family."""
    text = Path(__file__).with_name("operations.txt").read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.split("\n\n")[1:]]
    return {family: lines for family, *lines in blocks}


def read_grid(text):
    return np.array([[int(cell) for cell in row.replace(".", "0")] for row in text.split()], dtype=np.uint8)


def transform(operation, grid, inputs=(), outputs=()):
    """Apply an operation to a test's grid, with the given demonstrations."""
    changed = operation.transform((*inputs, grid), outputs)
    return None if changed is None else changed[-1]


TABLE = read_table()


@pytest.mark.parametrize("line", [line for lines in TABLE.values() for line in lines])
def test_operation_makes_of_a_grid_what_is_written(line):
    case = LINE.fullmatch(line)
    shapes = [[int(side) for side in shape.split("x")] for shape in (case["shapes"] or "1x1>1x1").split(">")]
    # With ones, so that no operation of sizes fails on the demonstration itself.
    source, target = (np.ones(shape, np.uint8) for shape in shapes)
    operation = NAMED[case["name"]]
    fitted = () if operation.fit is None else (source,)
    found = transform(operation, read_grid(case["source"]), fitted, (target,) if fitted else ())
    expected = None if case["target"] == "-" else read_grid(case["target"])
    assert np.array_equal(found, expected) if expected is not None else found is None


def test_each_operation_is_in_the_table_of_its_family():
    assert set(TABLE) == set(FAMILIES)
    for family, lines in TABLE.items():
        assert {LINE.fullmatch(line)["name"] for line in lines} == {operation.name for operation in FAMILIES[family]}


def test_names_are_unique_and_steps_are_short():
    assert len(NAMED) == len({operation.description for operation in OPERATIONS}) == len(OPERATIONS) == 247
    assert max(len(operation.description) for operation in OPERATIONS) <= 80
    assert all((operation.apply is None) != (operation.fit is None) for operation in OPERATIONS)


grids = st.one_of(grids_of(6, 3), grids_of(LARGEST_SIDE, 2), grids_of(LARGEST_SIDE))


@settings(max_examples=25)
@given(grids, st.lists(st.tuples(grids_of(4), grids_of(8)), min_size=1, max_size=3))
@example(np.zeros((30, 30), np.uint8), [(WHOLE, WHOLE)])
@example(np.indices((30, 30)).sum(0).astype(np.uint8) % 2, [(WHOLE, np.zeros((30, 30), np.uint8))])
@example(np.full((1, 30), 9, np.uint8), [(np.zeros((30, 30), np.uint8), WHOLE)])
def test_outputs_are_grids_and_inputs_stay(grid, demonstrations):
    inputs, outputs = zip(*demonstrations, strict=True)
    before = [source.copy() for source in (grid, *inputs, *outputs)]
    for operation in OPERATIONS:
        found = operation.transform((*inputs, grid), outputs)
        again = operation.transform((*inputs, grid), outputs)
        assert (found is None) == (again is None)
        for one, two in zip(found or (), again or (), strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                assert one.dtype == np.uint8
                assert one.flags.c_contiguous
                assert one.ndim == 2
                assert 1 <= min(one.shape) <= max(one.shape) <= LARGEST_SIDE
                assert one.max() < COLORS
                assert np.array_equal(one, two), operation.name
    assert all(np.array_equal(one, two) for one, two in zip(before, (grid, *inputs, *outputs), strict=True))


@given(grids_of(8))
def test_symmetries_undo_each_other(grid):
    pairs = {name: name for name in ("mirror_left_right", "mirror_top_bottom", "turn_half", "transpose")}
    pairs |= {"transpose_other": "transpose_other", "turn_left": "turn_right", "shift_left": "shift_right"}
    pairs |= {"shift_up": "shift_down", "swap_background": "swap_background"}
    for name, undo in pairs.items():
        changed = transform(NAMED[name], grid)
        back = None if changed is None else transform(NAMED[undo], changed)
        assert back is None or np.array_equal(back, grid)
        assert back is not None or name == "swap_background"


IDEMPOTENT = [name for name in NAMED if name.startswith(("symmetrize", "fall", "keep", "drop_e", "only"))]


@given(grids_of(8, 3), st.sampled_from(IDEMPOTENT))
def test_some_operations_change_nothing_twice(grid, name):
    once = transform(NAMED[name], grid)
    twice = None if once is None else transform(NAMED[name], once)
    assert twice is None or np.array_equal(twice, once)


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.fit], ids=lambda one: one.name)
def test_sizes_that_disagree_fit_nothing(operation):
    inputs = [np.ones((2, 2), np.uint8)] * 2
    outputs = [np.ones((side, side), np.uint8) for side in (1, 4)]
    assert operation.transform(inputs, outputs) is None


def test_operation_that_fails_on_a_test_leaves_none():
    tall, square = np.ones((2, 1), np.uint8), np.ones((2, 2), np.uint8)
    changed = NAMED["join_four_turns"].transform((square, tall, None), [square])
    assert changed[0].shape == (4, 4)
    assert changed[1:] == (None, None)
    assert NAMED["join_four_turns"].transform((tall, square), [square]) is None
