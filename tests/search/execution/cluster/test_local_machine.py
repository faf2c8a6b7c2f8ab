"""Count the GPUs of a machine, and import torch only where there may be some."""

import subprocess
import sys

import pytest
import torch

CODE = """
import sys
from searchlight.search.execution.cluster import local_machine
local_machine.GPUS = (sys.argv[1],)
print(local_machine.count_gpus(), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("device", "expected"), [("no-such-device*", "0 False"), ("nul*", f"{torch.cuda.device_count()} True")]
)
def test_torch_is_imported_to_count_gpus_if_a_device_may_be_one(device, expected):
    done = subprocess.run([sys.executable, "-c", CODE, device], capture_output=True, text=True)
    assert done.stdout.strip() == expected, done.stderr
