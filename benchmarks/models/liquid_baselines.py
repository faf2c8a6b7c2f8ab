"""Compare the liquid network on text and series with n-grams and linear models.

The network learns all domains at once, and one domain after another with replay. Errors are of the whole test part of
each domain, and lower is better. Text is measured in bits per byte, with n-grams as peers. Series are measured in
squared errors of values of variance 1. Their peers are the last value, and a linear model of the last 8 values and the
time step.

    python benchmarks/models/liquid_baselines.py [--only NAME ...] [--set samples=2048]
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import add_settings, create_parser, parse_settings, print_progress, print_result
from searchlight.trainables.flatten import nest
from searchlight.trainables.liquid import LiquidTask, data
from searchlight.trainables.liquid.config import LiquidConfig
from searchlight.trainables.liquid.task import ERRORS
from searchlight.trainables.training.trainer import train

Errors = dict[str, float]

COMMAND: dict[str, Any] = {
    "data": "text",
    "epochs": 30,
    "continual.tasks": 5,
    "replay.fraction": 0.25,
}
TEXT: dict[str, Any] = {
    "data": "text",
    "samples": 4096,
    "batch_size": 32,
    "width": 96,
    "units": 128,
    "spiking.neurons": 64,
    "lr": 5e-3,
    "ema_decay": 0.99,
}
SERIES: dict[str, Any] = {"data": "series", "samples": 1280, "units": 64, "replay.size": 500}
ALL_AT_ONCE = {"continual.tasks": 1, "schedule": "cosine"}
RUNS: dict[str, dict[str, Any]] = {
    "text-at-once": TEXT | ALL_AT_ONCE | {"epochs": 15},
    "text-in-turn": TEXT | {"epochs": 20, "replay.size": 2000},
    "text-command": COMMAND,
    "series-at-once": SERIES | ALL_AT_ONCE | {"epochs": 30},
    "series-in-turn": SERIES | {"epochs": 50},
}


class Outcome(NamedTuple):
    """Errors by domain, after the domain's task and at the end, and those of the baselines."""

    after: Errors
    end: Errors
    baselines: Mapping[str, Mapping[str, float]]


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    add_settings(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs, errors = [], []
    for name in arguments.only:
        settings = RUNS[name] | {"test_samples": 100_000} | parse_settings(arguments)
        start = time.process_time()
        outcome = run(LiquidTask(LiquidConfig.model_validate(nest(settings))))
        written = " ".join(f"{key}={value}" for key, value in settings.items())
        runs.append({"run": name, "settings": written, "cpu": time.process_time() - start})
        for domain, end in outcome.end.items():
            found = {**outcome.baselines[domain], "after": outcome.after[domain], "end": end}
            errors.append({"run": name, "domain": domain, **found})
        print_progress(f"{name}: {runs[-1]['cpu']:.0f} s")
    print_result({"runs": runs, "errors": errors}, {"cpu": "s"})


def run(task: LiquidTask) -> Outcome:
    """Train a task to its end and return its errors."""
    after: dict[int, Errors] = {}
    for report in train(task):
        after[task.learning] = _get_errors(task, report)  # the last report of each
    own = [after[number][domain] for number, tests in enumerate(task.stream.tests) for domain in tests]
    domains = [domain for tests in task.stream.tests for domain in tests]
    source = data.read(task.config.data, task.config.length, task.files)
    return Outcome(dict(zip(domains, own, strict=True)), after[task.stream.tasks - 1], source.baselines)


def _get_errors(task: LiquidTask, report: Mapping[str, float]) -> Errors:
    measure = ERRORS[task.stream.kind]
    return {domain: report[f"val/{measure}_{domain}"] for tests in task.stream.tests for domain in tests}


if __name__ == "__main__":
    main()
