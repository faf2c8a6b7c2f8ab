"""Compare the verdicts of the simulated GPU with a real one, on the tasks that tests hold them on.

A task that the simulation calls faulty must raise an error on the GPU, and a healthy one must not. Each is built,
trained for some windows, evaluated, saved, and resumed.

    python benchmarks/gpu/simulated_verdicts.py [--device cpu]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, skip_claim
from benchmarks.recording import Row, print_progress
from searchlight.trainables.context import Context
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.task import Task
from tests.trainables.preflight.healthy_tasks import HEALTHY
from tests.trainables.preflight.shadow_device.gpu_faults import FAULTS
from tests.trainables.preflight.shadow_device.gpu_ready import READY

WINDOWS = 4


def run_task(task: type[Task[Any]], device: torch.device) -> BaseException | None:
    """Return the error that a trial of the task raises on the device, or None."""
    config = task.config_class()()
    trial = ObservedTrial(task, config, Context(device))
    trial.train(WINDOWS)
    trial.evaluate()
    if trial.error is None and trial.trainer is not None:
        with tempfile.TemporaryDirectory() as folder:
            trial.trainer.save(Path(folder, "checkpoint"))
            resumed = ObservedTrial(task, config, Context(device))
            try:
                if resumed.trainer is not None:
                    resumed.trainer.load(Path(folder, "checkpoint"))
                resumed.train(1)
                trial.error = resumed.error
            except Exception as error:  # whatever the task's own code raises when it loads its state is its verdict
                trial.error = error
        resumed.close()
    trial.close()
    return trial.error


def list_claims(device: torch.device, small: bool) -> list[Row]:
    healthy = [*READY, *HEALTHY][: 5 if small else None]
    broken = {task.__name__: error for task in healthy if (error := run_task(task, device)) is not None}
    for name, error in broken.items():
        print_progress(f"{name}: {type(error).__name__}: {error}")
    figure = f"{len(healthy) - len(broken)} of {len(healthy)}" + (f"; not {', '.join(broken)}" if broken else "")
    claims = [make_claim("tasks without a finding run on the GPU", figure, not broken)]
    claim = "tasks with the finding `wrong-device` fail on the GPU"
    if device.type != "cuda":
        return [*claims, skip_claim(claim, f"the device is {device}")]
    passed = [task.__name__ for _, _, task in FAULTS if run_task(task, device) is None]
    figure = f"{len(FAULTS) - len(passed)} of {len(FAULTS)}" + (f"; not {', '.join(passed)}" if passed else "")
    return [*claims, make_claim(claim, figure, not passed)]


def main() -> None:
    given = create_device_parser(__doc__).parse_args()
    print_claims(list_claims(given.device, given.small))


if __name__ == "__main__":
    main()
