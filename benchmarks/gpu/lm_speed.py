"""Measure the training of a language model: tokens per second, use of the device, and the seconds of a checkpoint.

The model has 12 blocks, 768 wide, 85 million weights without an embedding of words, since it reads bytes.

    python benchmarks/gpu/lm_speed.py [--device cpu]
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, synchronize
from benchmarks.recording import Row
from searchlight.trainables.context import Context
from searchlight.trainables.lm import LmTask
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.precision import Precision, find_supported_precisions
from searchlight.trainables.training.trainer import TrialTrainer

LARGE = {"width": 768, "depth": 12, "heads": 12, "length": 1024, "batch_size": 16, "samples": 512}
SMALL = {"width": 96, "depth": 2, "heads": 3, "length": 64, "batch_size": 4, "samples": 16}
EPOCHS = 3  # the first has kernels to load


def measure(device: torch.device, settings: dict[str, Any], precision: str, compiled: bool) -> Row:
    """Train for some epochs, and return the claim about the last one."""
    config = LmConfig.model_validate(
        {**settings, "precision": precision, "compiled": compiled, "test_samples": 8, "epochs": EPOCHS}
    )
    trial = TrialTrainer(LmTask(config, Context(device)))
    for _ in range(EPOCHS):
        metrics = trial.run_epoch()
    assert metrics is not None
    weights = sum(parameter.numel() for parameter in trial.task.modules["model"].parameters())
    figure = f"{metrics['time/tokens_per_s']:,.0f} tokens/s"
    if "time/mfu" in metrics:
        figure += f", {100 * metrics['time/mfu']:.0f} % of the peak"
    synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        trial.save(Path(folder) / "checkpoint.pt")
        figure += f"; a checkpoint takes {time.perf_counter() - start:.2f} s"
    trial.close()
    how = f"{precision}{', compiled' if compiled else ''}"
    return make_claim(f"`lm` with {weights / 1e6:.0f} million weights, {how}", figure)


def main() -> None:
    given = create_device_parser(__doc__).parse_args()
    modes = [(precision, False) for precision in find_supported_precisions(given.device)]
    if given.small:
        modes = modes[:1]
    else:
        modes.append((Precision.BF16, True))
    print_claims([measure(given.device, SMALL if given.small else LARGE, *mode) for mode in modes])


if __name__ == "__main__":
    main()
