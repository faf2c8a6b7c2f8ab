"""A search whose process is killed, and taken up again: Ray, the journal and MLflow are real ones."""

import json
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.study.record import load_search
from tests.conftest import Cli
from tests.end_to_end.processes import contains, is_running, wait_until

pytestmark = pytest.mark.slow


@dataclass
class Killed:
    """A search that was killed while its study grew, and then resumed.

    `result` is what it printed then, `second` what a driver did that was started meanwhile, `started` the processes
    of the one that was killed, and `temporary` the folder of their Rays.
    """

    cli: Cli
    folder: Path
    result: dict
    second: subprocess.CompletedProcess
    started: list[int]
    temporary: Path


def has_open(process, path):
    return str(path) in {file.path for file in psutil.Process(process.pid).open_files()}


@pytest.fixture(scope="module")
def killed(make_cli):
    cli = make_cli()
    cli.has_preflight = cli.has_mlflow = True
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))
    cli.env["RAY_TMPDIR"] = str(temporary)
    folder = cli.folder / "runs" / "mortal"
    journal = folder / "study.journal"
    options = ["--trials", "6", "--seed", "1", "--set", "pause_s=0.05", "--search", "how=fine,calm,nan,raise"]
    options += ["--concurrency", "2"]
    process = cli.start("toy.py:Toy", "--name", "mortal", *options)
    wait_until(lambda: contains(journal, "report/1", times=2), process)
    started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = cli.start("--resume", "mortal", "--json")
    wait_until(lambda: has_open(process, journal), process)
    second = cli.invoke("--resume", "mortal")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    yield Killed(cli, folder, json.loads(out), second, started, temporary)
    shutil.rmtree(temporary)


def test_trial_ends_once_in_study_parquet_and_mlflow(killed):
    folder, result = killed.folder, killed.result
    trials = load_search(folder).trials
    assert [trial.number for trial in trials] == list(range(6))
    in_study = {t.number: t.user_attrs["outcome"] for t in trials if t.state.is_finished()}
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    client = MlflowClient(result["mlflow"]["tracking_uri"])
    runs = client.search_runs([result["mlflow"]["experiment_id"]])
    children = [run for run in runs if "trial_id" in run.data.tags]
    in_mlflow = {int(run.data.tags["trial_id"]): run.data.tags["outcome"] for run in children}
    assert in_study == {row["trial_id"]: row["outcome"] for row in rows} == in_mlflow
    assert len(in_study) == len(children) == 6
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {result["mlflow"]["run_id"]}
    assert len(runs) == 7, "one parent"
    assert {run.info.status for run in runs} <= {"FINISHED", "KILLED", "FAILED"}, "none is left running"
    for run in children:
        number = int(run.data.tags["trial_id"])
        curve = [
            (m.step, m.value) for m in client.get_metric_history(run.info.run_id, "val/loss") if m.value == m.value
        ]
        finite = [(r["epoch"], r["val/loss"]) for r in rows if r["trial_id"] == number and r["outcome"] != "diverged"]
        assert sorted(curve) == [row for row in finite if row[0] is not None], "each report once"


def test_nothing_is_left_of_a_killed_driver(killed):
    wait_until(lambda: not any(map(is_running, killed.started)) and not list(killed.temporary.iterdir()), seconds=30)


def test_best_trial_has_its_checkpoint(killed):
    folder, result = killed.folder, killed.result
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    values = [row["val/loss"] for row in rows if row["outcome"] in ("completed", "pruned")]
    assert result["best"]["value"] == min(values)
    assert json.loads(json.dumps(result["best"]["checkpoint"])) in {str(path) for path in folder.rglob("*.pt")}
    kept = {path.parent.name: [other.name for other in path.parent.glob("*.pt")] for path in folder.rglob("*.pt")}
    assert all(len(names) == 1 for names in kept.values()), "nothing is left of the driver that was killed"
    assert not (folder / "ray").exists()


def test_second_driver_is_refused_in_one_line(killed):
    assert killed.second.returncode == 2
    assert killed.second.stderr.splitlines() == ["mortal must not be running, but another process has it open."]


class SlowMlflow(ThreadingHTTPServer):
    """A tracking server that answers no request until `answers` is set, and then refuses the login."""

    def __init__(self):
        self.answers, self.asked = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), SlowAnswer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_):
        """Print nothing: a client whose time is over reads no answer."""


class SlowAnswer(BaseHTTPRequestHandler):
    def answer(self):
        self.server.asked.set()
        self.server.answers.wait()
        self.send_error(401)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


def test_second_driver_is_refused_while_the_first_sends_to_mlflow(make_cli):
    cli, server = make_cli(), SlowMlflow()
    cli.has_mlflow = True
    cli.env["MLFLOW_TRACKING_URI"] = server.url
    cli.env["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "600"
    page = cli.folder / "runs" / "sending" / "report.html"
    try:
        first = cli.start("toy.py:Toy", "--name", "sending", "--trials", "1", "--set", "epochs=1")
        wait_until(lambda: page.exists() and server.asked.is_set(), first)
        second = cli.run("--resume", "sending")
        assert first.poll() is None, "it still sends"
    finally:
        server.answers.set()
        done = cli.finished(first)
        server.shutdown()
    assert second.stderr.splitlines() == ["sending must not be running, but another process has it open."]
    assert (second.returncode, done.returncode) == (2, 0)
    assert "Nothing is lost: " in done.stderr
