"""Compare methods of continual learning for a liquid spiking network on Split-Digits.

The ten digits come in five tasks of two classes. The scenarios are those of van de Ven, Tuytelaars and Tolias (2022).
In "task" the task of each sample is known. In "domain" it is unknown, and the network predicts the class within the
task. In "class" it predicts the digit. Everything else is the task's default. "joint" learns all tasks at once, with
the same numbers of updates and new samples. A micro-batch with replay has the same number of old samples in addition.

Accuracies are those after the last task, with the standard deviation between seeds. `bands` compares them with
published results of such methods.

    python benchmarks/models/continual.py [--seeds 3] [--epochs 15] [--processes 2]
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.models.task_runs import Report, compute_deviation, compute_mean, train_all
from benchmarks.recording import create_parser, print_result
from searchlight.models.liquid.continual import Scenario
from searchlight.trainables.liquid import LiquidTask
from searchlight.trainables.liquid.task import Batch

NO_REPLAY = {"replay": {"fraction": 0.0}}
METHODS: dict[str, dict[str, Any]] = {
    "naive": NO_REPLAY,
    "EWC": NO_REPLAY | {"consolidation": {"method": "ewc"}},
    "SI": NO_REPLAY | {"consolidation": {"method": "si"}},
    "replay": {"replay": {"fraction": 0.5}},
    "DER++": {"replay": {"fraction": 0.5, "logits_weight": 0.5}},
}
UNITS = {"accuracy": "%", "deviation": "%", "forgotten": "%", "cpu": "s"}
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
Table = Mapping[str, Mapping[str, list[Report]]]


class JointTask(LiquidTask):
    """A task that learns all tasks at once. Each sample uses the outputs of its own task."""

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        stream, context = self.stream, self.context
        order = torch.randperm(stream.samples.size, generator=context.generator)[: self._count_samples(epoch)]
        ends = torch.tensor(stream.bounds[1:])
        for indices in context.shard(order, self.config.batch_size, shuffle=False):
            yield Batch(stream.samples.select_rows(indices), torch.bucketize(indices, ends, right=True), 0, None)


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    rows = {scenario: measure(scenario, arguments) for scenario in SCENARIOS}
    table = {method: {scenario: rows[scenario][method] for scenario in SCENARIOS} for method in rows["class"]}
    methods = [
        {"method": method, "scenario": scenario, **describe(reports)}
        for method, results in table.items()
        for scenario, reports in results.items()
    ]
    bands = [{"band": band, "met": met} for band, met in check_bands(table).items()]
    about = f"Split-Digits in 5 tasks, {arguments.epochs} epochs, {arguments.seeds} seeds"
    print_result({"methods": methods, "bands": bands}, UNITS, about)


def measure(scenario: Scenario, arguments: argparse.Namespace) -> dict[str, list[Report]]:
    """Return the last report of each method under each seed."""
    fixed = {"epochs": arguments.epochs, "continual": {"scenario": scenario}}
    configs = [fixed | method for method in METHODS.values()]
    results = train_all(LiquidTask, configs, arguments.seeds, arguments.processes)
    joint = train_all(JointTask, [fixed | NO_REPLAY], arguments.seeds, arguments.processes)
    return dict(zip([*METHODS, "joint"], results + joint, strict=True))


def check_bands(table: Table) -> dict[str, bool]:
    """Return whether the accuracy is in each of the bands in which published results are."""
    accuracy = {
        (method, scenario): 100 * compute_mean(reports, "val/score")
        for method, results in table.items()
        for scenario, reports in results.items()
    }
    return {
        "class-incremental naive at most 25": accuracy["naive", "class"] <= 25,
        "class-incremental replay at least 85": accuracy["replay", "class"] >= 85,
        "task-incremental EWC at least naive": accuracy["EWC", "task"] >= accuracy["naive", "task"],
        "task-incremental SI at least naive": accuracy["SI", "task"] >= accuracy["naive", "task"],
    }


def describe(reports: list[Report]) -> dict[str, float]:
    """Return the mean and the deviation of the accuracy, the forgetting if there are several tasks, and CPU seconds."""
    row = {
        "accuracy": 100 * compute_mean(reports, "val/score"),
        "deviation": 100 * compute_deviation(reports, "val/score"),
    }
    if all("val/forgetting" in report for report in reports):
        row["forgotten"] = 100 * compute_mean(reports, "val/forgetting")
    return row | {"cpu": compute_mean(reports, "seconds")}


if __name__ == "__main__":
    main()
