"""What goes wrong in a trial, caused for real: it ends with its reason, and the others go on."""

import importlib
import re
from itertools import combinations

import pytest

from searchlight.trainables.training.trainer import train
from tests.conftest import TASKS
from tests.end_to_end.finished_search import FinishedSearch
from tests.end_to_end.processes import contains, find_actors, wait_until


@pytest.mark.slow
def test_worker_that_exits_hangs_or_takes_all_memory_fails(make_cli):
    options = ["--scheduler", "none", "--trials", "4", "--concurrency", "2", "--sampler", "random", "--seed", "15"]
    limits = ["--stall-timeout", "10s", "--max-failures", "1"]
    fixed = ["--set", "lr=0.01", "precision=fp32", "epochs=2"]
    space = ["--search", "fault=exit,hang,memory,none"]
    found = FinishedSearch.run(make_cli(), "faults", "faulty.py:Faulty", *options, *limits, *fixed, *space)
    ended = {t.user_attrs["config"]["fault"]: found.trials_ended()[t.number] for t in found.study.trials}
    outcomes = {fault: outcome for fault, (outcome, _) in ended.items()}
    assert outcomes == {"exit": "failed", "hang": "failed", "memory": "infeasible", "none": "completed"}
    assert "lost 2 times: a process was killed or crashed" in ended["exit"][1]
    assert ended["hang"][1].startswith("stalled: no progress for 10 s, at faulty.py, line ")
    assert ended["hang"][1].endswith("in _fail")
    assert ended["memory"][1].startswith("out of memory: ")


@pytest.mark.slow
def test_error_of_cuda_is_located_and_spoils_no_other_trial(make_cli):
    options = ["--scheduler", "none", "--trials", "3", "--concurrency", "1", "--set", "epochs=2"]
    points = ["fault=none,lr=0.01", "fault=assert,lr=0.02", "fault=none,lr=0.03"]
    tries = [word for point in points for word in ("--try", point)]
    space = ["--search", "fault=assert,none", "--search", "lr=0.01..0.1"]
    found = FinishedSearch.run(make_cli(), "asserted", "faulty.py:Faulty", *options, *space, *tries)
    (first, _), (outcome, reason), (last, _) = found.trials_ended().values()
    assert (first, outcome, last) == ("completed", "failed", "completed"), found.done.stderr
    assert reason.startswith("AcceleratorError: CUDA error: device-side assert triggered, at faulty.py, line ")
    assert ", in _fail\n" in (found.folder / "errors" / "trial-1.txt").read_text(), "without the variable: in evaluate"
    assert "trial 1: begins in new workers: AcceleratorError: CUDA error: device-side assert" in found.done.stderr
    assert "trial 2: begins in new workers: an error of CUDA ended the trial before" in found.done.stderr


@pytest.mark.slow
def test_trial_of_a_stopped_worker_continues_in_a_new_one(make_cli):
    cli = make_cli()
    options = ["--trials", "1", "--stall-timeout", "10s", "--name", "stopped", "--json"]
    process = cli.start("toy.py:Toy", *options, "--set", "epochs=3", "pause_s=0.5")
    wait_until(lambda: contains(cli.folder / "runs" / "stopped" / "study.journal", "report/1"), process)
    (worker,) = find_actors(process, "RayTrainWorker")
    worker.suspend()
    found = FinishedSearch(cli, cli.finished(process), "stopped")
    told = found.done.stderr
    assert found.json["outcomes"] == {"completed": 1}, told
    assert "trial 0: its workers are ended: one has not answered for " in told
    assert re.search(r"trial 0: lost its workers \(.*\), and continues from its last checkpoint", told)
    assert found.epochs() == {0: [1, 2, 3]}
    assert not worker.is_running()


BUSY_GANG = "ResourceTrainable.train"  # what Tune makes of the class, while it waits for a report


@pytest.mark.slow
def test_trials_of_killed_gangs_have_the_curves_of_undisturbed_ones(make_cli, monkeypatch):
    """Each begins in new workers, too, and equals a training in this process."""
    cli = make_cli()
    options = ["--scheduler", "none", "--trials", "4", "--concurrency", "2", "--recycle-after", "1"]
    values = ["epochs=8", "precision=fp32", "pause_s=0.5"]
    process = cli.start("faulty.py:Faulty", *options, "--name", "disturbed", "--json", "--set", *values)
    journal = cli.folder / "runs" / "disturbed" / "study.journal"
    for title, epoch, trials in (("RayTrainWorker", 2, 1), (BUSY_GANG, 4, 2)):  # the second one once new workers report
        wait_until(lambda e=epoch, n=trials: contains(journal, f"report/{e}", times=n), process)
        wait_until(lambda t=title: find_actors(process, t), process)[0].kill()
    disturbed = FinishedSearch(cli, cli.finished(process), "disturbed")
    told = disturbed.done.stderr
    assert disturbed.json["outcomes"] == {"completed": 4}, told
    assert "lost its gang (a process was killed or crashed), and continues from its last checkpoint" in told
    assert "lost its workers (a process was killed or crashed), and continues from its last checkpoint" in told
    # The second kill may hit trial 2 before it begins, but not trial 3 as well.
    assert re.search("trial [23]: begins in new workers: 1 trial", told), told
    pids = [{row["pid"] for row in disturbed.rows if row["trial_id"] == number} for number in range(4)]
    assert not any(first & second for first, second in combinations(pids, 2))
    monkeypatch.syspath_prepend(TASKS)
    module = importlib.import_module("faulty")
    for trial in disturbed.study.trials:
        config = module.FaultyConfig(**{**trial.user_attrs["config"], "pause_s": 0.0})
        alone = [(report["val/loss"], report["train/loss"]) for report in train(module.Faulty(config))]
        rows = [row for row in disturbed.rows if row["trial_id"] == trial.number]
        assert [(row["val/loss"], row["train/loss"]) for row in rows] == alone
