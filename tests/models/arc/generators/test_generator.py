"""Every family is tested by a second, slow implementation of its rule, or by what must hold of its pairs."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from

from models.arc import Grid, Puzzle, digest
from models.arc.augment import SYMMETRIES, transform
from models.arc.contamination import find_leaks
from models.arc.generators.generator import EASY, FAMILIES, generate, generate_split
from models.arc.puzzles import Pair

Cell = tuple[int, int]


def made(family: str) -> list[Puzzle]:
    """Puzzles of one family, of all levels and of several sizes."""
    return [
        generate(family, level, seed, max_side)
        for seed in range(4)
        for level in (0, 0.4, 0.7, 1)
        for max_side in (6, 13)
    ]


def around(cell: Cell, grid: Grid, corners: bool = True) -> set[Cell]:
    """The neighbours of a cell that lie in the grid."""
    steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i or j) and (corners or not (i and j))]
    cells = {(cell[0] + i, cell[1] + j) for i, j in steps}
    return {(i, j) for i, j in cells if 0 <= i < grid.shape[0] and 0 <= j < grid.shape[1]}


def one_fits(pairs: tuple[Pair, ...], candidates: dict[object, Callable[[Grid], Grid]]) -> bool:
    """Whether the demonstrations leave one of several rules, and it answers the test."""
    fitting = [
        rule
        for rule in candidates.values()
        if all(np.array_equal(rule(source), target) for source, target in pairs[:-1])
    ]
    return len(fitting) == 1 and np.array_equal(fitting[0](pairs[-1][0]), pairs[-1][1])


def turned(puzzle: Puzzle, *own: Callable[[Grid], Grid]) -> bool:
    """Whether one symmetry alone fits, and is one of the family's own."""
    every = {number: lambda grid, number=number: transform(grid, number) for number in range(SYMMETRIES)}
    return one_fits(puzzle.pairs, every) and one_fits(puzzle.pairs, dict(enumerate(own)))


def recoloured(puzzle: Puzzle) -> bool:
    names: dict[int, set[int]] = {}
    for source, target in puzzle.pairs:
        for one, other in zip(source.ravel().tolist(), target.ravel().tolist(), strict=True):
            names.setdefault(one, set()).add(other)
    return all(len(new) == 1 for new in names.values()) and any(new != {old} for old, new in names.items())


def tiled(puzzle: Puzzle) -> bool:
    shapes = [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]
    return one_fits(puzzle.pairs, {s: lambda grid, s=s: np.block([[grid] * s[1]] * s[0]) for s in shapes})


def enlarged(puzzle: Puzzle) -> bool:
    return one_fits(puzzle.pairs, {k: lambda grid, k=k: np.kron(grid, np.ones((k, k), np.uint8)) for k in (2, 3)})


def cropped(puzzle: Puzzle) -> bool:
    def cut(grid: Grid, wanted: int | None) -> Grid:
        rows, columns = ((grid == wanted) if wanted else (grid > 0)).nonzero()
        return grid[min(rows) : max(rows) + 1, min(columns) : max(columns) + 1] if rows.size else grid[:0]

    rules = {wanted: lambda grid, wanted=wanted: cut(grid, wanted) for wanted in range(10)}
    whole = all(np.array_equal(cut(source, None), target) for source, target in puzzle.pairs)
    return whole or one_fits(puzzle.pairs, rules)


def fallen(puzzle: Puzzle) -> bool:
    def fall(grid: Grid, turns: int) -> Grid:
        columns = [[0] * int((line == 0).sum()) + line[line != 0].tolist() for line in np.rot90(grid, turns).T]
        return np.rot90(np.array(columns).T, -turns)

    return one_fits(puzzle.pairs, {turns: lambda grid, turns=turns: fall(grid, turns) for turns in range(4)})


