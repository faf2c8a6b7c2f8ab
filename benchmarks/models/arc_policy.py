"""Measure what the parts of the task `arc` contribute, at equal numbers of executed programs.

Half of the evaluation puzzles gives the score, which chooses configs. The tests of the other half are counted. Each
config is trained under each seed. A difference has the 95 % interval of a bootstrap over seeds and puzzles. Both sides
share the resampled puzzles, and have seeds of their own.

    python benchmarks/models/arc_policy.py [--seeds 5] [--config trainables/arc/preset.yaml] [--set NAME=VALUE]
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, add_settings, create_parser, parse_settings, print_progress, print_result
from searchlight.models.arc.evaluation import PuzzleSet, find_hits
from searchlight.models.arc.policy import apply_order, compute_anytime_reward, order_by_cover
from searchlight.models.arc.programs import FreeEnergy
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.context import Context
from searchlight.trainables.training.trainer import TrialTrainer

PRESET = Path(__file__).resolve().parents[2] / "trainables" / "arc" / "preset.yaml"
BUDGETS = (4, 8, 16, 64)
RESAMPLES = 10_000
UNIFORM_SEEDS = 20
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "preset": {},
    "reward scale 5": {"reward_scale": 5.0},
    "policy lr 5e-5": {"policy_lr": 5e-5},
    "no curriculum": {"curriculum": 0.0},
    "curriculum 0.6": {"curriculum": 0.6},
    "curriculum 0.9": {"curriculum": 0.9},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "prompt": {"use_prompt": True, "prompt_lr": 1e-3},
    "no dropout": {"dropout": 0.0},
    "half the updates": {"episodes": 512},
}
TERMS = {
    "none, the order of the policy": FreeEnergy(risk=0.0),
    "risk": FreeEnergy(),
    "risk, ambiguity": FreeEnergy(ambiguity=0.3),
    "risk, complexity": FreeEnergy(complexity=0.02),
    "risk, ambiguity, complexity": FreeEnergy(ambiguity=0.3, complexity=0.02),
}
Array = NDArray[np.float64]


class Measured:
    """What some orders of programs, one for each seed, give.

    Attributes:
        scores: The score of each puzzle of the objective, shape (seeds, puzzles).
        hits: The tests met of each other puzzle by number of programs, each of shape (seeds, puzzles).
    """

    def __init__(
        self, judged: PuzzleSet, asked: PuzzleSet, orders: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        self.scores = np.array([compute_anytime_reward(first, judged.rewards).numpy() for first, _ in orders], float)
        self.hits = {
            budget: np.array([count_hits(asked, order, budget) for _, order in orders], float) for budget in BUDGETS
        }

    def summarize(self) -> Row:
        row: Row = {"score": self.scores.mean(), "score_seeds": self.scores.mean(1).std(ddof=1)}
        return row | {f"met_{budget}": hits.sum(1).mean() for budget, hits in self.hits.items()}


def count_hits(
    puzzles: PuzzleSet, order: torch.Tensor, budget: int, free_energy: FreeEnergy | None = None
) -> list[int]:
    """Return the number of tests of each puzzle that the first `budget` programs meet in two attempts."""
    return [sum(hits) for hits in find_hits(puzzles.puzzles, puzzles.answer(order, budget, free_energy))]


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--config", type=Path, default=PRESET)
    add_settings(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given, context = parse_settings(arguments), Context()
    preset = yaml.safe_load(arguments.config.read_text())["set"] | given
    runs = {name: train(preset | dict(variant), arguments.seeds, context) for name, variant in VARIANTS.items()}
    runs["defaults"] = train(given, arguments.seeds, context)
    task = ArcTask(ArcConfig.model_validate(preset), context.for_next_trial())
    task.build()
    measured = {name: Measured(task.judged, task.asked, orders) for name, orders in runs.items()}
    others = measure_others(task)
    orders = [
        describe(name, both, measured["preset"])
        for name, both in {
            **others,
            "policy, defaults": measured["defaults"],
            "policy, preset": measured["preset"],
        }.items()
    ]
    parts = [describe(name, both, measured["preset"]) for name, both in measured.items()]
    terms = compare_terms(task.asked, [order for _, order in runs["preset"]])
    tests = sum(len(puzzle.tests) for puzzle in task.asked.puzzles)
    about = (
        f"{len(task.judged.puzzles)} puzzles give the score, {tests} other tests are counted, {arguments.seeds} seeds"
    )
    print_result({"orders": orders, "parts": parts, "free_energy": terms}, about=about)


def train(config: Mapping[str, Any], seeds: int, context: Context) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Train a config under each seed. Return the orders of the puzzles of the objective, and of the others."""
    orders = []
    for seed in range(seeds):
        task = ArcTask(ArcConfig.model_validate({**config, "seed": seed}), context.for_next_trial())
        trainer = TrialTrainer(task)
        while trainer.epoch < task.config.epochs:
            trainer.run_epoch()
        orders.append(task.order_all())
        trainer.close()
    print_progress(f"{config}: trained")
    return orders


