"""What each part of the ARC agent contributes: trainings without it, on the puzzles of ARC-AGI-1 and on generated ones.

All variants have the same seeds, so a difference is that of pairs. Each is trained with the defaults otherwise.

    python benchmarks/arc_ablation.py [--seeds 5] [--epochs 9] [--data arc-agi-1 generated] [--processes 2]
"""

import argparse

from benchmarks.task_runs import difference, mean, train_all
from trainables.arc import ArcTask

VARIANTS = {
    "full": {},
    "no policy": {"use_policy": False},
    "no prompt": {"use_prompt": False, "use_policy": False},
    "no curriculum": {"curriculum_start": 0.0, "curriculum_end": 0.0},
    "no hard-cell weights": {"hard_cell_floor": 1.0},
}
METRICS = ("val/score", "val/pass2_output", "val/cell_lift", "val/size_acc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--data", nargs="+", default=["arc-agi-1", "generated"])
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    for data in arguments.data:
        fixed = {"data": data, "epochs": arguments.epochs, "episodes": arguments.episodes}
        configs = [fixed | variant for variant in VARIANTS.values()]
        results = train_all(ArcTask, configs, arguments.seeds, arguments.processes)
        print(f"{data}: {arguments.epochs} epochs of {arguments.episodes} episodes, {arguments.seeds} seeds")
        print(
            f"{'':22}"
            + "".join(f"{metric.removeprefix('val/'):>14}" for metric in METRICS)
            + f"{'score less full':>20}{'s':>7}"
        )
        for name, reports in zip(VARIANTS, results, strict=True):
            row = "".join(f"{mean(reports, metric):14.4f}" for metric in METRICS)
            against = difference(reports, results[0], "val/score")
            print(f"{name:22}{row}{against:>20}{mean(reports, 'seconds'):7.0f}", flush=True)


if __name__ == "__main__":
    main()