def painted(puzzle: Puzzle, cells: Callable[[Grid], set[Cell]]) -> bool:
    """Whether certain cells of background get one new colour and the others stay."""
    colours = {int(c) for source, target in puzzle.pairs for c in np.unique(target[source != target])}
    return len(colours) == 1 and all(
        {(int(i), int(j)) for i, j in np.argwhere(source != target)} == cells(source) for source, target in puzzle.pairs
    )


def enclosed(grid: Grid) -> set[Cell]:
    free = {(int(i), int(j)) for i, j in np.argwhere(grid == 0)}
    edge = [cell for cell in free if len(around(cell, grid, corners=False)) < 4]
    while edge:
        cell = edge.pop()
        free.discard(cell)
        edge += around(cell, grid, corners=False) & free
    return free


def bordering(grid: Grid) -> set[Cell]:
    objects = {(int(i), int(j)) for i, j in np.argwhere(grid)}
    return set().union(*(around(cell, grid) for cell in objects)) - objects


def most_common(puzzle: Puzzle) -> bool:
    for source, target in puzzle.pairs:
        (first, most), *others = Counter(source[source > 0].tolist()).most_common(2)
        if target.tolist() != [[first]] or any(count == most for _, count in others):
            return False
    return True


def counted(puzzle: Puzzle) -> bool:
    colours = {int(colour) for _, target in puzzle.pairs for colour in target.ravel()}
    return len(colours) == 1 and all(
        target.shape == (1, source.ravel().tolist().count(*colours)) for source, target in puzzle.pairs
    )


def shifted(puzzle: Puzzle) -> bool:
    steps = [(axis, step) for axis in (0, 1) for step in (-3, -2, -1, 1, 2, 3)]
    height, width = puzzle.pairs[0][0].shape
    places = {(step % height, 0) if axis == 0 else (0, step % width) for axis, step in steps}
    return one_fits(
        puzzle.pairs, {place: lambda grid, place=place: np.roll(grid, place, (0, 1)) for place in places - {(0, 0)}}
    )


