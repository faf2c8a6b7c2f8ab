"""A whole search whose study is kept in a database, run as a user runs it; and optuna-dashboard over a study."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.samplers import RandomSampler

from searchlight.search.errors import UsageError
from searchlight.search.storage.study_store import open_store
from searchlight.search.study.study import create_study
from searchlight.trainables.ports import find_free_ports
from tests.end_to_end.processes import wait_until
from tests.search.objectives import VAL_LOSS
from tests.search.storage.test_study_store import play


@pytest.fixture(scope="module")
def cli(make_cli):
    return make_cli()


@pytest.mark.slow
def test_search_in_postgresql(cli, server):
    url = server.database("studies")
    arguments = ["--study", url, "--sampler", "random", "--search", "how=fine,raise,nan", "--set", "pause_s=0.05"]
    arguments += ["--fidelity", "samples", "--max-fidelity", str(9 * 64)]  # epochs of the task
    first = cli.start("toy.py:Toy", "--name", "kept", "--trials", "5", "--json", *arguments)
    folder = cli.folder / "runs" / "kept"
    try:
        begun = "SELECT count(*) FROM studies WHERE study_name = 'kept'"
        wait_until(lambda: count(server, "studies", begun), first)
        with pytest.raises(UsageError, match="kept must not be running, but another process has it open"):
            open_store(folder, url)
        second = cli.invoke("toy.py:Toy", "--name", "kept", "--storage", "elsewhere", *arguments)
        assert second.stderr == f"--name must be new, but kept exists in --study {url}. Choose another.\n"
        assert (second.returncode, (cli.folder / "elsewhere").exists()) == (2, False)
    finally:
        out, errors = first.communicate(timeout=600)
    assert first.returncode == 0, errors
    outcomes = json.loads(out)["outcomes"]
    study = optuna.load_study(study_name="kept", storage=url.replace("postgresql:", "postgresql+psycopg:"))
    in_study = {
        trial.number: "completed" if trial.state.name == "COMPLETE" else trial.user_attrs["outcome"]
        for trial in study.trials
    }
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert {row["trial_id"]: row["outcome"] for row in rows} == in_study
    spent = {row["samples"] for row in rows if row["outcome"] == "completed"}
    assert max(spent, default=9 * 64) == 9 * 64
    assert sorted(in_study) == list(range(5))
    assert outcomes == {name: list(in_study.values()).count(name) for name in outcomes}
    assert not (folder / "study.journal").exists()
    listed, report = cli.invoke("--list"), cli.invoke("kept", script="search/report.py")
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("kept ")]
    assert line.startswith(f"kept  {', '.join(f'{count} {name}' for name, count in outcomes.items())}  best")
    assert report.stdout.count("failed") == outcomes.get("failed", 0), report.stderr


@pytest.mark.slow
def test_search_waits_for_its_database_to_restart(cli, server):
    url = server.database("restarted")
    process = cli.start(
        "toy.py:Toy", "--study", url, "--name", "patient", "--trials", "2", "--json", "--set", "pause_s=0.3"
    )
    wait_until(lambda: count(server, "restarted", "SELECT count(*) FROM trial_intermediate_values"), process)
    server.stop()
    server.start()
    done = cli.finished(process)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)["outcomes"].values()) == 2
    study = optuna.load_study(study_name="patient", storage=url.replace("postgresql:", "postgresql+psycopg:"))
    assert all(trial.state.is_finished() for trial in study.trials)


def count(server, database, question):
    try:
        return server.query(database, question)
    except LookupError:
        return 0


def test_database_in_the_yaml_of_a_search_is_found_again(cli):
    planned = cli.invoke("toy.py:Toy", "--study", "sqlite:///studies.db", "--dry-run")
    url = f"sqlite:///{cli.folder}/studies.db"
    assert f"study: {url}\n" in planned.stdout
    folder = cli.folder / "runs" / "based"
    folder.mkdir(parents=True)
    (folder / "search.yaml").write_text(planned.stdout)
    study, store = create_study(folder, RandomSampler, [VAL_LOSS], url=url)
    play(study)
    store.close()
    counts = "based  1 completed, 1 pruned, 1 diverged, 1 failed, 1 interrupted  best val/loss 0.5\n"
    assert counts in cli.invoke("--list").stdout
    (listed,) = [each for each in json.loads(cli.invoke("--list", "--json").stdout) if each["name"] == "based"]
    assert sum(listed["outcomes"].values()) == 5
    assert (listed["best"]["metric"], listed["best"]["value"]) == ("val/loss", 0.5)
    assert cli.invoke("based", script="search/report.py").stdout.count(" 0.5 ") == 5
    (cli.folder / "studies.db").rename(cli.folder / "moved.db")
    assert f"based  name must be a search that has begun, but based is not in {url}." in cli.invoke("--list").stdout


@pytest.mark.parametrize("kind", ["journal", "postgresql"])
def test_optuna_dashboard_opens_a_study(tmp_path, kind, request):
    url = request.getfixturevalue("server").database("shown") if kind == "postgresql" else ""
    study, store = create_study(tmp_path, RandomSampler, [VAL_LOSS], url=url)
    play(study)
    store.close()
    storage = url.replace("postgresql:", "postgresql+psycopg:") or str(tmp_path / "study.journal")
    [port] = find_free_ports()
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

    def answers():
        with suppress(urllib.error.URLError):  # nobody listens yet
            return urllib.request.urlopen(url, timeout=10).read()

    return json.loads(wait_until(answers, dashboard))
