"""Measure which tests the ARC agent answers exactly, before and after training with the defaults.

Tests of generated puzzles are shown by family. For other puzzles, the trained agent is compared with answers that need
no learning. The comparison is paired: the gain at a test is the difference between the means over seeds. The p-value is
that of a random change of the signs of the gains.

    python benchmarks/models/arc_answers.py [--data generated-easy] [--epochs 27] [--seeds 2] [--processes 2]
        [--set NAME=VALUE]
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import permutation_test

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.models.task_runs import in_processes
from benchmarks.recording import Row, Table, add_settings, create_parser, parse_settings, print_result
from searchlight.models.arc.evaluation import find_two_guesses, look_up, prepare_evaluation
from searchlight.models.arc.puzzles import EASY, Grid, read_grid
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.training.trainer import TrialTrainer

SOLVED = 0.9  # of a family's tests, within two attempts
RESAMPLES = 100_000
Array = NDArray[np.float64]


class Answered(NamedTuple):
    """What was answered: hits and likelihoods of the tests, shape (tests,), the latter NaN for answers without one."""

    met: Array
    likelihood: Array


class LastEvaluation(ArcTask):
    """A task that answers the tests before training and after the last epoch."""

    baselines = {}  # noqa: RUF012

    def build(self) -> None:
        super().build()
        self.evaluations = 0
        self.answered: dict[str, Answered] = {}

    def evaluate(self) -> dict[str, float]:
        self.evaluations += 1
        if self.evaluations == 1:
            self._record("untrained agent")
        elif self.evaluations > self.config.epochs:
            self._record("trained agent")
        return {self.objective: 0.0}

    def pictures(self) -> dict[str, NDArray[np.uint8]]:
        return {}

    def _record(self, name: str) -> None:
        answers = self._answer(self.evaluation_set)
        self.answered[name] = Answered(find_hits(self, answers.attempts), answers.tests.double().numpy())


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--data", default="generated-easy")
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    add_settings(parser)
    arguments = parser.parse_args()
    fixed = parse_settings(arguments) | {"data": arguments.data, "epochs": arguments.epochs}
    configs = [{**fixed, "seed": seed} for seed in range(arguments.seeds)]
    runs = in_processes(solve, configs, arguments.processes)
    names = runs[0][0]
    means = {
        name: Answered(*(np.mean([run[name][part] for _, run in runs], axis=0) for part in (0, 1)))
        for name in runs[0][1]
    }
    about = f"{arguments.data}, {arguments.epochs} epochs, {arguments.seeds} seeds"
    if arguments.data.startswith("generated"):
        figures = compare_families(names, means)
        about += f"; share of tests met in two attempts; solved: {SOLVED:.0%} of a family's tests"
    else:
        met = ", ".join(f"{run['trained agent'].met.sum():.0f}" for _, run in runs)
        figures = {"tests": {"tests": len(names), "met_by_seed": met}, "answers": list(compare_answers(means))}
    print_result(figures, about=about)


def solve(config: Mapping[str, object]) -> tuple[list[str], dict[str, Answered]]:
    """Train an agent. Return the names of the tests' puzzles and what is answered, by who answers."""
    task = LastEvaluation(ArcConfig.model_validate(config))
    training = TrialTrainer(task)
    training.evaluate()
    while training.epoch < task.config.epochs:
        training.run_epoch()
    return [puzzle.id for puzzle in task.puzzles for _ in puzzle.tests], answer_unlearned(task) | task.answered


def answer_unlearned(task: ArcTask) -> dict[str, Answered]:
    """Return what is met by answers that need no learning."""
    tests = prepare_evaluation(task.puzzles, 1, 0).tests
    found: dict[str, list[tuple[Grid, Grid]]] = {"two best guesses": [], "3x3 table and guess": []}
    for index in range(len(tests)):
        batch = tests.build_batch(torch.tensor([index]))
        ((first, second),) = find_two_guesses(batch)
        found["two best guesses"].append((read_grid(first), read_grid(second)))
        found["3x3 table and guess"].append((read_grid(look_up(batch)[0]), read_grid(first)))
    none = np.full(len(tests), np.nan)
    return {name: Answered(find_hits(task, attempts), none) for name, attempts in found.items()}


def find_hits(task: ArcTask, attempts: Sequence[tuple[Grid, Grid]]) -> Array:
    """Return 1 for each test that is met by one of two attempts, else 0, shape (tests,)."""
    targets = [target for puzzle in task.puzzles for _, target in puzzle.tests]
    pairs = zip(attempts, targets, strict=True)
    return np.array([float(any(np.array_equal(one, target) for one in two)) for two, target in pairs])


def compare_families(names: Sequence[str], means: Mapping[str, Answered]) -> dict[str, Table]:
    """Return the share of tests that are met, by family, and the number of families that are solved."""
    families = np.array([name.split("-")[0] for name in names])
    before, after = (
        {str(family): float(means[who].met[families == family].mean()) for family in np.unique(families)}
        for who in ("untrained agent", "trained agent")
    )
    rows = [
        {"family": family, "untrained": before[family], "trained": share, "easy": family in EASY}
        for family, share in after.items()
    ]
    solved = []
    for kind, chosen in (("all", tuple(after)), ("easy", EASY)):
        shares = [after[name] for name in chosen if name in after]
        solved.append({"families": kind, "solved": sum(share >= SOLVED for share in shares), "of": len(shares)})
    return {"families": rows, "solved": solved}


def compare_answers(means: Mapping[str, Answered]) -> Iterator[Row]:
    """Yield what each meets, and what the trained agent gains over it."""
    for name, answered in means.items():
        row: Row = {"answers": name, "met": answered.met.sum()}
        if not np.isnan(answered.likelihood).any():
            row["likelihood"] = answered.likelihood.mean()
        if name != "trained agent":
            row |= {f"trained_{key}": gain for key, gain in measure_gain(means["trained agent"], answered).items()}
        yield row


def measure_gain(ours: Answered, others: Answered) -> Row:
    """Return the gain in tests met with its p-value, and the gain in likelihood with its standard error, if known."""
    gains, more = (one - other for one, other in zip(ours, others, strict=True))
    p = permutation_test((gains,), np.sum, permutation_type="samples", n_resamples=RESAMPLES, rng=0).pvalue
    likelihood = {"likelihood_gain": more.mean(), "likelihood_error": more.std(ddof=1) / len(more) ** 0.5}
    return {"gain": gains.sum(), "p": float(p), **({} if np.isnan(more).any() else likelihood)}


if __name__ == "__main__":
    main()
