"""Measure what the parts of the task `arc` contribute, at equal numbers of executed programs.

Half of the evaluation puzzles gives the score, which chooses configs. The tests of the other half are counted. Each
config is trained under each seed. A difference has the 95 % interval of a bootstrap over seeds and puzzles. Both sides
share the resampled puzzles, and have seeds of their own. A config is not trained again if FOLDER has its orders.

    python benchmarks/models/arc_policy.py FOLDER [--seeds 5] [--config trainables/arc/preset.yaml] [--set NAME=VALUE]
"""

import copy
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, Table, add_settings, create_parser, parse_settings, print_progress, print_result
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
    "reward scale 0.005": {"reward_scale": 0.005},
    "reward scale 0.5": {"reward_scale": 0.5},
    "reward scale 5": {"reward_scale": 5.0},
    "policy lr 5e-5": {"policy_lr": 5e-5},
    "no curriculum": {"curriculum": 0.0},
    "curriculum 0.9": {"curriculum": 0.9},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "prompt": {"use_prompt": True, "prompt_lr": 1e-3},
    "no dropout": {"dropout": 0.0},
    "half the updates": {"episodes": 512},
    "ten times the updates": {"episodes": 10240},
    "a hundred times the updates": {"episodes": 102400},
}
RANKED = "risk, the default"
TERMS = {
    RANKED: FreeEnergy(),
    "none, the order of the policy": FreeEnergy(risk=0.0),
    "risk, ambiguity": FreeEnergy(ambiguity=0.3),
    "risk, complexity": FreeEnergy(complexity=0.02),
}
REFINED = (4, 8, 16, 32, 64)  # numbers of executed programs after which the policy is trained on their rewards
REFINING_STEPS = 10
Array = NDArray[np.float64]
Order = tuple[torch.Tensor, torch.Tensor]  # of the puzzles of the objective, and of the others


class Measured:
    """What some orders of programs, one for each seed, give.

    Attributes:
        scores: The score of each puzzle of the objective, shape (seeds, puzzles).
        hits: The tests met of each other puzzle by number of programs, each of shape (seeds, puzzles).
        solved: The number of those puzzles of which the most programs meet each test: ARC's own score.
    """

    def __init__(self, judged: PuzzleSet, asked: PuzzleSet, orders: Sequence[Order]) -> None:
        self.scores = np.array([compute_anytime_reward(first, judged.rewards).numpy() for first, _ in orders], float)
        self.hits = {
            budget: np.array([count_hits(asked, order, budget) for _, order in orders], float) for budget in BUDGETS
        }
        tests = np.array([len(puzzle.tests) for puzzle in asked.puzzles])
        self.solved = float((self.hits[BUDGETS[-1]] == tests).sum(1).mean())

    def summarize(self) -> Row:
        met = {f"met_{budget}": hits.sum(1).mean() for budget, hits in self.hits.items()}
        return {"score": self.scores.mean(), **met, f"solved_{BUDGETS[-1]}": self.solved}


