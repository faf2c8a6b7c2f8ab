"""Each step of `make gpu` runs on a CPU at a small size, so that it works on the first GPU that it meets."""

import json
import subprocess
import sys

import pytest

from benchmarks.gpu.bench_gpu import STEPS, find_failed_claims, is_done, main
from benchmarks.recording import ROOT, describe_commit, describe_machine

QUICK = ("environment", "exactness")
ELSEWHERE = ("update_overhead",)  # in test_benchmarks.py


def list_options(folder, *names):
    return ["--device", "cpu", "--small", "--results", str(folder), "--only", *names]


def read_figures(folder, name):
    return json.loads((folder / f"{name}.json").read_text())["figures"]


def test_gpu_steps_write_claims_with_verdicts(tmp_path):
    script = str(ROOT / "benchmarks" / "gpu" / "bench_gpu.py")
    done = subprocess.run([sys.executable, script, *list_options(tmp_path, *QUICK)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in QUICK:
        assert all(
            claim["verdict"] in ("holds", "measured") or claim["verdict"][:7] == "not run"
            for claim in read_figures(tmp_path, name)["claims"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({step.name for step in STEPS} - {*QUICK, *ELSEWHERE}))
def test_gpu_step_runs_on_a_cpu(tmp_path, name, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", *list_options(tmp_path, name)])
    with pytest.raises(SystemExit) as ended:  # without the seconds in which a script imports torch
        main()
    assert ended.value.code == 0
    assert any(read_figures(tmp_path, name).values())


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
