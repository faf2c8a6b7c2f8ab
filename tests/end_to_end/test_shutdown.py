"""Nothing is left of a search once it has ended, however it did: looked for on the machine."""

import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager

import psutil
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_reports
from tests.end_to_end.finished_search import FinishedSearch
from tests.end_to_end.processes import Traces, contains, is_running, wait_until

pytestmark = pytest.mark.slow  # whole searches


@pytest.fixture
def start(make_cli, short_folder):
    """Starts a search and waits until it has `begun`; returns it, its command line, and its traces."""

    def start(name, *arguments, begun):
        cli = make_cli()
        cli.has_preflight = cli.has_mlflow = True
        cli.env["RAY_TMPDIR"] = str(short_folder)
        process = cli.start("toy.py:Toy", "--concurrency", "1", "--name", name, "--json", *arguments)
        journal = cli.folder / "runs" / name / "study.journal"
        wait_until(lambda: contains(journal, begun), process)
        return process, cli, Traces(process, short_folder)

    return start


def interrupted(process, number=signal.SIGINT):
    """Return what it printed until its end, after a signal to its process group, such as that of Ctrl-C."""
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert err.splitlines()[-1].startswith("resume: ")
    return json.loads(out)


def test_quiet_training_run_listens_locally_and_leaves_nothing(start):
    process, cli, traces = start(
        "once", "--once", "--quiet", "--workers", "2", "--set", "lr=3e-2", "epochs=3", "pause_s=0.1", begun="report/1"
    )
    assert not traces.find_reachable()
    assert not traces.find_servers()
    done = cli.finished(process)
    assert done.stderr == ""
    found = FinishedSearch(cli, done, "once")
    assert found.json["outcomes"] == {"completed": 1}
    assert found.json["best"]["config"]["lr"] == 3e-2
    assert [row["epoch"] for row in found.rows] == [1, 2, 3]
    traces.check_gone()
    assert not (found.folder / "ray").exists()


def test_ctrl_c_ends_a_search_in_good_order(start):
    process, cli, traces = start("cut", "--trials", "50", "--set", "pause_s=0.5", begun="report/1")
    parquet = cli.folder / "runs" / "cut" / "trials.parquet"
    assert not traces.find_reachable()
    wait_until(parquet.exists, process)  # it follows the first report by some seconds
    assert pq.read_table(parquet)["val/loss"].to_pylist()
    result = interrupted(process)
    assert set(result["outcomes"]) == {"interrupted"}
    client = MlflowClient(result["mlflow"]["tracking_uri"])
    statuses = [run.info.status for run in client.search_runs([result["mlflow"]["experiment_id"]])]
    assert len(statuses) == 1 + result["outcomes"]["interrupted"]
    assert set(statuses) == {"KILLED"}
    traces.check_gone()
    assert not (cli.folder / "runs" / "cut" / "ray").exists()
    page = (cli.folder / "runs" / "cut" / "report.html").read_text()
    assert "No trial has ended yet: this is the best so far." in page


def test_sigterm_to_the_group_ends_a_search_that_starts(start):
    process, _, traces = start("early", "--trials", "2", begun="config")
    assert set(interrupted(process, signal.SIGTERM)["outcomes"]) <= {"interrupted"}, "if a trial had begun"
    traces.check_gone()


def test_sigterm_while_ray_starts_ends_a_search_with_a_summary(make_cli, short_folder):
    cli = make_cli()
    cli.env["RAY_TMPDIR"] = str(short_folder)
    process = cli.start("toy.py:Toy", "--trials", "2", "--name", "young", "--json")
    wait_until(lambda: [*short_folder.glob("searchlight-*/ray/session_*")], process)
    assert set(interrupted(process, signal.SIGTERM)["outcomes"]) <= {"interrupted"}, "if a trial had begun"
    wait_until(lambda: not [*short_folder.iterdir()], seconds=30)


