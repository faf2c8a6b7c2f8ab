"""Describe the GPU, its driver and the libraries that Searchlight uses on it.

python benchmarks/gpu/environment.py [--device cpu]
"""

import shutil
import sys
from pathlib import Path

import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims, skip_claim
from benchmarks.recording import Row


def describe_driver() -> str:
    """Return the version of the driver and the mode of partitioning (MIG) of each GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        modes = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                mode, _ = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError:  # an older GPU has no such mode
                mode = 0
            modes.append("MIG" if mode else "no MIG")
        return f"driver {pynvml.nvmlSystemGetDriverVersion()}, {', '.join(modes)}"
    finally:
        pynvml.nvmlShutdown()


def list_claims(device: torch.device) -> list[Row]:
    shared = psutil.disk_usage("/dev/shm").total / 2**30 if Path("/dev/shm").exists() else 0.0
    claims = [make_claim("room for the data loaders of trials", f"/dev/shm has {shared:.1f} GiB")]
    if device.type != "cuda":
        return [*claims, skip_claim("torch finds the GPU", f"the device is {device}")]
    name, major_minor = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    total = torch.cuda.get_device_properties(device).total_memory / 2**30
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    ras = "found" if shutil.which("ncclras") else "missing, so that Ray cannot detect hangs of NCCL by it"
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return [
        *claims,
        make_claim("torch finds the GPU", f"{name}, {total:.0f} GiB, capability {major_minor}", True),
        make_claim("the driver fits the build of torch", f"{describe_driver()}, CUDA {torch.version.cuda}", True),
        make_claim("bf16 is native, so that `auto` chooses it", "yes" if bf16 else "no: `auto` is fp16"),
        make_claim("NCCL", f"{nccl}; `ncclras` {ras}"),
        make_claim("GPUs of this machine", str(torch.cuda.device_count())),
    ]


def main() -> None:
    print_claims(list_claims(create_device_parser(__doc__).parse_args().device))


if __name__ == "__main__":
    main()
