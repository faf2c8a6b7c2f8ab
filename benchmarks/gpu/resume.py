"""Compare trials that were resumed on the device with one that was not interrupted, bit for bit.

A trial is saved at the end of an epoch or within one, and continued by new objects. It is also copied to another
trial with the same values, as population-based training does. With deterministic algorithms all must be equal.

    python benchmarks/gpu/resume.py [--device cpu]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims
from benchmarks.gpu.device_tasks import DeviceConfig, DeviceTask
from benchmarks.recording import Row
from searchlight.trainables import checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.training.trainer import TrialTrainer

EPOCHS, STOPPED_AFTER = 3, 3  # windows of the second epoch


def create_trial(device: torch.device, **settings: Any) -> TrialTrainer:
    return TrialTrainer(DeviceTask(DeviceConfig(epochs=EPOCHS, **settings), Context(device)))


def finish(trial: TrialTrainer) -> list[torch.Tensor]:
    """Train to the end, and return all weights and buffers."""
    while trial.epoch < EPOCHS:
        trial.run_epoch()
    return [value.cpu() for value in trial.task.modules["model"].state_dict().values()]


def is_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def measure(device: torch.device, folder: Path, **settings: Any) -> dict[str, bool]:
    """Return for each way of an interruption whether the weights at the end are those without one."""
    expected = finish(create_trial(device, **settings))
    trial = create_trial(device, **settings)
    trial.run_epoch()
    trial.save(folder / "end.pt")
    trial.run_epoch(lambda: trial.windows >= STOPPED_AFTER)
    trial.save(folder / "midway.pt")
    outcomes = {"a second run": is_equal(finish(create_trial(device, **settings)), expected)}
    for name in ("end", "midway"):
        resumed = create_trial(device, **settings)
        resumed.load(folder / f"{name}.pt")
        outcomes[f"resumed at the {name}" if name == "end" else "resumed midway"] = is_equal(finish(resumed), expected)
    copied = create_trial(device, **settings)
    copied.restore(checkpoint.load(folder / "end.pt"), of_another=True)
    outcomes["copied to another trial"] = is_equal(finish(copied), expected)
    return outcomes


def list_claims(device: torch.device) -> list[Row]:
    claims = []
    for precision in ("fp32", "bf16"):
        for deterministic in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                found = measure(device, Path(folder), precision=precision, deterministic=deterministic)
            how = "deterministic" if deterministic else "the default"
            figure = "equal: " + (", ".join(name for name, equal in found.items() if equal) or "none")
            holds = all(found.values()) if deterministic else None
            claims.append(make_claim(f"a resumed trial is equal in each bit, {precision}, {how}", figure, holds))
    return claims


def main() -> None:
    print_claims(list_claims(create_device_parser(__doc__).parse_args().device))


if __name__ == "__main__":
    main()
