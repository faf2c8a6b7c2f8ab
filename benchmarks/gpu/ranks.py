"""Train with several ranks: exactness of an update, its time against DDP, and sharded against whole models.

Each rank has a GPU. On a CPU, the ranks are processes that communicate with gloo.

    python benchmarks/gpu/ranks.py [--device cpu]
"""

import math
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.goals import ERRORS
from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, skip_claim, synchronize
from benchmarks.gpu.exactness import GradientRecorder, build_model, compute_truth, draw_batches
from benchmarks.recording import Row
from searchlight.trainables.context import Context
from searchlight.trainables.lm import LmTask
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import Updater

MOST_RANKS = 8
TIMEOUT = timedelta(minutes=2)


def measure_error(device: torch.device, rank: int, ranks: int) -> float:
    """Return the error of the gradient of a window whose unequal micro-batches are split over the ranks."""
    model = build_model().to(device)
    recorder = GradientRecorder(model.parameters(), lr=0.0)
    updater = Updater({"model": recorder}, device=device)
    window = draw_batches()[rank::ranks]
    updater.update(window, lambda batch: (functional.cross_entropy(model(batch[0]), batch[1]), len(batch[1])))
    truth = compute_truth()
    return float((recorder.gradient - truth).norm() / truth.norm())


def time_updates(device: torch.device, width: int, updates: int, with_ddp: bool) -> float:
    """Return the milliseconds of an update of a perceptron of eight layers."""
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(width, width), nn.ReLU())]
    model: nn.Module = nn.Sequential(*layers).to(device)
    batch = torch.randn(64, width, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if with_ddp:
        model = DistributedDataParallel(model)
    updater = Updater({"model": optimizer}, device=device) if not with_ddp else None

    def update() -> None:
        if updater is not None:
            updater.update([batch], lambda values: (model(values).square().mean(), len(values)))
            return
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        update()
    synchronize(device)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(updates):
        update()
    synchronize(device)
    return 1e3 * (time.perf_counter() - start) / updates


def train_lm(device: torch.device, rank: int, ranks: int, shard: str) -> float:
    """Return the bits per byte of a small language model after an epoch."""
    config = LmConfig(shard=shard, precision="fp32", samples=64, test_samples=32, epochs=1)  # type: ignore[arg-type]
    trial = TrialTrainer(LmTask(config, Context(device, rank, ranks)))
    metrics = trial.run_epoch()
    trial.close()
    assert metrics is not None
    return metrics["val/bpb"]


def run_rank(rank: int, ranks: int, kind: str, small: bool, store: str, results: str) -> None:
    """Measure everything on one rank. Rank 0 saves the figures."""
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=ranks, timeout=TIMEOUT)
    width, updates = (32, 5) if small else (2048, 50)
    figures = {
        "error": measure_error(device, rank, ranks),
        "update": time_updates(device, width, updates, with_ddp=False),
        "ddp": time_updates(device, width, updates, with_ddp=True),
        "whole": train_lm(device, rank, ranks, "none"),
        "sharded": train_lm(device, rank, ranks, "full"),
    }
    if rank == 0:
        torch.save(figures, results)
    dist.barrier()
    dist.destroy_process_group()


def list_claims(device: torch.device, small: bool) -> list[Row]:
    ranks = min(torch.cuda.device_count(), MOST_RANKS) if device.type == "cuda" else 2
    if ranks < 2:
        return [skip_claim("updates over several GPUs", "this machine has one GPU")]
    with tempfile.TemporaryDirectory() as folder:
        results = f"{folder}/figures.pt"
        multiprocessing.spawn(run_rank, (ranks, device.type, small, f"{folder}/store", results), nprocs=ranks)
        found = torch.load(results)
    ratio = found["update"] / found["ddp"]
    difference = abs(found["sharded"] - found["whole"])
    return [
        make_claim(
            f"error of a gradient over {ranks} ranks, fp32", f"{found['error']:.1e}", found["error"] <= ERRORS["fp32"]
        ),
        make_claim(
            f"an update over {ranks} ranks against DDP",
            f"{found['update']:.2f} ms, DDP {found['ddp']:.2f} ms, ratio {ratio:.2f}",
        ),
        make_claim(
            "a sharded model learns as a whole one",
            f"{found['sharded']:.5f} and {found['whole']:.5f} bits per byte",
            math.isfinite(difference) and difference <= 1e-3,
        ),
    ]


def main() -> None:
    given = create_device_parser(__doc__).parse_args()
    print_claims(list_claims(given.device, given.small))


if __name__ == "__main__":
    main()
