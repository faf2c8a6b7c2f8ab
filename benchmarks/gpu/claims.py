"""Claims about a device: a sentence of the pages, the figure that was measured, and whether the figure supports it."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.recording import Row, create_parser, print_progress, print_result

HOLDS, FAILS, MEASURED = "holds", "**fails**", "measured"


def make_claim(claim: str, figure: str, holds: bool | None = None) -> Row:
    """Return the row of a claim. `holds` is None for a figure that no sentence of a page depends on."""
    row = {"claim": claim, "figure": figure, "verdict": {True: HOLDS, False: FAILS, None: MEASURED}[holds]}
    print_progress(f"{row['verdict']}: {claim}: {figure}")
    return row


def skip_claim(claim: str, reason: str) -> Row:
    """Return the row of a claim that this machine cannot test, for example because it has one GPU."""
    return {"claim": claim, "figure": "", "verdict": f"not run: {reason}"}


def create_device_parser(description: str | None) -> argparse.ArgumentParser:
    """Create the parser of a step: on which device, and whether at the size that a CPU can run."""
    parser = create_parser(description)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), help="cuda, cuda:1 or cpu")
    parser.add_argument("--small", action="store_true", help="a size that tests of the step run on a CPU")
    return parser


def print_claims(claims: list[Row], about: str = "") -> None:
    """Print the result of a step."""
    print_result({"claims": claims}, about=about)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work. A CPU works in the calling thread."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products and convolutions, as torch's two settings do."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
