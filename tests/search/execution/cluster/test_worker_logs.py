"""What tasks print does not fill the disk."""

import os
import subprocess
import sys

import pytest

SESSION = """
import sys, time
from pathlib import Path
from searchlight.search.execution.cluster.connection import ray_session

with ray_session(Path(sys.argv[1]) / "code"):
    import ray

    @ray.remote
    def shout():
        for _ in range(100):
            print("x" * (2**20 - 1), file=sys.stderr)
            print("x" * (2**20 - 1))

    ray.get(shout.remote())
    time.sleep(3)  # the writers of the logs are threads
    files = {file.resolve() for file in Path(sys.argv[1]).rglob("*/logs/*") if file.is_file()}
    size = sum(file.stat().st_size for file in files)
print(size)
"""


@pytest.mark.slow
def test_prints_of_a_worker_are_kept_up_to_a_limit(short_folder):
    environment = {**os.environ, "RAY_TMPDIR": str(short_folder)}
    command = [sys.executable, "-c", SESSION, str(short_folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert 2**20 < int(done.stdout) < 40 * 2**20, "of 200 MiB"