def count_hits(
    puzzles: PuzzleSet, order: torch.Tensor, budget: int, free_energy: FreeEnergy | None = None
) -> list[int]:
    """Return the number of tests of each puzzle that the first `budget` programs meet in two attempts."""
    return [sum(hits) for hits in find_hits(puzzles.puzzles, puzzles.answer(order, budget, free_energy))]


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--config", type=Path, default=PRESET)
    add_settings(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given, context = parse_settings(arguments), Context()
    preset = yaml.safe_load(arguments.config.read_text())["set"] | given
    configs = {"defaults": given} | {name: preset | dict(variant) for name, variant in VARIANTS.items()}
    runs = {name: train(config, arguments.seeds, context, arguments.folder) for name, config in configs.items()}
    runs["refined on each puzzle"] = train(preset, arguments.seeds, context, arguments.folder, refine_both)
    task = ArcTask(ArcConfig.model_validate(preset), context.for_next_trial())
    task.build()
    measured = {name: Measured(task.judged, task.asked, orders) for name, orders in runs.items()}
    figures: dict[str, Table] = {
        "orders": [describe(name, both, measured["preset"]) for name, both in (measure_others(task) | measured).items()]
    }
    figures["ranking"] = compare_rankings(task.asked, [order for _, order in runs["preset"]])
    tests = sum(len(puzzle.tests) for puzzle in task.asked.puzzles)
    counted = f"{tests} tests of {len(task.asked.puzzles)} others are counted"
    about = f"{len(task.judged.puzzles)} puzzles give the score, {counted}, {arguments.seeds} seeds"
    print_result(figures, about=about)


def train(
    config: Mapping[str, Any],
    seeds: int,
    context: Context,
    folder: Path,
    order: Callable[[ArcTask], Order] = ArcTask.order_all,
) -> list[Order]:
    """Train a config under each seed, if the folder does not have it. Return the orders of all evaluation puzzles."""
    name = hashlib.sha256(f"{sorted(config.items())} {seeds} {order.__name__}".encode()).hexdigest()
    path = folder / f"{name}.pt"
    if not path.exists():
        orders = [order(train_one(config, seed, context)) for seed in range(seeds)]
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(orders, path)
        print_progress(f"{config}, {order.__name__}: trained")
    known: list[Order] = torch.load(path)
    return known


def train_one(config: Mapping[str, Any], seed: int, context: Context) -> ArcTask:
    """Return the trained task of a config and a seed, whose policy no longer drops anything out."""
    task = ArcTask(ArcConfig.model_validate({**config, "seed": seed}), context.for_next_trial())
    trainer = TrialTrainer(task)
    while trainer.epoch < task.config.epochs:
        trainer.run_epoch()
    trainer.close()
    for module in task.modules.values():
        module.eval()  # a trainer does so only while it evaluates
    return task


def refine_both(task: ArcTask) -> Order:
    """Return the orders of a policy that goes on learning on each evaluation puzzle."""
    judged, asked = (
        torch.stack([refine(task, part, index, first[index]) for index in range(len(part.puzzles))])
        for part, first in zip((task.judged, task.asked), task.order_all(), strict=True)
    )
    return judged, asked


def refine(task: ArcTask, part: PuzzleSet, index: int, order: torch.Tensor) -> torch.Tensor:
    """Return the order of a puzzle's operations by a policy that is trained on the rewards of those executed so far.

    The loss is the negative expected reward if one of these is drawn, as the policy's probabilities say.
    """
    policy = copy.deepcopy(task.modules["policy"])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=task.config.policy_lr)
    statistics, is_valid = part.statistics[index : index + 1], part.is_valid[index : index + 1]
    for executed in REFINED:
        known = order[:executed]
        rewards = part.rewards[index, known]
        for _ in range(REFINING_STEPS):
            loss = -(policy(statistics, None, is_valid)[0, known].softmax(0) * rewards).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            log_probs = policy(statistics, None, is_valid)[0].index_fill(0, known, -torch.inf)
        rest = log_probs.argsort(descending=True, stable=True)[: len(order) - executed]
        order = torch.cat([known, rest])
    return order


def measure_others(task: ArcTask) -> dict[str, Measured]:
    """Measure orders without a policy: random ones, one for all puzzles by cover, and that of all operations."""
    generator = torch.Generator().manual_seed(0)
    uniform = [
        tuple(draw_order(part.is_valid, generator) for part in (task.judged, task.asked)) for _ in range(UNIFORM_SEEDS)
    ]
    mean = task.training.rewards.mean(0).argsort(descending=True)
    fixed = {
        "enumeration, as listed": torch.arange(len(mean)),
        "fixed list, by mean reward": mean,
        "fixed list, by cover": order_by_cover(task.training.rewards),
    }
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
        low, high = bootstrap(theirs, mine)
        behind = {"": theirs.mean() - mine.mean(), "_low": low, "_high": high}
        row |= {f"{column}_behind{end}": scale * value for end, value in behind.items()}
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


def compare_rankings(asked: PuzzleSet, orders: Sequence[torch.Tensor]) -> list[Row]:
    """Count the tests met by each ranking, and by single operations. Also return what the default gains over each."""
    alone = asked._replace(combinations=[[] for _ in asked.combinations])
    kinds = {name: (asked, weights) for name, weights in TERMS.items()}
    kinds[f"{RANKED}, single operations"] = (alone, TERMS[RANKED])
    counts = {
        name: {k: np.array([count_hits(part, order, k, weights) for order in orders], float) for k in BUDGETS}
        for name, (part, weights) in kinds.items()
    }
    rows = []
    for name, hits in counts.items():
        row: Row = {"ranking": name, **{f"met_{k}": each.sum(1).mean() for k, each in hits.items()}}
        for k in (8, 64):
            default, scale = counts[RANKED][k], hits[k].shape[1]
            low, high = scale * bootstrap(default, hits[k])
            behind = scale * (default.mean() - hits[k].mean())
            row |= {f"met_{k}_behind": behind, f"met_{k}_behind_low": low, f"met_{k}_behind_high": high}
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
