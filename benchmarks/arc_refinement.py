"""Measure whether the ARC agent's policy has a signal, and whether ranking its candidates changes an answer.

The script prints three kinds of figures before and after training. One is the share of puzzles whose sampled changes
get different rewards. The second is the norm of the score function's gradient, and the cosine of two estimates from
the same windows with other samples. The third is the number of first attempts that differ without ranking, and without
the policy.

    python benchmarks/arc_refinement.py [--data generated-easy] [--epochs 3] [--windows 64] [--set NAME=VALUE]
"""

import argparse

import numpy as np
import torch

from searchlight.models.arc import Batch, Grid, Solver, sit
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.training.trainer import TrialTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="generated-easy")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the task's config")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = dict(part.split("=", 1) for part in arguments.set)
    config = {**given, "data": arguments.data, "epochs": arguments.epochs, "use_policy": True}
    training = TrialTrainer(ArcTask(ArcConfig.model_validate(config)))
    task = training.task
    print(f"{arguments.data}, {arguments.epochs} epochs, {arguments.windows} windows, one seed")
    print(f"{'':12}{'spread':>8}{'norm':>8}{'cosine':>8}{'unranked':>10}{'no policy':>11}{'first attempts':>16}")
    for when in ("untrained", "trained"):
        print(f"{when:12}{measure_gradients(task, arguments.windows)}{count_changes(task)}", flush=True)
        while when == "untrained" and training.epoch < arguments.epochs:
            training.run_epoch()


def measure_gradients(task: ArcTask, windows: int) -> str:
    """Format the spread of rewards, and the norm and cosine of two estimates of the score function's gradient."""
    config, solver = task.config, task.solver
    solver.agent.eval()
    weights = task._compute_loss_weights()._replace(pathwise=0.0, information=0.0, entropy=0.0, kl=0.0)
    parameters = list(solver.policy.parameters())
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    planned = task.pool.plan(windows * config.batch_size, config.batch_size, generator)
    spread, sums = 0.0, [0.0, 0.0]
    for indices in planned:
        batch: Batch = task.pool.batch(indices, generator)._replace(text=task.text[indices])
        for number in (0, 1):
            loss, terms = solver.policy_loss(batch, config.samples, config.reward_scale, False, weights)
            found = torch.autograd.grad(loss, parameters)
            sums[number] = sums[number] + torch.cat([part.flatten() for part in found]) / windows
            spread += float(terms["reward_spread"]) / (2 * windows)
    one, other = sums
    cosine = float(torch.cosine_similarity(one, other, dim=0))
    return f"{spread:8.0%}{float(one.norm()):8.3f}{cosine:8.2f}"


@torch.no_grad()
def count_changes(task: ArcTask) -> str:
    """Count the first attempts that differ without ranking and without the policy. Return them as text."""
    solver, noise, device = task.solver, task.noise, task.context.device
    for module in task.modules.values():
        module.eval()
    precision = task.config.selection_precision
    ranked = sit(solver, task.exam, noise, precision, device).attempts
    unranked = sit(solver, task.exam, noise, 0.0, device).attempts
    alone = sit(Solver(solver.agent, solver.encoder, None), task.exam, noise, 0.0, device).attempts
    return f"{_differing(ranked, unranked):10}{_differing(ranked, alone):11}{len(ranked):16}"


def _differing(ones: list[tuple[Grid, Grid]], others: list[tuple[Grid, Grid]]) -> int:
    return sum(not np.array_equal(one, other) for (one, _), (other, _) in zip(ones, others, strict=True))


if __name__ == "__main__":
    main()
