"""Whole searches whose study is kept in a database, run as a user runs them; and optuna-dashboard over a study."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.samplers import RandomSampler

from search.errors import UsageError
from search.store import open_store
from search.study import create
from tests.search.postgres_server import Server, find_programs
from tests.search.test_store import play


@pytest.fixture(scope="module")
def server():
    programs = find_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL on this machine")
    made = Server(programs)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def cli(make_cli):
    return make_cli()


def test_a_search_in_postgresql(cli, server):
    url = server.database("studies")
    arguments = ["--study", url, "--sampler", "random", "--search", "how=fine,raise,nan", "--set", "pause_s=0.05"]
    first = cli.start("toy.py:Toy", "--name", "kept", "--trials", "8", "--json", *arguments)
    folder = cli.folder / "runs" / "kept"
    try:
        deadline = time.monotonic() + 120
        while not has_begun(server, "kept") and time.monotonic() < deadline and first.poll() is None:
            time.sleep(0.2)
        with pytest.raises(UsageError, match="kept must not be running, but another process has it open"):
            open_store(folder, url)
        second = cli.run("toy.py:Toy", "--name", "kept", "--storage", "elsewhere", *arguments)
        assert second.stderr == f"--name must be new, but kept exists in --study {url}. Choose another.\n"
        assert (second.returncode, (cli.folder / "elsewhere").exists()) == (2, False)
    finally:
        out, errors = first.communicate(timeout=180)
    assert first.returncode == 0, errors
    outcomes = json.loads(out)["outcomes"]
    study = optuna.load_study(study_name="kept", storage=url.replace("postgresql:", "postgresql+psycopg:"))
    in_study = {
        trial.number: "completed" if trial.state.name == "COMPLETE" else trial.user_attrs["outcome"]
        for trial in study.trials
    }
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert {row["trial_id"]: row["outcome"] for row in rows} == in_study
    assert sorted(in_study) == list(range(8))
    assert outcomes == {name: list(in_study.values()).count(name) for name in outcomes}
    assert not (folder / "study.journal").exists()
    listed, report = cli.run("--list"), cli.run("kept", script="search/report.py")
    assert listed.stdout.startswith(f"kept  {', '.join(f'{count} {name}' for name, count in outcomes.items())}  best")
    assert report.stdout.count("failed") == outcomes["failed"], report.stderr


def has_begun(server, name):
    try:
        return server.query("studies", f"SELECT count(*) FROM studies WHERE study_name = '{name}'") > 0
    except LookupError:
        return False


def test_a_search_in_sqlite_can_be_run_again_from_its_yaml(cli):
    done = cli.run("toy.py:Toy", "--name", "first", "--trials", "2", "--study", "sqlite:///studies.db", "--json")
    assert done.returncode == 0, done.stderr
    resolved = cli.folder / "runs" / "first" / "search.yaml"
    assert f"study: sqlite:///{cli.folder}/studies.db\n" in resolved.read_text()
    planned = cli.run("--config", str(resolved), "--name", "second", "--dry-run")
    assert f"study: sqlite:///{cli.folder}/studies.db\n" in planned.stdout
    again = cli.run("--config", str(resolved), "--name", "first", "--storage", "elsewhere", "--dry-run")
    assert (again.returncode, "--name must be new, but first exists in --study sqlite:///" in again.stderr) == (2, True)
    (cli.folder / "studies.db").rename(cli.folder / "moved.db")
    listed = cli.run("--list")
    assert "first  name must be a search that has begun, but first is not in sqlite:///" in listed.stdout


def test_a_password_reaches_no_file_and_no_message(cli):
    url = "postgresql://me:geheim@somewhere/db"
    done = cli.run("toy.py:Toy", "--name", "secret", "--study", url)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "PGPASSWORD or ~/.pgpass" in done.stderr
    assert "geheim" not in done.stdout + done.stderr
    assert not (cli.folder / "runs" / "secret").exists()


@pytest.mark.parametrize("kind", ["journal", "postgresql"])
def test_optuna_dashboard_opens_a_study(tmp_path, kind, request):
    url = request.getfixturevalue("server").database("shown") if kind == "postgresql" else ""
    study, store = create(tmp_path, RandomSampler(seed=0), "val/loss", "min", url)
    play(study)
    store.close()
    storage = url.replace("postgresql:", "postgresql+psycopg:") or str(tmp_path / "study.journal")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("optuna-dashboard"))
    command = [program, storage, "--port", str(port), "--server", "wsgiref", "--quiet"]
    dashboard = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        summary = get(f"http://127.0.0.1:{port}/api/studies", dashboard)["study_summaries"][0]
        shown = get(f"http://127.0.0.1:{port}/api/studies/{summary['study_id']}", dashboard)
    finally:
        dashboard.kill()
        dashboard.wait(timeout=10)
    assert summary["study_name"] == tmp_path.name
    assert [trial["state"] for trial in shown["trials"]] == ["Complete", "Pruned", "Pruned", "Fail", "Running"]
    assert shown["best_trials"][0]["values"] == [0.5]
    assert [step["value"] for step in shown["trials"][1]["intermediate_values"]] == [1.0, 0.5]


def get(url, dashboard):
    """The JSON at `url`, once the dashboard has started."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            assert dashboard.poll() is None, dashboard.stderr.read()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
