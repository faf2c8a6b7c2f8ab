"""The statistics of a puzzle: what they see, and what they must not see."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.arc.policy import STATISTICS, compute_statistics
from searchlight.models.arc.policy import statistics as module
from tests.models.arc.grids import grids_of


def grid(*rows: str) -> np.ndarray:
    return np.array([[int(cell) for cell in row] for row in rows], dtype=np.uint8)


@settings(max_examples=50)
@given(st.lists(st.tuples(grids_of(7, 3), grids_of(7, 3)), min_size=1, max_size=4))
def test_statistics_are_finite_for_any_pairs_in_any_order(pairs):
    found = compute_statistics(pairs)
    assert (found.shape, found.dtype) == ((STATISTICS,), np.float32)
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 10
    np.testing.assert_allclose(compute_statistics(pairs[::-1]), found, atol=1e-6)


def test_different_rules_have_different_statistics(puzzles):
    found = [compute_statistics(puzzle.demonstrations) for puzzle in puzzles[:4]]
    assert min(np.abs(a - b).max() for i, a in enumerate(found) for b in found[:i]) > 0.1


@pytest.mark.parametrize(
    ("part", "source", "target", "expected"),
    [
        ("_compare_sizes", grid("12"), grid("12", "12"), {0: 0, 1: 0, 2: 1, 5: 1, 6: 0, 7: 1, 8: 0, 11: 1}),
        ("_compare_colors", grid("1200"), grid("1330"), {0: 2 / 3, 1: 1 / 5, 2: 1 / 3, 5: 1 / 2, 6: 1 / 4}),
        (
            "_describe_changes",
            grid("111", "101", "111"),
            grid("111", "141", "111"),
            {0: 1 / 9, 1: 1, 2: 0, 3: 0.2, 4: 1},
        ),
        ("_describe_changes", grid("11"), grid("1"), {0: 0, 1: 0, 2: 0, 3: 0, 4: 0}),
        ("_compare_objects", grid("000", "012"), grid("12"), {0: 1, 1: 1, 4: 1}),
        ("_compare_parts", grid("11511", "11511"), grid("11", "11"), {0: 1, 1: 1, 2: 0, 3: 1, 4: 0}),
        ("_compare_parts", grid("115111", "115111"), grid("15"), {0: 1, 1: 0, 2: 1, 3: 0}),
    ],
)
def test_part_of_the_statistics_is_what_it_says(part, source, target, expected):
    found = getattr(module, part)(source, target)
    assert {index: found[index] for index in expected} == pytest.approx(expected)


def test_smaller_grid_is_found_in_a_larger_one():
    assert module._is_part(grid("12"), grid("012")) == 1
    assert module._is_part(grid("21"), grid("012")) == 0
    assert module._is_part(grid("12"), grid("12")) == 0  # the sizes are equal: other statistics compare them


def test_tests_are_not_looked_at(puzzles):  # C89
    for puzzle in puzzles:
        blank = replace(puzzle, tests=())
        np.testing.assert_array_equal(
            compute_statistics(blank.demonstrations), compute_statistics(puzzle.demonstrations)
        )