def measure_others(task: ArcTask) -> dict[str, Measured]:
    """Measure orders without a policy: random ones, one for all puzzles by cover, and that of all operations."""
    generator = torch.Generator().manual_seed(0)
    uniform = [
        tuple(draw_order(part.is_valid, generator) for part in (task.judged, task.asked)) for _ in range(UNIFORM_SEEDS)
    ]
    mean = task.training.rewards.mean(0).argsort(descending=True)
    fixed = {"fixed list, by mean reward": mean, "fixed list, by cover": order_by_cover(task.training.rewards)}
    made = {"uniform": Measured(task.judged, task.asked, uniform)}  # type: ignore[arg-type]
    for name, order in fixed.items():
        both = tuple(apply_order(order, part.is_valid) for part in (task.judged, task.asked))
        made[name] = Measured(task.judged, task.asked, [both] * 2)  # type: ignore[list-item]
    return made


def draw_order(is_valid: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw a random order of the valid operations of each puzzle."""
    return (torch.rand(is_valid.shape, generator=generator) + is_valid.float()).argsort(dim=1, descending=True)


def describe(name: str, ours: Measured, preset: Measured) -> Row:
    """Return a row with what the preset gains over it: in the score, and in tests met after 8 programs."""
    row = {"order": name, **ours.summarize()}
    for column, mine, theirs in (("score", ours.scores, preset.scores), ("met_8", ours.hits[8], preset.hits[8])):
        scale = 1 if column == "score" else mine.shape[1]
        low, high = scale * bootstrap(theirs, mine)
        row |= {f"{column}_behind": scale * (theirs.mean() - mine.mean()), f"{column}_low": low, f"{column}_high": high}
    return row


def bootstrap(first: Array, second: Array) -> Array:
    """Return the 95 % interval of the difference of two means of shape (seeds, puzzles)."""
    random = np.random.default_rng(0)
    puzzles = random.integers(first.shape[1], size=(RESAMPLES, first.shape[1]))
    means = [draw_seeds(part, random)[np.arange(RESAMPLES)[:, None], puzzles].mean(1) for part in (first, second)]
    return np.quantile(means[0] - means[1], [0.025, 0.975])


def draw_seeds(values: Array, random: np.random.Generator) -> Array:
    """Return the means of resampled seeds by puzzle, shape (RESAMPLES, puzzles)."""
    weights = random.multinomial(len(values), np.full(len(values), 1 / len(values)), size=RESAMPLES)
    return weights @ values / len(values)


def compare_terms(asked: PuzzleSet, orders: Sequence[torch.Tensor]) -> list[Row]:
    """Count the tests met by ranking with each set of terms, and by the policy's order without a ranking."""
    rows = []
    for name, weights in TERMS.items():
        counts = {k: np.array([count_hits(asked, order, k, weights) for order in orders]) for k in BUDGETS}
        rows.append({"ranking": name, **{f"met_{k}": hits.sum(1).mean() for k, hits in counts.items()}})
    return rows


if __name__ == "__main__":
    main()
