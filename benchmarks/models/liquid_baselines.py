"""Compare the liquid network on text and series with n-grams and linear models.

The network learns all domains at once, and one domain after another with replay. Errors are of the whole test part of
each domain, and lower is better. Text is measured in bits per byte, with n-grams as peers. Series are measured in
squared errors of values of variance 1. Their peers are the last value, and a linear model of the last 8 values and the
time step.

    python benchmarks/models/liquid_baselines.py [--only NAME ...] [--set samples=2048]
"""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from searchlight.search.space.flatten import nest
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the task's config, in all of them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = dict(part.split("=", 1) for part in arguments.set)
    for name in arguments.only:
        settings = RUNS[name] | {"test_samples": 100_000} | given
        start = time.process_time()
        outcome = run(LiquidTask(LiquidConfig.model_validate(nest(settings))))
        told = " ".join(f"{key}={value}" for key, value in settings.items())
        print(f"{name}: {time.process_time() - start:.0f} s of one core\n  {told}")
        show(outcome)
        print(flush=True)


def run(task: LiquidTask) -> Outcome:
    """Train a task to its end and return its errors."""
    after: dict[int, Errors] = {}
    for report in train(task):
        after[task.learning] = _errors(task, report)  # the last report of each
    own = [after[number][domain] for number, tests in enumerate(task.stream.tests) for domain in tests]
    domains = [domain for tests in task.stream.tests for domain in tests]
    source = data.read(task.config.data, task.config.length, task.files)
    return Outcome(dict(zip(domains, own, strict=True)), after[task.stream.tasks - 1], source.baselines)


def show(outcome: Outcome) -> None:
    """Print a row for each domain. A star marks errors below the 3-gram for bytes, or below "ar_dt" for values."""
    names = list(next(iter(outcome.baselines.values())))
    bar = "3-gram" if "3-gram" in names else "ar_dt"
    print(f"{'':14}" + "".join(f"{name:>10}" for name in (*names, "after", "end", "forgotten")))
    for domain, end in outcome.end.items():
        baselines, after = outcome.baselines[domain], outcome.after[domain]
        row = "".join(f"{baselines[name]:10.4f}" for name in names)
        marked = "".join(f"{f'{value:.4f}' + ('*' if value < baselines[bar] else ' '):>10}" for value in (after, end))
        print(f"{domain:14}{row}{marked}{end - after:+10.4f}")
    print(f"* below {bar}")


def _errors(task: LiquidTask, report: Mapping[str, float]) -> Errors:
    measure = ERRORS[task.stream.kind]
    return {domain: report[f"val/{measure}_{domain}"] for tests in task.stream.tests for domain in tests}


if __name__ == "__main__":
    main()
