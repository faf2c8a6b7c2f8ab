"""Measure what an audit takes, and how well it predicts the seconds of an epoch.

The CPU seconds of `--preflight` include the start of Python and of the task. With --predict, each config of the space
that was audited is then trained, and the mean of its second to sixth epoch is compared with the prediction. Only an
idle machine gives useful ratios.

    python benchmarks/models/preflight.py [arc liquid lm] [--repeats 3] [--predict]
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import SEARCH, Table, create_parser, print_result
from searchlight.search.config import load_config
from searchlight.search.experiment import plan
from searchlight.search.experiment.preflight import build_request, has_gpus
from searchlight.trainables.context import Context
from searchlight.trainables.preflight.observation import UNLIMITED
from searchlight.trainables.registry import load_class
from searchlight.trainables.training.trainer import TrialTrainer

EPOCHS = 6
CLOSE = 0.1  # of the measured time, at most, is a good prediction off


def audit(task: str) -> tuple[float, dict[str, Any]]:
    """Return the CPU seconds of an audit, and the audit."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as storage:
        command = [sys.executable, str(SEARCH), task, "--preflight", "--json", "--storage", storage]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, found


def measure_epoch(task: str, where: str, precision: str) -> float:
    """Return the mean seconds of an epoch of the config that the audit calls `where`, without the first epoch."""
    with tempfile.TemporaryDirectory() as storage:
        planned = plan(load_config({"task": task, "storage": storage}))
    request = build_request(planned.space, planned.config.workers)
    values = {**dict(request.corners).get(where, request.config), "precision": precision, "epochs": EPOCHS, **UNLIMITED}
    task_class = load_class(planned.source.reference)
    torch.set_num_threads(max(1, int(planned.config.cpus_per_worker)))
    context = Context("cuda" if has_gpus(planned.config) else "cpu")
    trainer = TrialTrainer(task_class(task_class.config_class().model_validate(values), context))
    seconds = []
    for _ in range(EPOCHS):
        trainer.run_epoch()
        seconds.append(trainer.seconds)
    trainer.close()
    return statistics.mean(seconds[1:])


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("tasks", nargs="*", default=["arc", "liquid", "lm"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--predict", action="store_true")
    given = parser.parse_args()
    audits, predictions = [], []
    for task in given.tasks:
        runs = [audit(task) for _ in range(given.repeats)]
        cpu = [seconds for seconds, _ in runs]
        audits.append({"task": task, "cpu_low": min(cpu), "cpu_high": max(cpu)})
        for cost in (cost for cost in runs[-1][1]["costs"] if given.predict and cost["epoch_s"]):
            measured = measure_epoch(task, cost["where"], cost["precision"])
            row = {"task": task, "config": cost["where"] or "defaults", "predicted": cost["epoch_s"]}
            predictions.append(row | {"measured": measured, "is_close": abs(cost["epoch_s"] / measured - 1) <= CLOSE})
    figures: dict[str, Table] = {"audits": audits, **({"predictions": predictions} if predictions else {})}
    print_result(figures, dict.fromkeys(("cpu_low", "cpu_high", "predicted", "measured"), "s"))


if __name__ == "__main__":
    main()
