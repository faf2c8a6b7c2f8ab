"""Compare what the preflight predicts on the device with what trials then take.

python benchmarks/gpu/predictions.py [--device cpu]
"""

import statistics
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims
from benchmarks.gpu.device_tasks import DeviceTask
from benchmarks.recording import Row
from searchlight.trainables.context import Context
from searchlight.trainables.lm import LmTask
from searchlight.trainables.preflight.audit import Audit
from searchlight.trainables.preflight.messages import AuditRequest
from searchlight.trainables.task import Task
from searchlight.trainables.training.trainer import TrialTrainer

EPOCHS = 6
CLOSE = 0.25  # of the measured seconds, at most, is a prediction off


def compare(task: type[Task[Any]], device: torch.device, settings: dict[str, Any]) -> list[Row]:
    """Audit a task and train it. Return the claims about its epoch and its findings."""
    config = task.config_class().model_validate({"epochs": EPOCHS, "precision": "fp32", **settings})
    request = AuditRequest(config.model_dump(mode="json", round_trip=True), modes=["fp32"])
    result = Audit(lambda: task, request, Context(device)).run()
    trial, seconds = TrialTrainer(task(config, Context(device))), []
    for _ in range(EPOCHS):
        trial.run_epoch()
        seconds.append(trial.seconds)
    trial.close()
    measured = statistics.median(seconds[1:])
    predicted = next((cost.epoch_s for cost in result.costs if cost.epoch_s), None)
    found = [finding.name for finding in result.findings if finding.severity != "note"]
    claims = [make_claim(f"false findings about {task.__name__}", ", ".join(found) or "none", not found)]
    if predicted is not None:
        figure = f"{predicted:.3g} s predicted, {measured:.3g} s measured"
        holds = abs(predicted / measured - 1) <= CLOSE if device.type == "cuda" else None
        claims.append(make_claim(f"seconds of an epoch of {task.__name__}", figure, holds))
    return claims


def main() -> None:
    given = create_device_parser(__doc__).parse_args()
    claims = compare(DeviceTask, given.device, {})
    if not given.small:
        claims += compare(LmTask, given.device, {"width": 384, "depth": 6, "heads": 6, "batch_size": 32})
    print_claims(claims)


if __name__ == "__main__":
    main()
