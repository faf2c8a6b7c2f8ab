"""A running search is changed by commands of another process, is killed, and is resumed with them."""

import json
import signal

import pytest

from searchlight.search.reporting.running_search import RunningSearch
from searchlight.search.steering.command import Command
from searchlight.search.study.record import load_search
from tests.end_to_end.processes import contains, find_actors, wait_until

pytestmark = pytest.mark.slow


def steer(cli, *arguments):
    """Run a command of searchlight on the search `steered`. Return its exit code and the answer."""
    operation, *others = arguments
    script = cli.folder / "searchlight"
    script.write_text("from searchlight.search.cli import main\nmain()\n")
    done = cli.run(operation, "steered", *others, "--wait", "300", "--json", script=script)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_search_follows_commands_through_a_kill(make_cli):
    cli = make_cli()
    folder = cli.folder / "runs" / "steered"
    # More trials than can end before the last command, however slow this machine is.
    options = ["--trials", "500", "--concurrency", "1", "--set", "pause_s=0.3", "precision=fp32", "--no-preflight"]
    process = cli.start("toy.py:Toy", "--name", "steered", *options)
    wait_until(lambda: contains(folder / "study.journal", "report/1"), process)

    code, answer = steer(cli, "stop", "0", "--why", "too slow")
    assert (code, answer["answer"]["accepted"], answer["revision"]) == (0, True, 1)
    wait_until(lambda: load_search(folder).trials[0].state.is_finished(), process)
    assert load_search(folder).trials[0].user_attrs["reason"].endswith(": too slow")
    assert steer(cli, "try", "lr=0.05", "--full")[0] == 0
    assert steer(cli, "avoid", "lr<0.01")[0] == 0
    assert steer(cli, "avoid", "lr<0.5")[0] == 2, "nothing would be left"
    wait_until(lambda: any(trial.params.get("lr") == 0.05 for trial in load_search(folder).trials), process)
    of_agent = Command("try", {"point": {"lr": 0.07}}, "agent:ann", gpu_hours=1e-4)
    assert RunningSearch(folder).send(of_agent, 300.0).answer.accepted
    reason = "stopped by searchlight: trials of agent:ann have taken their 0.0001 worker-hours"
    wait_until(lambda: any(t.user_attrs.get("reason") == reason for t in load_search(folder).trials), process)
    assert find_actors(process, "RayTrainWorker")
    assert steer(cli, "pause")[0] == 0
    wait_until(lambda: not find_actors(process, "RayTrainWorker"), process)
    assert steer(cli, "continue")[0] == 0
    begun = len(load_search(folder).trials)
    wait_until(lambda: len(load_search(folder).trials) > begun, process)
    assert steer(cli, "pause")[0] == 0

    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = cli.start("--resume", "steered", "--json")
    begun = len(load_search(folder).trials)
    assert steer(cli, "budget", "--trials", str(begun + 2))[0] == 0
    assert steer(cli, "continue")[0] == 0
    done = cli.finished(process)
    assert done.returncode == 0, done.stderr
    assert "the search is paused until: searchlight continue steered" in done.stderr

    record = load_search(folder)
    own = next(trial for trial in record.trials if trial.params["lr"] == 0.05)
    assert len(own.intermediate_values) == 9, "it is kept"
    assert len(record.trials) == begun + 2
    assert all(trial.params["lr"] >= 0.01 for trial in record.trials[begun:])
    assert [entry.command.operation for entry in record.commands] == [
        "stop", "try", "avoid", "avoid", "try", "stop", "pause", "continue", "pause", "budget", "continue",
    ]  # fmt: skip
    assert contains(folder / "report.html", "too slow")
    assert contains(folder / "commands.json", "too slow")
