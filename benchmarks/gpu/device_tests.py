"""Run the tests of updates, training and precision on the device.

python benchmarks/gpu/device_tests.py [--device cpu]
"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.gpu.claims import create_device_parser, make_claim, print_claims
from benchmarks.recording import ROOT, print_progress

FOLDERS = {"update": "tests/trainables/update", "training": "tests/trainables/training"}
FILES = {"precision": "tests/trainables/test_precision.py"}


def main() -> None:
    given = create_device_parser(__doc__).parse_args()
    claims = []
    for name, path in (FILES if given.small else FOLDERS | FILES).items():
        command = [sys.executable, "-m", "pytest", "-rfE", "-m", "not slow", "--device", str(given.device), path]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        last = (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1].strip("= ")
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode:
            print_progress((done.stdout + done.stderr)[-4000:])
        claims.append(
            make_claim(f"the tests of {name} pass on the device", "; ".join([last, *failed]), done.returncode == 0)
        )
    print_claims(claims)


if __name__ == "__main__":
    main()
