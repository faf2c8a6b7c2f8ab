import os
import subprocess
import sys

import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.config import load_config
from searchlight.search.experiment import plan
from searchlight.search.tracking.mlflow_database import create_database
from searchlight.search.tracking.uri import (
    check_tracking,
    move_credentials_to_environment,
    redact,
    resolve_tracking_uri,
)
from tests.end_to_end.processes import wait_until
from tests.search.refusals import problems_of

URI = "MLFLOW_TRACKING_URI"


def config(tmp_path, **given):
    return load_config({"task": "arc", "storage": str(tmp_path), **given})


def test_uri_of_the_search_goes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, beside = config(tmp_path), tmp_path / "mlartifacts"
    assert resolve_tracking_uri(settings, {}) == (f"sqlite:///{tmp_path}/mlflow.db", beside)
    assert resolve_tracking_uri(settings, {URI: "http://host:5000"}) == ("http://host:5000", None)
    database = "postgresql+psycopg://host/runs"
    assert resolve_tracking_uri(settings, {URI: database}) == (database, beside)
    assert resolve_tracking_uri(settings, {URI: "sqlite:///runs.db"})[0] == f"sqlite:///{tmp_path}/runs.db"
    settings = config(tmp_path, tracking_uri="http://one:5000")
    assert resolve_tracking_uri(settings, {URI: "http://other:5000"})[0] == "http://one:5000"


@pytest.mark.parametrize(
    "uri",
    [
        "http://host:5000",
        "https://user:password@host/mlflow",
        "postgresql+psycopg://user:password@host/runs",
        "databricks",
        "databricks://profile",
        "sqlite:///runs.db",
    ],
)
def test_uri_that_may_work_is_accepted_unasked(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    check_tracking(config(tmp_path), {URI: uri})
    assert list(tmp_path.iterdir()) == []


RULE = "must be a server, http://host:port, or a database, sqlite:///path.db or postgresql+psycopg://host/database"
FOLDERS = "MLflow no longer keeps runs in plain folders."


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("ftp://host/runs", f"{RULE}, but got 'ftp://host/runs'."),
        ("./mlruns", f"{RULE}, but got './mlruns'. {FOLDERS}"),
        ("file:///mlruns", f"{RULE}, but got 'file:///mlruns'. {FOLDERS}"),
        ("file:mlruns", f"{RULE}, but got 'file:mlruns'. {FOLDERS}"),
        ("localhost:5000", f"{RULE}, but got 'localhost:5000'."),
        ("http://", "must name a host, but got 'http://'. Use http://host:5000."),
        ("sqlite://", "must name a file, as sqlite:///path.db does, but got 'sqlite://'."),
        ("sqlite:////nowhere/runs.db",
         "must be a file that can be written, in a folder that exists, but got 'sqlite:////nowhere/runs.db'."),
        ("postgresql+none://user:secret@host/runs",
         "must have a driver that is installed, but got 'postgresql+none://user@host/runs': "
         "Can't load plugin: sqlalchemy.dialects:postgresql.none."),
    ],
)  # fmt: skip
def test_uri_that_cannot_work_is_refused(tmp_path, monkeypatch, uri, told):
    assert problems_of(check_tracking, config(tmp_path), {URI: uri}) == [f"{URI} {told}"]
    monkeypatch.setenv(URI, uri)
    assert problems_of(plan, config(tmp_path, name="one")) == [f"{URI} {told}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("http://user:secret@host", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ("postgresql+psycopg://user:secret@host/runs", "PGPASSWORD"),
    ],
)
def test_password_in_a_config_is_refused_and_not_shown(tmp_path, uri, kept):
    assert problems_of(check_tracking, config(tmp_path, tracking_uri=uri), {}) == [
        f"tracking_uri must be without a password, but has one, and would be kept in search.yaml. Put it into {kept}."
    ]


def test_uri_is_shown_without_a_password():
    assert redact("http://user:secret@host:5000/path") == "http://host:5000/path"
    assert redact("http://token@host:5000") == "http://host:5000"
    assert redact("postgresql://user:secret@host/runs") == "postgresql://user@host/runs"
    assert redact("postgresql://user@host/runs") == "postgresql://user@host/runs"
    assert redact("sqlite:////a@b/runs.db") == "sqlite:////a@b/runs.db"
    assert redact("") == ""


def test_login_in_the_uri_moves_to_its_own_variables():
    environment = {URI: "https://user:p%40ss@host/mlflow", "other": "kept"}
    move_credentials_to_environment(environment)
    assert environment == {
        URI: "https://host/mlflow",
        "MLFLOW_TRACKING_USERNAME": "user",
        "MLFLOW_TRACKING_PASSWORD": "p@ss",
        "other": "kept",
    }
    move_credentials_to_environment(environment)
    assert environment["MLFLOW_TRACKING_USERNAME"] == "user"


def test_process_killed_as_it_creates_a_database_leaves_none(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    code = f"from searchlight.search.tracking.mlflow_database import create_database; create_database({uri!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    wait_until(lambda: list(tmp_path.glob("*.tmp")), process)
    process.kill()
    process.wait()
    assert not (tmp_path / "mlflow.db").exists()
    for file in [*tmp_path.iterdir(), *(tmp_path / f"{file.name}-journal" for file in tmp_path.glob("*.tmp"))]:
        file.touch()
        os.utime(file, (0, 0))
    create_database(uri)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert MlflowClient(uri).search_experiments()
    create_database(uri)  # as it is there, nothing happens
    assert (tmp_path / "mlflow.db").stat().st_nlink == 1