def test_search_without_its_raylet_ends_in_good_order(start):
    process, cli, traces = start("lost", "--trials", "50", "--set", "pause_s=0.5", begun="report/1")
    raylet = next(child for child in psutil.Process(process.pid).children() if child.name() == "raylet")
    raylet.kill()
    done = cli.finished(process)
    assert (done.returncode, done.stdout) == (1, "")
    hint, ending = done.stderr.splitlines()[-2:]
    assert "(raylet)" not in done.stderr, "the search says itself what is lost"
    assert hint.startswith("nothing of search lost is lost. Resume it: ")
    assert hint.endswith("search/run.py --resume lost")
    assert ending == "the search has ended: the raylet of Ray on this machine was killed by SIGKILL."
    client = MlflowClient(f"sqlite:///{cli.folder}/runs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("Toy").experiment_id])
    assert sorted({run.info.status for run in runs}) == ["FAILED", "KILLED"], "the parent, and the trials"
    assert get_reports(load_search(cli.folder / "runs" / "lost").trials[0])
    traces.check_gone()


def test_search_whose_folders_become_immutable_is_resumed_later(start):
    process, cli, traces = start("fixed", "--trials", "1", "--set", "pause_s=0.2", begun="report/1")
    folder = cli.folder / "runs" / "fixed"
    with immutable(folder):
        done = cli.finished(process)
        hint, ending = done.stderr.splitlines()[-2:]
        assert hint.startswith("nothing of search fixed is lost. Resume it: ")
        assert re.fullmatch(
            rf"the search has ended: trial \d: a checkpoint cannot be written: \[Errno 1\] .*'{folder}/.*'\.", ending
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert "Traceback" not in done.stderr
        refused = cli.run("--resume", "fixed")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("--storage must be a folder that can be written to, but [Errno 1] ")
    assert (refused.returncode, refused.stdout) == (2, "")
    traces.check_gone()
    found = FinishedSearch(cli, cli.run("--resume", "fixed", "--json"), "fixed")
    assert found.json["outcomes"] == {"completed": 1}


@pytest.mark.parametrize("end", ["done", "killed"])
def test_process_that_a_trial_leaves_ends_with_the_search(make_cli, short_folder, end):
    cli = make_cli()
    cli.env |= {"RAY_TMPDIR": str(short_folder)}
    file = cli.folder / "left"
    trials = "1" if end == "done" else "50"
    process = cli.start(
        "leaving.py:Leaving", "--no-preflight", "--trials", trials, "--set", f"marker={file}", "epochs=1"
    )
    wait_until(lambda: contains(file, "\n", times=3), process)
    if end == "killed":
        process.kill()
        process.communicate()
    else:
        assert cli.finished(process).returncode == 0
    wait_until(lambda: not any(map(is_running, map(int, file.read_text().split()))), seconds=30)
    wait_until(lambda: not [*short_folder.iterdir()], seconds=30)


@contextmanager
def immutable(folder):
    """Refuse changes of the folders in `folder`, also to root. Files that exist can be written."""
    folders = [str(folder), *(str(path) for path in folder.rglob("*") if path.is_dir())]
    if subprocess.run(["chattr", "+i", *folders], capture_output=True).returncode:
        pytest.skip("no folder can be made immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *(folder for folder in folders if os.path.isdir(folder))], check=True)


SLOW_AGENT = """
import os, sys, time
if "agent.py" in " ".join(sys.orig_argv) and "dashboard" in " ".join(sys.orig_argv):
    try:
        with open(os.environ["FIRST_AGENT"], "x") as file:
            file.write(str(os.getpid()))
        time.sleep(1000)
    except FileExistsError:
        pass
"""


def test_ray_whose_agent_starts_too_slowly_is_started_again(make_cli, short_folder):
    cli = make_cli()
    imported, first = cli.folder / "imported", cli.folder / "first-agent"
    imported.mkdir()
    (imported / "sitecustomize.py").write_text(SLOW_AGENT)  # Python imports it when it starts
    cli.env |= {"RAY_TMPDIR": str(short_folder), "PYTHONPATH": str(imported), "FIRST_AGENT": str(first)}
    found = FinishedSearch.run(cli, "patient", "toy.py:Toy", "--trials", "1", "--set", "epochs=1")
    assert found.json["outcomes"] == {"completed": 1}
    (again,) = [line for line in found.done.stderr.splitlines() if line.startswith("Ray is started again")]
    assert "timed out during startup" in again
    assert not is_running(int(first.read_text()))
    assert not [*short_folder.iterdir()]


def test_ray_that_does_not_start_is_one_clear_line(make_cli, short_folder):
    cli = make_cli()
    # Ray's server refuses such a storage, so that it never tells its port.
    cli.env |= {"RAY_TMPDIR": str(short_folder), "RAY_gcs_storage": "none", "RAY_gcs_server_port_wait_time_s": "1"}
    done = cli.run("toy.py:Toy", "precision=fp32", "--name", "never", "--confirm", "4")
    assert (done.returncode, done.stdout) == (1, "")
    confirmation, starting, again, ending = done.stderr.splitlines()
    assert confirmation.startswith("confirmation: the best trials and the defaults train again under new seeds")
    assert starting == "search never: starting Ray"
    assert again.startswith("Ray is started again, since it did not start: Timed out waiting for file")
    assert ending.startswith("the search has ended: Ray did not start on this machine: Timed out waiting for file")
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(short_folder) in command]
    assert not [*short_folder.iterdir()]
    assert not (cli.folder / "runs" / "never").exists()