def completed(puzzle: Puzzle) -> bool:
    """The output is a mirror image of itself, one half of it is the input's, and the input's other half is empty."""
    for axis in (0, 1):
        lying = [(source, target) if axis else (source.T, target.T) for source, target in puzzle.pairs]
        if all(
            np.array_equal(target, target[:, ::-1])
            and np.array_equal(target[:, : target.shape[1] // 2], source[:, : source.shape[1] // 2])
            and not source[:, source.shape[1] // 2 :].any()
            for source, target in lying
        ):
            return all(source.shape[1] % 2 == 0 for source, _ in lying)
    return False


def lined(puzzle: Puzzle) -> bool:
    def drawn(grid: Grid, axis: int) -> Grid:
        result = grid.copy()
        for row, column in np.argwhere(grid):
            line = (slice(None), column) if axis == 0 else (row, slice(None))
            result[line] = grid[row, column]
        return result

    return one_fits(puzzle.pairs, {axis: lambda grid, axis=axis: drawn(grid, axis) for axis in (0, 1)})


def cleaned(puzzle: Puzzle) -> bool:
    for source, target in puzzle.pairs:
        for row, column in np.argwhere(source):
            alone = not any(source[cell] for cell in around((row, column), source))
            if target[row, column] != (0 if alone else source[row, column]):
                return False
        if target[source == 0].any():
            return False
    return True


HOLDS: dict[str, Callable[[Puzzle], bool]] = {
    "count": counted,
    "crop": cropped,
    "denoise": cleaned,
    "enlarge": enlarged,
    "fill": lambda puzzle: painted(puzzle, enclosed),
    "flip": lambda puzzle: turned(puzzle, np.fliplr, np.flipud),
    "gravity": fallen,
    "line": lined,
    "mirror": completed,
    "most_common": most_common,
    "outline": lambda puzzle: painted(puzzle, bordering),
    "recolour": recoloured,
    "rotate": lambda puzzle: turned(puzzle, np.rot90, lambda grid: grid[::-1, ::-1], lambda grid: grid[::-1].T),
    "shift": shifted,
    "tile": tiled,
    "transpose": lambda puzzle: turned(puzzle, np.transpose, lambda grid: grid[::-1, ::-1].T),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rule_of_a_family_holds_in_all_pairs_and_is_determined_by_the_demonstrations(family: str) -> None:
    for puzzle in made(family):
        assert HOLDS[family](puzzle), puzzle.id


@settings(max_examples=60, deadline=None)
@given(sampled_from(list(FAMILIES)), floats(0, 1), integers(6, 30), integers(0, 2**32))
def test_a_puzzle_of_any_level_fits_and_shows_all_that_it_asks(
    family: str, level: float, max_side: int, seed: int
) -> None:
    puzzle = generate(family, level, seed, max_side)
    assert puzzle.side <= max_side
    assert puzzle.level == level
    assert len(puzzle.demonstrations) in (3, 4)
    assert len(puzzle.tests) == 1
    assert all(source.any() and not np.array_equal(source, target) for source, target in puzzle.pairs)
    assert all(grid.dtype == np.uint8 and grid.flags.c_contiguous for pair in puzzle.pairs for grid in pair)
    assert len({(source.shape, source.tobytes()) for source, _ in puzzle.pairs}) == len(puzzle.pairs)
    shown = {int(c) for pair in puzzle.demonstrations for grid in pair for c in grid.ravel()}
    assert {int(c) for grid in puzzle.tests[0] for c in grid.ravel()} <= shown


def test_a_puzzle_depends_on_its_seed_alone() -> None:
    assert digest([generate("fill", 0.5, 3)]) == digest([generate("fill", 0.5, np.random.default_rng(3))])
    assert digest([generate("fill", 0.5, 3)]) != digest([generate("fill", 0.5, 4)])
    assert generate("fill", 0.5, 3, number=7).id == "fill-0.50-7"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_higher_level_means_larger_grids_and_more_colours(family: str) -> None:
    def mean(measure: Callable[[Puzzle], int], level: float) -> float:
        return float(np.mean([measure(generate(family, level, seed, max_side=15)) for seed in range(10)]))

    def cells(puzzle: Puzzle) -> int:
        return sum(source.size + target.size for source, target in puzzle.pairs)

    def colours(puzzle: Puzzle) -> int:
        return len({int(c) for pair in puzzle.pairs for grid in pair for c in grid.ravel()})

    for measure in (cells, colours):
        assert mean(measure, 0) < mean(measure, 1)


@pytest.mark.parametrize("families", [list(FAMILIES), list(EASY)], ids=["all", "easy"])
@pytest.mark.parametrize("max_side", [6, 12])
def test_the_splits_have_all_families_and_levels_and_share_no_puzzle(families: list[str], max_side: int) -> None:
    training, evaluation = (generate_split(split, max_side, families) for split in ("training", "evaluation"))
    for puzzles, count in ((training, 400), (evaluation, 96)):
        assert Counter(p.id.split("-")[0] for p in puzzles) == dict.fromkeys(families, count // len(families))
        assert len({puzzle.id for puzzle in puzzles}) == count
        for family in families:
            known = [puzzle.level for puzzle in puzzles if puzzle.id.startswith(f"{family}-")]
            assert known == pytest.approx(np.linspace(0, 1, len(known)))
    assert not find_leaks(training, evaluation)


def test_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(ValueError, match=r"family must be one of count, crop, .*, but got 'spin'\."):
        generate("spin", 0.5, 0)
    with pytest.raises(ValueError, match=r"level must lie in 0\.\.1, but got 2\."):
        generate("flip", 2, 0)
    with pytest.raises(ValueError, match=r"max_side must lie in 6\.\.30 for generated puzzles, but got 5\."):
        generate("flip", 0.5, 0, max_side=5)
