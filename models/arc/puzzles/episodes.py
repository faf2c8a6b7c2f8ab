"""Episodes as tensors: a query, and the demonstrations from which it must be answered.

A training episode asks for the output of one known pair of a puzzle and shows the other pairs, under a random symmetry
and a random permutation of colors. A test episode asks for a test output and shows the demonstrations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from searchlight.models.arc.puzzles.canvas import SYMBOLS, draw_canvases
from searchlight.models.arc.puzzles.curriculum import UNIFORM, Curriculum
from searchlight.models.arc.puzzles.difficulty import rank_difficulties
from searchlight.models.arc.puzzles.puzzle import LARGEST_SIDE, Grid, Pair, Puzzle, find_longest_side
from searchlight.models.arc.puzzles.symmetries import SYMMETRIES, draw_renamings, rename, transform


class Batch(NamedTuple):
    """A batch of B episodes with at most D demonstrations each, on canvases of side S.

    Attributes:
        query: The inputs to answer, uint8 symbols of shape (B, S, S).
        target: The right answers, uint8 symbols of shape (B, S, S).
        demo_inputs: The inputs of the demonstrations, uint8 symbols of shape (B, D, S, S).
        demo_outputs: The outputs of the demonstrations, uint8 symbols of shape (B, D, S, S).
        demo_mask: bool of shape (B, D). False marks a slot without a demonstration.
        text: The input of the language model for each episode, or its output: see `PromptEncoder`. None: no text.
    """

    query: Tensor
    target: Tensor
    demo_inputs: Tensor
    demo_outputs: Tensor
    demo_mask: Tensor
    text: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        query, target, demo_inputs, demo_outputs, demo_mask = (part.to(device, non_blocking=True) for part in self[:5])
        text = None if self.text is None else self.text.to(device, non_blocking=True)
        return Batch(query, target, demo_inputs, demo_outputs, demo_mask, text)


class Episode(NamedTuple):
    """The grids that an answer may depend on: demonstrations as pairs (input, output), and the query."""

    demonstrations: tuple[Pair, ...]
    query: Grid


class TrainingPool:
    """All pairs that may be trained on, on canvases in all 8 symmetries of the square.

    Training puzzles contribute all pairs. Evaluation puzzles contribute their demonstrations: their tests are not read.

    Args:
        training: The puzzles whose tests may be trained on.
        evaluation: The puzzles whose tests the evaluation uses.
        max_demos: The largest number of demonstrations in one episode.
    """

    def __init__(self, training: Sequence[Puzzle], evaluation: Sequence[Puzzle], max_demos: int = 4) -> None:
        known = [*training, *(replace(puzzle, tests=()) for puzzle in evaluation)]
        asked = [puzzle for puzzle in known if len(puzzle.pairs) > 1]
        groups = [puzzle.pairs for puzzle in asked]
        self.max_demos = max_demos
        self._groups = groups
        self._pairs = _PairStore([pair for group in groups for pair in group])
        counts = torch.tensor([len(group) for group in groups])
        starts = counts.cumsum(0) - counts
        self._count = counts.repeat_interleave(counts)
        self._start = starts.repeat_interleave(counts)
        sides = [find_longest_side(group) for group in groups]
        self._side = torch.tensor(sides).repeat_interleave(counts)
        self._level = rank_difficulties(asked).repeat_interleave(counts)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._side)

    def list_episodes(self) -> list[Episode]:
        """Return an episode for each pair: all other pairs of its puzzle, and its input."""
        return [
            Episode(group[:index] + group[index + 1 :], group[index][0])
            for group in self._groups
            for index in range(len(group))
        ]

    def plan(
        self,
        samples: int,
        batch_size: int,
        generator: torch.Generator,
        curriculum: Curriculum = UNIFORM,
        epoch: int = 0,
    ) -> list[Tensor]:
        """Draw the batches of an epoch. A batch has pairs of similar canvas side, and batches have a random order.

        Args:
            samples: The number of episodes in the epoch.
            batch_size: The number of episodes in a batch. The last batch may have fewer.
            generator: The only source of random numbers.
            curriculum: The difficulty of the drawn puzzles. By default, no pair is drawn twice before all are drawn.
            epoch: The number of the epoch, counted from 0.

        Returns:
            The indices of pairs for `build_batch`, one tensor per batch, int64 of shape (batch_size,).
        """
        drawn = curriculum.draw(self._level, samples, epoch, generator)
        # Small canvases are cheap only if no large one is in their batch.
        ordered = drawn[self._side[drawn].argsort(stable=True)]
        batches = torch.split(ordered, batch_size)
        return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]

    def build_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return the episodes of the pairs `indices`.

        The generator draws the demonstrations, their order, the symmetry and the permutation of colors.
        """
        count, start = self._count[indices], self._start[indices]
        offsets = torch.arange(int(count.max()))
        others = (offsets < count[:, None]) & (start[:, None] + offsets != indices[:, None])
        order = torch.rand(others.shape, generator=generator).masked_fill_(~others, 2.0).argsort(dim=1)
        shown = order[:, : min(self.max_demos, int(count.max()) - 1)]
        mask = others.gather(1, shown)
        demos = torch.where(mask, start[:, None] + shown, indices[:, None])
        symmetry = torch.randint(SYMMETRIES, (len(indices),), generator=generator)
        tables = draw_renamings(len(indices), generator)
        side = int(self._side[indices].max()) + 1
        return self._pairs.build_batch(indices, demos, mask, symmetry, tables, side)


