"""Measure how far an accumulated gradient on the device is from that of the same samples in one batch in fp64.

The model has a convolution, since cuDNN uses TF32 for convolutions by default, and a linear layer. Micro-batches have
unequal numbers of labels. The error of the gradient g is ||g - truth|| / ||truth||.

    python benchmarks/gpu/exactness.py [--device cpu]
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.goals import ERRORS
from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, skip_claim, tf32
from benchmarks.recording import Row
from searchlight.trainables.precision import Precision, find_supported_precisions
from searchlight.trainables.update import Updater

SIZES = (32, 8, 20, 12)  # images of the micro-batches
TF32_ERROR = 5e-3  # 10 bits of a product


class GradientRecorder(torch.optim.SGD):
    """An optimizer that keeps the gradient of each step, and changes no weights."""

    gradient: Tensor

    def step(self, closure: object = None) -> None:
        parameters = self.param_groups[0]["params"]
        self.gradient = torch.cat([parameter.grad.flatten().double().cpu() for parameter in parameters])


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10))


def draw_batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, 16, 16, generator=generator), torch.randint(10, (size,), generator=generator))
        for size in SIZES
    ]


def compute_truth() -> Tensor:
    """Return the gradient of all samples in one batch, in fp64 on the CPU."""
    model = build_model().double()
    images, labels = (torch.cat(parts) for parts in zip(*draw_batches(), strict=True))
    functional.cross_entropy(model(images.double()), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def measure_error(precision: Precision, device: torch.device) -> float:
    """Return the relative error of the gradient of one window of four micro-batches."""
    model = build_model().to(device)
    recorder = GradientRecorder(model.parameters(), lr=0.0)
    updater = Updater({"model": recorder}, precision=precision, device=device)

    def loss(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        images, labels = batch
        return functional.cross_entropy(model(images), labels), len(labels)

    updater.update(draw_batches(), loss)
    truth = compute_truth()
    return float((recorder.gradient - truth).norm() / truth.norm())


def list_claims(device: torch.device) -> list[Row]:
    claims, supported = [], find_supported_precisions(device)
    for precision in Precision:
        claim = f"error of an accumulated gradient, {precision}"
        if precision not in supported:
            claims.append(skip_claim(claim, f"{device} has no {precision}"))
            continue
        with tf32(allowed=False):
            error = measure_error(precision, device)
        claims.append(make_claim(claim, f"{error:.1e}, goal {ERRORS[precision]:.0e}", error <= ERRORS[precision]))
    if device.type == "cuda":
        with tf32(allowed=True):
            error = measure_error(Precision.FP32, device)
        claims.append(
            make_claim("the same, fp32 with TF32", f"{error:.1e}, goal {TF32_ERROR:.0e}", error <= TF32_ERROR)
        )
    return claims


def main() -> None:
    print_claims(list_claims(create_device_parser(__doc__).parse_args().device))


if __name__ == "__main__":
    main()
