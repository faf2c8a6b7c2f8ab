"""Each step of `make gpu` runs on a CPU at a small size, so that it works on the first GPU that it meets."""

import json
import subprocess
import sys

import pytest

from benchmarks.gpu.bench_gpu import STEPS, find_failed_claims, is_done
from benchmarks.recording import ROOT, describe_commit, describe_machine

QUICK = ("environment", "exactness")


def run_steps(folder, *names):
    """Run steps as `make gpu` does, and return the claims of each."""
    script = str(ROOT / "benchmarks" / "gpu" / "bench_gpu.py")
    options = ["--device", "cpu", "--small", "--results", str(folder), "--only", *names]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text())["figures"] for name in names}


def test_gpu_steps_write_claims_with_verdicts(tmp_path):
    for figures in run_steps(tmp_path, *QUICK).values():
        assert all(
            claim["verdict"] in ("holds", "measured") or claim["verdict"][:7] == "not run"
            for claim in figures["claims"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({step.name for step in STEPS} - {*QUICK}))
def test_gpu_step_runs_on_a_cpu(tmp_path, name):
    figures = run_steps(tmp_path, name)[name]
    assert any(figures.values())


def test_gpu_step_is_done_for_its_commit_machine_and_device_only(tmp_path):
    path = tmp_path / "step.json"
    result = {"commit": describe_commit(), "machine": describe_machine(), "command": "python step.py --device cuda"}
    path.write_text(json.dumps(result))
    assert is_done(path, "cuda")
    assert not is_done(path, "cpu")
    for name in ("commit", "machine"):
        path.write_text(json.dumps(result | {name: "another"}))
        assert not is_done(path, "cuda")


def test_failed_claims_are_listed(tmp_path):
    claims = [{"claim": name, "figure": "1", "verdict": name} for name in ("holds", "**fails**", "measured")]
    (tmp_path / "step.json").write_text(json.dumps({"figures": {"claims": claims}}))
    assert find_failed_claims(tmp_path) == ["**fails**: 1"]