class TestEpisodes:
    """The tests of evaluation puzzles, each in several views.

    View 0 is the unchanged puzzle. The other views are rotated or reflected, with permuted colors, always the same
    ones. Episode `t * views + v` is view v of test t. Tests are numbered in the order of the puzzles.

    Args:
        puzzles: The puzzles to test.
        views: The number of views of each test.
        max_demos: The largest number of demonstrations in an episode. The first ones are used.

    Attributes:
        symmetry: The symmetry of each episode, int64 of shape (episodes,).
        tables: The permutation of symbols of each episode, uint8 of shape (episodes, 12).
        owner: The index of each test's puzzle, int64 of shape (tests,).
        fits: Whether the answer of each test fits on the canvas, bool of shape (tests,).
        views: The number of views of each test.
    """

    __test__ = False  # The name is no test case to pytest.

    def __init__(self, puzzles: Sequence[Puzzle], views: int = 2, max_demos: int = 4) -> None:
        generator = torch.Generator().manual_seed(0)
        self.views = views
        self.owner = torch.tensor([number for number, puzzle in enumerate(puzzles) for _ in puzzle.tests])
        tests = len(self.owner)
        self.symmetry = torch.randint(SYMMETRIES, (tests * views,), generator=generator)
        self.symmetry[::views] = 0
        self.tables = draw_renamings(tests * views, generator)
        self.tables[::views] = torch.arange(SYMBOLS, dtype=torch.uint8)

        sides = [_estimate_side(puzzle) for puzzle in puzzles]
        demos = [puzzle.demonstrations[:max_demos] for puzzle in puzzles]
        self._demos = demos
        shown = [pair for group in demos for pair in group]
        asked = [pair for puzzle in puzzles for pair in puzzle.tests]
        self._queries = [source for source, _ in asked]
        self._pairs = _PairStore(shown + asked, side=max(sides))
        counts = torch.tensor([len(group) for group in demos])
        self._count = counts[self.owner].repeat_interleave(views)
        self._start = (counts.cumsum(0) - counts)[self.owner].repeat_interleave(views)
        self._query = (len(shown) + torch.arange(tests)).repeat_interleave(views)
        self._side = torch.tensor(sides)[self.owner].repeat_interleave(views)
        self.fits = torch.tensor([find_longest_side([pair]) for pair in asked]) <= torch.tensor(sides)[self.owner]

    def __len__(self) -> int:
        """Return the number of episodes, tests times views."""
        return len(self._query)

    def list_episodes(self) -> list[Episode]:
        """Return an episode for each test, without views."""
        owners = self.owner.tolist()
        return [Episode(self._demos[owner], query) for owner, query in zip(owners, self._queries, strict=True)]

    def plan(self, batch_size: int) -> list[Tensor]:
        """Return the indices of episodes in batches of similar canvas side, each int64 of shape (batch_size,)."""
        return list(torch.split(self._side.argsort(stable=True), batch_size))

    def build_batch(self, indices: Tensor) -> Batch:
        """Return the episodes `indices`. The target is the part of the answer that fits on the canvas."""
        count, start = self._count[indices], self._start[indices]
        offsets = torch.arange(int(count.max()))
        mask = offsets < count[:, None]
        demos = torch.where(mask, start[:, None] + offsets, self._query[indices][:, None])
        side = int(self._side[indices].max()) + 1
        return self._pairs.build_batch(
            self._query[indices], demos, mask, self.symmetry[indices], self.tables[indices], side
        )


def hold_out_demonstrations(puzzle: Puzzle, count: int) -> Iterator[Puzzle]:
    """Yield a puzzle for each of the last `count` demonstrations of `puzzle`, whose test is that demonstration.

    The other demonstrations stay demonstrations. A puzzle with a single demonstration yields nothing.
    """
    shown = puzzle.demonstrations
    if len(shown) > 1:
        for index in range(max(0, len(shown) - count), len(shown)):
            yield Puzzle(puzzle.id, shown[:index] + shown[index + 1 :], (shown[index],))


class _PairStore:
    """Stores the canvases of pairs in all symmetries, and gathers batches from them."""

    def __init__(self, pairs: Sequence[Pair], side: int | None = None) -> None:
        longest = find_longest_side(pairs)
        canvas = max(longest, side or 0) + 1
        self.inputs = torch.stack(
            [draw_canvases([transform(source, s) for source, _ in pairs], canvas) for s in range(SYMMETRIES)]
        )
        self.outputs = torch.stack(
            [draw_canvases([transform(target, s) for _, target in pairs], canvas) for s in range(SYMMETRIES)]
        )

    def build_batch(
        self, query: Tensor, demos: Tensor, mask: Tensor, symmetry: Tensor, tables: Tensor, side: int
    ) -> Batch:
        pairs = torch.cat([query[:, None], demos], dim=1)
        turned = symmetry[:, None]
        stacked = torch.cat([self.inputs[turned, pairs], self.outputs[turned, pairs]], dim=1)
        # An unused slot holds the query's own pair, answer included: it is wiped, not only masked.
        used = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1).repeat(1, 2)
        stacked = rename(stacked[:, :, :side, :side], tables) * used[:, :, None, None]
        inputs, outputs = stacked.chunk(2, dim=1)
        return Batch(inputs[:, 0], outputs[:, 0], inputs[:, 1:], outputs[:, 1:], mask)


def _estimate_side(puzzle: Puzzle) -> int:
    """Return an estimate of the longest side of a puzzle's grids, which does not depend on the answers."""
    asked = max(int(side) for source, _ in puzzle.tests for side in source.shape)
    growth: float = max(max(target.shape) / max(source.shape) for source, target in puzzle.demonstrations)
    return min(max(find_longest_side(puzzle.demonstrations), asked, round(growth * asked)), LARGEST_SIDE)
