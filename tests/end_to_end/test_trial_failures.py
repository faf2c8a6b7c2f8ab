"""What goes wrong in a trial, caused for real: it ends with its reason, and the others go on."""

import contextlib
import json
import time

import optuna
import psutil
import pyarrow.parquet as pq
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def run(cli, *arguments, name="faults", timeout=240):
    """The result of a search, and the reason of each trial by what was searched."""
    done = cli.run("faulty.py:Faulty", "--name", name, "--json", *arguments, timeout=timeout)
    assert done.stdout, done.stderr
    storage = JournalStorage(JournalFileBackend(str(cli.folder / "runs" / name / "study.journal")))
    trials = optuna.load_study(study_name=name, storage=storage).trials
    return json.loads(done.stdout), trials, done.stderr


def ended(trials):
    """Outcome and reason of each trial, by its fault and phase."""
    return {
        (trial.user_attrs["config"]["fault"], trial.user_attrs["config"]["phase"]): (
            trial.user_attrs["outcome"],
            trial.user_attrs["reason"],
        )
        for trial in trials
    }


def test_a_python_error_in_any_phase_ends_its_trial_alone(make_cli):
    cli = make_cli()
    phases = ("build", "train_batches", "loss", "evaluate")
    options = ["--trials", "8", "--concurrency", "1", "--scheduler", "none", "--sampler", "random", "--seed", "1"]
    fixed = ["--set", "lr=0.01", "precision=fp32", "epochs=2", "fault=raise", "fault_epoch=1"]
    result, trials, _ = run(cli, *options, *fixed, "--search", f"phase={','.join(phases)},none")
    found = ended(trials)
    assert {phase: found["raise", phase] for phase in phases} == {
        phase: ("failed", f"RuntimeError: broken in {phase}") for phase in phases
    }
    assert found["raise", "none"] == ("completed", "")
    assert result["outcomes"]["completed"] >= 1
    for trial in trials:
        if trial.user_attrs["outcome"] == "failed":
            text = (cli.folder / "runs" / "faults" / "errors" / f"trial-{trial.number}.txt").read_text()
            assert f"in {trial.user_attrs['config']['phase']}" in text


def test_a_worker_that_exits_hangs_or_takes_all_memory_ends_its_trial_within_a_time_limit(make_cli):
    cli = make_cli()
    options = ["--trials", "4", "--concurrency", "2", "--scheduler", "none", "--sampler", "random", "--seed", "15"]
    limits = ["--stall-timeout", "10s", "--max-failures", "1"]
    result, trials, _ = run(
        cli,
        *options,
        *limits,
        "--set",
        "lr=0.01",
        "precision=fp32",
        "epochs=2",
        "fault_epoch=1",
        "--search",
        "fault=exit,hang,memory,none",
    )
    found = {fault: end for (fault, _), end in ended(trials).items()}
    assert set(found) == {"exit", "hang", "memory", "none"}
    assert found["none"] == ("completed", "")
    assert found["exit"][0] == "failed"
    assert "lost 2 times: a process was killed or crashed" in found["exit"][1]
    assert found["hang"][0] == "failed"
    assert found["hang"][1].startswith("stalled: nothing moved for 10 s, at File")
    assert found["hang"][1].endswith("in _in")
    assert found["memory"][0] == "failed"
    assert found["memory"][1].startswith("out of memory: ")
    assert result["outcomes"]["completed"] == [trial.user_attrs["config"]["fault"] for trial in trials].count("none")


def test_a_cold_search_gives_each_trial_a_process_of_its_own_and_says_why(make_cli):
    cli = make_cli()
    options = ["--cold", "--trials", "2", "--concurrency", "1", "--scheduler", "none"]
    result, trials, told = run(cli, *options, "--set", "epochs=2", name="cold")
    assert result["outcomes"] == {"completed": 2}
    processes = [{trial.user_attrs[f"report/{epoch}"]["metrics"]["pid"] for epoch in (1, 2)} for trial in trials]
    assert [len(pids) for pids in processes] == [1, 1]
    assert processes[0] != processes[1]
    assert "trial 1: begins in new workers: 1 trial" in told


def descendants(process, title):
    """The living processes under a search whose name begins with `title`, as Ray names its actors."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and (child.cmdline() or [""])[0].startswith(f"ray::{title}"):
                found.append(child)
    return found


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come within {seconds} s")
        time.sleep(0.1)
    return found


def rows_of(cli, name):
    rows = pq.read_table(cli.folder / "runs" / name / "trials.parquet").to_pylist()
    own = ("pid", "time/", "sys/", "gpu_seconds", "config/pause_s")  # of each run
    return [{key: value for key, value in row.items() if not key.startswith(own)} for row in rows]


BUSY_GANG = "ResourceTrainable.train"  # what Tune makes of the class, while it waits for a report


def test_whoever_of_a_gang_is_killed_its_trial_comes_to_the_result_that_it_would_have_had(make_cli):
    cli = make_cli()
    options = ["--trials", "2", "--concurrency", "2", "--scheduler", "none", "--json", "--set", "epochs=8"]
    command = ["faulty.py:Faulty", *options, "precision=fp32"]
    undisturbed = cli.start(*command, "--name", "undisturbed")
    undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0
    process = cli.start(*command, "pause_s=0.5", "--name", "disturbed")
    journal = cli.folder / "runs" / "disturbed" / "study.journal"
    for title, epoch in (("RayTrainWorker", 2), ("TrainController", 4), (BUSY_GANG, 6)):
        wait_for(lambda e=epoch: journal.exists() and f"report/{e}" in journal.read_text(), 100, f"epoch {epoch}")
        victim = wait_for(lambda t=title: descendants(process, t), 20, title)[0]
        victim.kill()
    out, err = process.communicate(timeout=120)
    assert json.loads(out)["outcomes"] == {"completed": 2}, err
    assert "lost its gang (a process was killed or crashed), and goes on from its last checkpoint" in err
    assert "lost its workers (a process was killed or crashed), and goes on from its last checkpoint" in err
    assert rows_of(cli, "disturbed") == rows_of(cli, "undisturbed")
