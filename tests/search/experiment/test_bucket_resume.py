import os
import sys
import tempfile
from contextlib import nullcontext

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from searchlight.search.config import load_config
from searchlight.search.config.loading import to_yaml
from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster import connection
from searchlight.search.experiment import plan, ray_run, runner
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.experiment.task_files import prepare_task_files
from searchlight.search.folder.locations import local_path_of
from searchlight.search.folder.uploader import Uploader
from searchlight.search.folder.working_copy import downloaded_copy, working_copy
from searchlight.search.report import main as report
from searchlight.search.run import main as run
from searchlight.search.storage import lease
from searchlight.search.storage.bucket_journal import BucketJournal
from searchlight.search.study.record import load_search
from searchlight.trainables.filesystem.paths import local_copy, parse_path
from tests.end_to_end.test_driver_crash import LR, TASKS, drive
from tests.search.experiment.dying_drivers import Killed, check_deaths, kill_at_call
from tests.search.experiment.test_task_files import PREPARES


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    for name, seconds in {"CLAIM_S": 0.05, "RENEW_S": 0.1, "LEASE_S": 0.5, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(lease, name, seconds)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture
def storage(s3):
    return f"{s3}/searches"


def config_of(storage, **given):
    options = {"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": storage, "trials": "5", "confirm": 0}
    return load_config({**options, **given})


def begun(storage, **given):
    planned = plan(config_of(storage, **LR, **given))
    planned.config.local_path.mkdir(parents=True)
    uploader = Uploader(planned.config.local_path, planned.config.path)
    return planned, create_search(planned, uploader.copy)


def die(journal):
    journal._lease._over.set()
    journal._lease._thread.join()
    raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_search_in_a_bucket_that_dies_resumes_as_if_it_had_not(s3, monkeypatch, written):
    def resume(planned, dying, trained):
        with downloaded_copy(planned.config.path):
            planned, again = open_search(planned.config.path, {})
            drive(planned, again, trained)
        for trial in load_search(planned.config.path).trials:
            kept = {path.name for path in (planned.config.path / "checkpoints" / str(trial.number)).glob("*.pt")}
            assert len(kept) <= 1, "of each trial the best alone is kept, of all its drivers"
        return again.study

    def kill_at(patch, moment):
        return kill_at_call(patch, BucketJournal, "_put", moment, written, die)

    check_deaths(monkeypatch, lambda name: begun(f"{s3}/{name}"), kill_at, resume, step=13)


def test_search_yaml_is_in_the_bucket_before_the_study(storage, monkeypatch):
    seen = []
    put = BucketJournal._put

    def look(self):
        seen.append({path.name for path in (parse_path(storage) / "one").iterdir()})
        put(self)

    monkeypatch.setattr(BucketJournal, "_put", look)
    planned, held = begun(storage)
    held.store.close()
    assert {"search.yaml", "study.lock"} <= seen[0]
    kept = yaml.safe_load((planned.config.path / "search.yaml").read_text())
    assert kept["storage"] == storage
    assert load_config(yaml.safe_load(to_yaml(planned.config)) | {"name": "two"}).path == parse_path(storage) / "two"


def test_prepared_files_are_made_once_and_lie_in_the_bucket(storage, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "words", raising=False)
    (tmp_path / "words.py").write_text(PREPARES)
    planned = plan(config_of(storage, task=f"{tmp_path}/words.py:Words", trials=1))
    with working_copy(planned.config.path) as folder:
        uploader = Uploader(folder, planned.config.path)
        files = prepare_task_files(planned.config, planned.source.task_class, planned.space)
        uploader.copy()
    assert (files / "words.txt").read_text() == "one"
    assert str(files) == f"{storage}/one/files"
    (planned.config.path / "errors" / "trial-0.txt").write_text("")
    (planned.config.path / "errors" / "trial-0.txt").unlink()  # which leaves an empty folder there
    with downloaded_copy(planned.config.path) as folder, monkeypatch.context() as patch:
        patch.setattr(planned.source.task_class, "prepare", None)
        assert prepare_task_files(planned.config, planned.source.task_class, planned.space) == files
        assert not (folder / "files").exists(), "the driver needs none of it"


def test_search_that_could_not_begin_leaves_its_name_free(storage, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(BucketJournal, "_put", lambda self: die(self))
        with pytest.raises(Killed):
            begun(storage)
    assert not (parse_path(storage) / "one").exists()


def test_driver_that_fails_keeps_its_lease_until_its_files_are_in_the_bucket(storage, monkeypatch):
    place, held = parse_path(storage) / "one", []
    try_copy = Uploader._try_copy

    def look(self, then):
        held.append((place / "study.lock").exists())
        try_copy(self, then)

    def fail(services, planned, *_):
        (planned.config.local_path / "report.html").write_text("of the first driver")
        raise RuntimeError("a fault of the driver")

    monkeypatch.setattr(Uploader, "_try_copy", look)
    monkeypatch.setattr(connection, "ray_session", lambda code: nullcontext())
    monkeypatch.setattr(ray_run, "inspect_cluster", lambda planned, *_: (planned, None))
    monkeypatch.setattr(ray_run, "run_on_ray", fail)
    with pytest.raises(RuntimeError, match="a fault of the driver"):
        runner.run(config_of(storage, **LR))
    assert held == [True]
    assert (place / "report.html").read_text() == "of the first driver"
    assert not (place / "study.lock").exists(), "a resume begins at once"


def test_search_in_a_bucket_is_listed_reported_and_reused(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planned, held = begun(storage)
    drive(planned, held, [])
    known = load_search(planned.config.path)
    listed = CliRunner().invoke(run, ["--list", "--storage", storage])
    assert listed.stdout.startswith("one  1 completed, "), listed.output
    reported = CliRunner().invoke(report, ["one", "--storage", storage])
    assert f"page: {storage}/one/report.html" in reported.output
    with local_copy(planned.config.path / "trials.parquet") as file:
        rows = pq.read_table(file).to_pylist()
    assert {row["trial_id"] for row in rows} == {trial.number for trial in known.trials}
    assert str(local_path_of(planned.config.path)) not in (planned.config.path / "report.html").read_text()
    warm = plan(config_of(storage, **LR).model_copy(update={"name": "two", "warm_start": [f"{storage}/one"]})).warm
    assert len(warm.trials) == len(known.trials)
    assert config_of(storage, warm_start=["one"]).warm_start == [f"{storage}/one"]
    with pytest.raises(UsageError, match=r"^--warm-start must name an earlier search, but .* no credentials") as told_:
        config_of(storage, warm_start=["s3://me:geheim@bucket/one"])
    assert "geheim" not in str(told_.value)
    with pytest.raises(UsageError, match=r"there is no s3://.*/searches/on\. Did you mean 'one'"):
        plan(config_of(storage, **LR).model_copy(update={"name": "two", "warm_start": [f"{storage}/on"]}))


@pytest.mark.parametrize(
    ("place", "refusal"),
    [
        ("s3://no-such-bucket/runs", r"in a bucket that exists, but there is none at s3://no-such-bucket/runs\."),
        ("s3://me:geheim@bucket/runs", r"a folder or a bucket, but a URI must have no credentials in it, .*"),
        ("ftp://host/runs", r"a folder or a bucket, but a place must be .* ftp://\."),
    ],
)
def test_unusable_bucket_is_refused(s3, place, refusal):
    with pytest.raises(UsageError, match=f"^--storage must be {refusal}$") as caught:
        plan(config_of(place))
    assert "geheim" not in str(caught.value)


def test_absent_endpoint_is_refused_without_credentials(monkeypatch, s3):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    away = "s3://bucket/searches?scheme=http"
    with pytest.raises(UsageError, match=r"^--storage must be a bucket that can be written to, but s3://") as refused:
        plan(config_of(away))
    assert "\n" not in str(refused.value)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)
    listed = CliRunner().invoke(run, ["--list", "--storage", away])
    assert listed.exit_code == 2
    assert listed.output.startswith("--storage must be a place that can be read, but s3://bucket/searches?")


def test_mlflow_needs_a_store_of_its_own_beside_a_bucket(storage, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(UsageError, match=r"^MLFLOW_TRACKING_URI must name a server or a database with --storage s3://"):
        plan(config_of(storage))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg://somewhere/mlflow")
    monkeypatch.setattr("searchlight.search.tracking.uri.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"MLflow must have boto3 to write artifacts to s3://.* pip install boto3$"):
        plan(config_of(storage))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert plan(config_of(storage)).config.path == parse_path(storage) / "one"
