"""Measure the training speed and peak memory of the ARC task in each precision, eager and compiled.

A window is one update of agent and prompt encoder, and one of the policy. The first windows are warm-up.

    python benchmarks/models/arc_speed.py [--windows 30] [--compile] [--width 32] [--batch-size 8] [--threads 1]
"""

import argparse
import sys
import time
from itertools import islice
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, create_parser, print_result
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.context import Context
from searchlight.trainables.precision import Precision
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update.batches import to_device

WARM = 5  # windows


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--windows", type=int, default=30)
    parser.add_argument("--compile", action="store_true", help="measure compiled models as well")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {arguments.threads} threads"
    rows: list[Row] = []
    for compiled in (False, True) if arguments.compile else (False,):
        for precision in Precision:
            speed, peak = measure(precision, compiled, arguments, device)
            base = rows[0]["samples_per_s"] if rows else speed
            row = {"precision": precision.value, "mode": "compiled" if compiled else "eager", "samples_per_s": speed}
            rows.append(row | {"of_fp32": speed / base, **({} if peak is None else {"peak_memory": peak})})
    about = f"{where}, torch {torch.__version__}: width {arguments.width}, {arguments.batch_size} episodes a window"
    print_result({"speeds": rows}, {"peak_memory": "GiB"}, about)


def measure(
    precision: Precision, compiled: bool, arguments: argparse.Namespace, device: torch.device
) -> tuple[float, float | None]:
    """Return the episodes per second, and the peak memory on a GPU or None."""
    windows = WARM + arguments.windows
    config = ArcConfig(
        precision=precision,
        width=arguments.width,
        batch_size=arguments.batch_size,
        episodes=windows * arguments.batch_size,
    )
    task = ArcTask(config, Context(device=device))
    training = TrialTrainer(task)
    if compiled:
        task.solver.agent.read = torch.compile(task.solver.agent.read)  # type: ignore[method-assign]
        task.solver.agent.refiner.compile()
    batches = [[to_device(batch, device, False)] for batch in islice(task.train_batches(0), windows)]
    for window in batches[:WARM]:
        task.update(window)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    for window in batches[WARM:]:
        task.update(window)
    if device.type == "cuda":
        torch.cuda.synchronize()
    samples = sum(len(window[0].query) for window in batches[WARM:])
    training.close()
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return samples / (time.perf_counter() - start), peak


if __name__ == "__main__":
    main()
