"""The batch script on a real Slurm: stopped by its signal, and submitted again."""

import sys
from pathlib import Path

import pytest

from searchlight.search.errors import UsageError
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_outcome, get_reports
from tests.conftest import ROOT
from tests.end_to_end.processes import wait_until
from tests.servers.slurm import PROGRAMS, Slurm, find_program

EPOCHS = 4
LONGEST_S = 900  # of a wait on a busy machine
TASK = ["toy.py:Toy", "--trials", "6", "--confirm", "0", "--scheduler", "none", "--no-preflight"]


@pytest.fixture
def slurm(short_folder):
    if missing := [name for name in PROGRAMS if find_program(name) is None]:
        pytest.skip(f"there is no {missing[0]} on this machine: apt-get install slurmctld slurmd slurm-client munge")
    cluster = Slurm(short_folder)
    yield cluster
    cluster.stop()


class Jobs:
    """Submits jobs of the script as a user does, from the folder of a task."""

    def __init__(self, slurm, cli):
        self.slurm, self.folder = slurm, cli.folder
        programs = Path(sys.executable).parent
        self.failed = self.folder / "failed"
        path = f"{self._make_ray(programs)}:{programs}:{cli.env['PATH']}"
        self.env = cli.env | {"PYTHONPATH": str(ROOT), "PATH": path}

    def _make_ray(self, programs):
        """Return a folder with a `ray` whose first start on the second node fails, as one on a busy node does."""
        ray = self.folder / "programs" / "ray"
        ray.parent.mkdir()
        fails = f'[ "$1 $SLURM_NODEID" = "start 1" ] && mkdir {self.failed} 2> /dev/null && exit 1'
        ray.write_text(f'#!/bin/sh\n{fails}\nexec {programs}/ray "$@"\n')
        ray.chmod(0o755)
        return ray.parent

    def submit(self, *arguments):
        options = ["--parsable", "--job-name=one", "--cpus-per-task=1", "--time=60"]
        script = str(ROOT / "deploy" / "slurm" / "search.sbatch")
        job = self.slurm.call("sbatch", *options, script, *arguments, cwd=self.folder, env=self.env)
        assert job.isdigit()
        return job

    def read(self, job):
        """Return what a job has printed."""
        file = self.folder / f"one-{job}.out"
        return file.read_text() if file.exists() else ""

    def wait(self, job, state):
        """Return what a job has printed, once it is in `state`."""
        wait_until(lambda: self.slurm.get_state(job) not in ("PENDING", "RUNNING", "COMPLETING"), seconds=LONGEST_S)
        printed = self.read(job)
        assert self.slurm.get_state(job) == state, printed
        return printed

    def count(self, outcome):
        """Return how many trials of the search have an outcome."""
        try:
            record = load_search(self.folder / "runs" / "one")
        except UsageError:  # it has not begun
            return 0
        return sum(get_outcome(trial) == outcome for trial in record.trials)


@pytest.mark.slow
def test_search_of_a_job_stops_at_its_signal_and_continues_in_the_next_job(slurm, make_cli):
    jobs = Jobs(slurm, make_cli("slurm"))
    first = jobs.submit(*TASK, "--set", f"epochs={EPOCHS}", "pause_s=0.3", "precision=fp32")
    wait_until(lambda: jobs.count("completed") >= 2 or slurm.get_state(first) == "FAILED", seconds=LONGEST_S)
    slurm.call("scancel", "--signal=TERM", "--batch", first)
    printed = jobs.wait(first, "COMPLETED")
    assert jobs.failed.exists()
    assert "2 trials at a time, each with 1 worker of 1 CPU" in printed  # one on each node
    assert "To go on, submit this job again with --job-name=one" in printed
    assert jobs.count("interrupted") >= 1

    second = jobs.submit(*TASK, "--set", f"epochs={EPOCHS}")
    printed = jobs.wait(second, "COMPLETED")
    assert "search one continues: " in printed
    trials = load_search(jobs.folder / "runs" / "one").trials
    assert [trial.number for trial in trials] == [*range(6)]
    assert {get_outcome(trial) for trial in trials} == {"completed"}
    assert [[*get_reports(trial)] for trial in trials] == [[*range(1, EPOCHS + 1)]] * 6
    assert not any(Path(f"/tmp/ray-{job}").exists() for job in (first, second))
