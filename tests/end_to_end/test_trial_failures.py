"""What goes wrong in a trial, caused for real: it ends with its reason, and the others go on."""

import pytest

from tests.end_to_end.finished_search import FinishedSearch
from tests.end_to_end.processes import contains, find_actors, wait_until


def run_search(cli, *arguments, name="faults"):
    return FinishedSearch.run(cli, name, "faulty.py:Faulty", "--scheduler", "none", *arguments)


@pytest.mark.slow
def test_worker_that_exits_hangs_or_takes_all_memory_fails(make_cli):
    options = ["--trials", "4", "--concurrency", "2", "--sampler", "random", "--seed", "15"]
    limits = ["--stall-timeout", "10s", "--max-failures", "1"]
    fixed = ["--set", "lr=0.01", "precision=fp32", "epochs=2"]
    found = run_search(make_cli(), *options, *limits, *fixed, "--search", "fault=exit,hang,memory,none")
    ended = {t.user_attrs["config"]["fault"]: found.trials_ended()[t.number] for t in found.study.trials}
    outcomes = {fault: outcome for fault, (outcome, _) in ended.items()}
    assert outcomes == {"exit": "failed", "hang": "failed", "memory": "failed", "none": "completed"}
    assert "lost 2 times: a process was killed or crashed" in ended["exit"][1]
    assert ended["hang"][1].startswith("stalled: no progress for 10 s, at faulty.py, line ")
    assert ended["hang"][1].endswith("in _fail")
    assert ended["memory"][1].startswith("out of memory: ")


def rows_of(search):
    own = ("pid", "time/", "sys/", "gpu_seconds", "config/pause_s")  # of each run
    return [{key: value for key, value in row.items() if not key.startswith(own)} for row in search.rows]


BUSY_GANG = "ResourceTrainable.train"  # what Tune makes of the class, while it waits for a report


@pytest.mark.slow
def test_same_seed_gives_the_same_result_despite_killed_gangs(make_cli):
    """The first search has a process for each trial; the second one starts from its YAML, with two trials at a time."""
    cli = make_cli()
    options = ["--trials", "2", "--concurrency", "1", "--cold", "--set", "epochs=8", "precision=fp32"]
    undisturbed = run_search(cli, *options, name="undisturbed")
    first, second = ({row["pid"] for row in undisturbed.rows if row["trial_id"] == number} for number in (0, 1))
    assert (len(first), len(second), first & second) == (1, 1, set())
    assert "trial 1: begins in new workers: 1 trial" in undisturbed.done.stderr
    command = ["--config", str(undisturbed.folder / "search.yaml"), "--concurrency", "2", "pause_s=0.5"]
    process = cli.start(*command, "--name", "disturbed", "--json")
    journal = cli.folder / "runs" / "disturbed" / "study.journal"
    for title, epoch, trials in (("RayTrainWorker", 2, 1), (BUSY_GANG, 4, 2)):  # the second one once new workers report
        wait_until(lambda e=epoch, n=trials: contains(journal, f"report/{e}", times=n), process)
        wait_until(lambda t=title: find_actors(process, t), process)[0].kill()
    disturbed = FinishedSearch(cli, cli.finished(process), "disturbed")
    told = disturbed.done.stderr
    assert disturbed.json["outcomes"] == {"completed": 2}, told
    assert "lost its gang (a process was killed or crashed), and continues from its last checkpoint" in told
    assert "lost its workers (a process was killed or crashed), and continues from its last checkpoint" in told
    assert rows_of(disturbed) == rows_of(undisturbed)
