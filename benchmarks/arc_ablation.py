"""Measure what each part of the ARC agent contributes, by paired trainings without it under the same seeds.

Agents for generated puzzles are evaluated on four times as many new puzzles as in a trial. Agents for ARC-AGI-1 are
evaluated on the data set's own puzzles. A part belongs in the defaults only if its absence costs more than two standard
errors of the difference.

    python benchmarks/arc_ablation.py [--seeds 5] [--epochs 5] [--data generated arc-agi-1] [--processes 2]
        [--variants full "no policy"] [--set NAME=VALUE]
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.task_runs import difference, mean, train_all
from searchlight.models.arc.generators.generator import FAMILIES, generate
from searchlight.trainables.arc import ArcTask

ON = {"use_prompt": True, "use_policy": True, "curriculum_start": 0.6}
TRAINED = {
    "full": ON,
    "no policy": ON | {"use_policy": False},
    "no prompt": ON | {"use_prompt": False, "use_policy": False},
    "no curriculum": ON | {"curriculum_start": 0.0},
    "no policy nor curriculum": ON | {"use_policy": False, "curriculum_start": 0.0},
    "none of them": {"use_prompt": False, "use_policy": False, "curriculum_start": 0.0},
    "no hard-cell weights": ON | {"hard_cell_floor": 1.0},
    "no pathwise": ON | {"pathwise_weight": 0.0},
}
EVALUATED = ("no ranking", "one candidate")  # of the full agent, trained as it is
METRICS = ("val/pass2_output", "val/cell_lift", "val/score")
EACH = 20  # generated puzzles of each family
FIRST = 10_000  # number of the first one, beyond those of a trial


class LastEvaluation(ArcTask):
    """A task that evaluates only the last epoch, and in several ways if there is a policy."""

    def build(self) -> None:
        super().build()
        self.evaluations = 0

    def evaluate(self) -> dict[str, float]:
        self.evaluations += 1
        if self.evaluations < self.config.epochs:
            return {self.objective: 0.0}
        report = super().evaluate()
        if self.config.use_policy:
            precision, noise = self.config.selection_precision, self.noise
            self.config = self.config.model_copy(update={"selection_precision": 0.0})
            report |= {f"no ranking/{name}": value for name, value in super().evaluate().items()}
            self.config = self.config.model_copy(update={"selection_precision": precision})
            self.noise = noise[:1]
            report |= {f"one candidate/{name}": value for name, value in super().evaluate().items()}
            self.noise = noise
        return report

    def pictures(self) -> dict[str, np.ndarray]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--data", nargs="+", default=["generated", "arc-agi-1"])
    parser.add_argument("--variants", nargs="+", default=list(TRAINED), choices=list(TRAINED))
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the task's config")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    given = dict(part.split("=", 1) for part in arguments.set)
    for data in arguments.data:
        with tempfile.TemporaryDirectory() as folder:
            fixed = {"data": data, "epochs": arguments.epochs, **given}
            if data == "generated":
                write_puzzles(Path(folder), int(given.get("max_side", 12)))
                fixed |= {"evaluation_data": folder, "leak": "drop"}
            names = arguments.variants
            configs = [fixed | TRAINED[name] for name in names]
            found = train_all(LastEvaluation, configs, arguments.seeds, arguments.processes, which="last")
        rows = dict(zip(names, found, strict=True))
        print(f"{data}: {arguments.epochs} epochs, {arguments.seeds} seeds; differences from {names[0]}")
        print(
            f"{'':26}" + "".join(f"{name.removeprefix('val/'):>14}{'difference':>20}" for name in METRICS) + f"{'s':>6}"
        )
        full = rows.get("full", [])
        for name in EVALUATED if full else ():
            rows[name] = [
                {metric: report[f"{name}/{metric}"] for metric in METRICS} | {"seconds": report["seconds"]}
                for report in full
            ]
        for name, reports in rows.items():
            cells = [f"{mean(reports, metric):14.4f}{difference(reports, found[0], metric):>20}" for metric in METRICS]
            print(f"{name:26}{''.join(cells)}{mean(reports, 'seconds'):6.0f}", flush=True)


def write_puzzles(folder: Path, max_side: int) -> None:
    """Write evaluation puzzles of all families to a folder."""
    (folder / "evaluation").mkdir()
    for family in FAMILIES:
        for number, level in enumerate(np.linspace(0, 1, EACH), FIRST):
            puzzle = generate(family, float(level), number, max_side, number)
            parts = {
                part: [{"input": source.tolist(), "output": target.tolist()} for source, target in pairs]
                for part, pairs in (("train", puzzle.demonstrations), ("test", puzzle.tests))
            }
            (folder / "evaluation" / f"{puzzle.id}.json").write_text(json.dumps(parts))


if __name__ == "__main__":
    main()
