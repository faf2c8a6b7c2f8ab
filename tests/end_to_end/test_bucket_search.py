"""A whole search in a bucket, run as a user runs it, from machines whose disks are gone when it ends or dies."""

import json
import signal
from collections import Counter

import pyarrow.parquet as pq
import pytest
import yaml
from mlflow.tracking import MlflowClient

from searchlight.search.errors import UsageError
from searchlight.search.storage.bucket_journal import BucketJournalBackend, read_records
from searchlight.search.storage.study_store import open_store
from searchlight.search.study.record import load_search
from searchlight.trainables import checkpoint
from searchlight.trainables.filesystem.paths import local_copy, parse_path
from tests.end_to_end.processes import wait_until

SECRET = "not-to-be-seen-anywhere"


@pytest.fixture
def machine(make_cli, s3, tmp_path):
    """Makes a command line on a machine of its own: with no file of another one, and a folder for temporary files."""

    def make(name):
        cli = make_cli(name)
        cli.has_mlflow = True
        cli.env |= {"TMPDIR": str(cli.folder / "tmp"), "AWS_SECRET_ACCESS_KEY": SECRET}
        cli.env |= {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
        (cli.folder / "tmp").mkdir()
        return cli

    return make


def left_on(cli):
    return [path for path in (cli.folder / "tmp").iterdir() if path.name.startswith("searchlight")]


@pytest.mark.slow
def test_search_in_a_bucket_continues_from_another_machine(machine, s3, tmp_path):
    storage = f"{s3}/searches"
    where = parse_path(storage) / "far"
    first, second = machine("first"), machine("second")
    first.has_preflight = True
    options = ["--trials", "4", "--seed", "1", "--set", "pause_s=0.05", "--search", "how=fine,raise"]
    driver = first.start("toy.py:Toy", "--name", "far", "--storage", storage, *options)
    try:
        wait_until(lambda: BucketJournalBackend(where).exists(), driver)
        # While its first gangs start, and not by a command that starts for as long as the whole search takes.
        with pytest.raises(UsageError, match=r"^far must not be running, but another process has it open\. It is"):
            open_store(where)
        wait_until(lambda: sum(b"report/" in record for record in read_records(where)) >= 3, driver)
    finally:
        driver.send_signal(signal.SIGKILL)
    told = [*driver.communicate()]
    before = load_search(where).trials
    assert left_on(first), "what was killed can remove nothing"
    (first.folder / "toy.py").unlink()  # the machine is gone: the bucket has the task

    done = second.run("--resume", "far", "--storage", storage, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    trials = load_search(where).trials
    in_study = {trial.number: trial.user_attrs["outcome"] for trial in trials}
    assert sorted(in_study) == [*range(4)]
    for trial in before:
        known = {key: value for key, value in trial.user_attrs.items() if key.startswith("report/")}
        assert known.items() <= trials[trial.number].user_attrs.items(), "no report is lost"
    with local_copy(where / "trials.parquet") as file:
        rows = pq.read_table(file).to_pylist()
    client = MlflowClient(first.env["MLFLOW_TRACKING_URI"])
    runs = client.search_runs([result["mlflow"]["experiment_id"]], "tags.trial_id LIKE '%'")
    in_mlflow = {int(run.data.tags["trial_id"]): run.data.tags["outcome"] for run in runs}
    assert in_study == {row["trial_id"]: row["outcome"] for row in rows} == in_mlflow
    assert result["outcomes"] == Counter(in_study.values())
    artifacts = {each.path for each in client.list_artifacts(result["mlflow"]["run_id"])}
    assert {"report.html", "trials.parquet", "search.yaml", "code"} <= artifacts

    best = result["best"]["checkpoint"]
    assert best.startswith(f"{storage}/far/checkpoints/")
    assert checkpoint.load(parse_path(best))["epoch"] >= 1
    kept = [name.partition("/")[0] for name in (where / "checkpoints").list_files() if name.endswith(".pt")]
    assert len(kept) == len({*kept}), "the best of each trial alone"
    names = {each.name for each in where.iterdir()}
    expected = {"checkpoints", "code", "study", "search.yaml", "trials.parquet", "report.html", "environment.json"}
    expected |= {"preflight.json", "best.yaml", "driver.json"}
    assert names == expected | {"requirements.txt"} | ({"errors"} if "failed" in result["outcomes"] else set())
    assert yaml.safe_load((where / "search.yaml").read_text())["task"] == f"{first.folder}/toy.py:Toy"
    assert not (second.folder / "runs").exists()
    assert not left_on(second)

    listed = second.invoke("--list", "--storage", storage)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in result["outcomes"].items())
    assert listed.stdout.startswith(f"far  {counts}  best val/loss ")
    replayed = first.run("far", "--storage", storage, "--replay", script="search/report.py")
    assert "had all trials" in replayed.stdout, replayed.stderr
    assert not left_on(first), "the next one removes what a driver that was killed left"
    for each in (done, listed, replayed):
        told += [each.stdout, each.stderr]
    assert not any(SECRET in text for text in told)
    assert not any("searchlight-of" in text for text in told), "the folder of the driver is nobody's concern"
    assert not any(SECRET.encode() in (parse_path(s3) / name).read_bytes() for name in parse_path(s3).list_files())
    assert SECRET.encode() not in (tmp_path / "mlflow.db").read_bytes()


@pytest.mark.slow
def test_search_in_a_bucket_is_steered_from_another_machine(machine, s3):
    storage = f"{s3}/searches"
    where = parse_path(storage) / "far"
    cluster, laptop = machine("cluster"), machine("laptop")
    (laptop.folder / "toy.py").unlink()
    (laptop.folder / "searchlight").write_text("from searchlight.search.cli import main\nmain()\n")

    def ask(operation, *arguments):
        """Run a command on the laptop, and return its exit code and what it printed as JSON."""
        wait = [] if operation in ("status", "log") else ["--wait", "300"]
        options = ["--storage", storage, "--json", *wait]
        done = laptop.run(operation, "far", *arguments, *options, script=laptop.folder / "searchlight")
        assert done.stdout, done.stderr
        assert not any(SECRET in text for text in (done.stdout, done.stderr))
        return done.returncode, json.loads(done.stdout)

    options = ["--trials", "500", "--concurrency", "1", "--no-preflight", "--set", "pause_s=0.3", "precision=fp32"]
    driver = cluster.start("toy.py:Toy", "--name", "far", "--storage", storage, *options)
    try:
        wait_until(lambda: BucketJournalBackend(where).exists(), driver)
        wait_until(lambda: any(b"report/" in record for record in read_records(where)), driver)
        assert ask("stop", "0", "--why", "too slow")[0] == 0
        assert ask("try", "lr=0.05", "--full")[0] == 0
        assert ask("avoid", "lr<0.5")[0] == 2, "nothing would be left"
        wait_until(lambda: any(trial.params.get("lr") == 0.05 for trial in load_search(where).trials), driver)
        assert ask("pause", "--why", "lunch")[0] == 0

        def read_paused():
            state = ask("status")[1]
            return state if not any(trial["trains"] in (True, None) for trial in state["unfinished"]) else None

        state = wait_until(read_paused, driver)
        assert (state["running"], state["paused"], state["budget"]["trials"]["limit"]) == (True, True, 500)
        assert "lunch" in state["waiting"][0]
        begun = len(load_search(where).trials)
        assert ask("budget", "--trials", str(begun + 1))[0] == 0
        assert ask("continue")[0] == 0
        told = driver.communicate(timeout=300)[1]
    finally:
        driver.kill()
    assert driver.returncode == 0, told
    record = load_search(where)
    assert len(record.trials) == begun + 1
    assert record.trials[0].user_attrs["reason"].endswith(": too slow")
    assert next(trial for trial in record.trials if trial.params["lr"] == 0.05).intermediate_values.keys() >= {9}
    operations = [each["command"]["operation"] for each in ask("log")[1]["commands"]]
    assert operations == ["stop", "try", "avoid", "pause", "budget", "continue"]
    assert not (laptop.folder / "runs").exists()
    assert not left_on(laptop)
    with local_copy(where / "report.html") as page:
        assert "too slow" in page.read_text()
