from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings

from searchlight.models.arc.puzzles import Pair, Puzzle, check_disjoint, drop_leaked, load_puzzles
from searchlight.models.arc.puzzles.contamination import PUBLISHED, Leak, find_leaks
from tests.models.arc.grids import Augmentation, augmentations


@cache
def splits(source: str) -> list[list[Puzzle]]:
    return [load_puzzles(source, split, max_side=30) for split in ("training", "evaluation")]


def some_pairs(seed: int, count: int = 4) -> tuple[Pair, ...]:
    random = np.random.default_rng(seed)
    grids = random.integers(0, 10, size=(count, 2, 4, 3), dtype=np.uint8)
    return tuple((source, target) for source, target in grids)


def puzzle(id: str, pairs: tuple[Pair, ...]) -> Puzzle:
    return Puzzle(id, pairs[:-1], pairs[-1:])


def test_what_two_puzzles_share_is_found_and_named() -> None:
    asked = puzzle("e", some_pairs(0))
    training = [
        puzzle("e", some_pairs(1)),
        puzzle("answers", (*some_pairs(2), *asked.tests, *some_pairs(3))),
        puzzle("shows", (*some_pairs(4), *asked.demonstrations[1:])),
        puzzle("shows one", (*some_pairs(5), asked.demonstrations[0])),
        puzzle("is another", some_pairs(6)),
    ]
    assert find_leaks(training, [asked]) == [
        Leak("e", "e", "id"),
        Leak("answers", "e", "test"),
        Leak("shows", "e", "demonstrations"),
    ]
    assert [kept.id for kept in drop_leaked(training, [asked])] == ["shows one", "is another"]


@settings(max_examples=30)
@given(augmentations)
def test_a_turned_and_renamed_puzzle_is_the_same_puzzle(augmentation: Augmentation) -> None:
    asked = puzzle("e", some_pairs(0))
    turned = augmentation.puzzle(asked)
    assert find_leaks([Puzzle("t", turned.tests, turned.demonstrations)], [asked]) == [Leak("t", "e", "test")]


def test_a_pair_with_another_output_is_another_pair() -> None:
    asked = puzzle("e", some_pairs(0))
    ((source, target),) = asked.tests
    other = target.copy()
    other[0, 0] = (other[0, 0] + 1) % 10
    assert not find_leaks([puzzle("t", (*some_pairs(1), (source, other)))], [asked])
    assert not find_leaks([puzzle("t", (*some_pairs(1), (target, source)))], [asked])
    assert find_leaks([puzzle("t", (*some_pairs(1), (source, target.copy())))], [asked])


def test_one_training_puzzle_can_give_several_away() -> None:
    asked = [puzzle("first", some_pairs(0)), puzzle("second", some_pairs(1))]
    both = puzzle("t", asked[0].tests + asked[1].tests)
    assert find_leaks([both], asked) == [Leak("t", "first", "test"), Leak("t", "second", "test")]
    asked[1] = Puzzle("second", asked[1].demonstrations, asked[0].tests)
    assert find_leaks([both], asked) == [Leak("t", "first", "test"), Leak("t", "second", "test")]


def test_puzzles_that_were_made_of_one_task_are_that_task() -> None:
    made = puzzle("007bbfb7-3", some_pairs(0))
    assert find_leaks([made], [puzzle("007bbfb7", some_pairs(1))]) == [Leak("007bbfb7-3", "007bbfb7", "id")]
    assert not find_leaks([puzzle("flip-0.50-3", some_pairs(0))], [puzzle("flip-0.50-4", some_pairs(1))])
    with pytest.raises(ValueError, match="training must hold puzzles that evaluation does not, but got 1 that are all"):
        drop_leaked([made], [made])


@pytest.mark.parametrize("source", ["arc-agi-1", "arc-agi-2", "generated"])
def test_the_splits_of_every_source_are_disjoint(source: str) -> None:
    check_disjoint(*splits(source))


def test_arc_agi_1_asks_two_puzzles_that_it_also_trains_on() -> None:
    training, evaluation = splits("arc-agi-1")
    assert {leak[:2] for leak in find_leaks(training, evaluation)} == PUBLISHED
    assert len(drop_leaked(training, evaluation)) == 398


def test_arc_agi_2_is_refused_for_training_before_arc_agi_1() -> None:
    training, evaluation = splits("arc-agi-2")[0], splits("arc-agi-1")[1]
    message = r"^training must share no puzzle with evaluation, but 376 of its 1000 are there too \(376 by id\): 0057.*"
    with pytest.raises(ValueError, match=message + r"Set leak=drop .* or leak=allow to keep them\.$") as refusal:
        check_disjoint(training, evaluation)
    assert "\n" not in str(refusal.value)
    kept = drop_leaked(training, evaluation)
    assert len(kept) == 623  # one more is a turned twin
    assert not find_leaks(kept, evaluation)
