import pytest

from search.config import load_config
from search.errors import UsageError
from search.experiment import plan
from search.tracking.uri import check_tracking, move_credentials_to_environment, redact, resolve_tracking_uri

URI = "MLFLOW_TRACKING_URI"


def config(tmp_path, **given):
    return load_config({"task": "arc", "storage": str(tmp_path), **given})


def test_by_default_runs_and_artifacts_lie_beside_the_searches(tmp_path):
    assert resolve_tracking_uri(config(tmp_path), {}) == (f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlartifacts")


def test_a_server_keeps_artifacts_itself_and_a_database_does_not(tmp_path):
    settings = config(tmp_path)
    assert resolve_tracking_uri(settings, {URI: "http://host:5000"}) == ("http://host:5000", None)
    database = "postgresql+psycopg://host/runs"
    assert resolve_tracking_uri(settings, {URI: database}) == (database, tmp_path / "mlartifacts")


def test_a_file_is_found_from_wherever_the_search_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_tracking_uri(config(tmp_path), {URI: "sqlite:///runs.db"})[0] == f"sqlite:///{tmp_path}/runs.db"


def test_what_a_yaml_file_says_goes_before_the_environment(tmp_path):
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
def test_a_uri_that_may_work_is_taken_without_asking_anybody(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    check_tracking(config(tmp_path), {URI: uri})
    assert list(tmp_path.iterdir()) == []


RULE = "must be a server, http://host:port, or a database, sqlite:///path.db or postgresql+psycopg://host/database"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("ftp://host/runs", f"{RULE}, but got 'ftp://host/runs'."),
        ("./mlruns", f"{RULE}, but got './mlruns'. MLflow keeps no runs in plain folders any more."),
        (
            "file:///mlruns",
            f"{RULE}, but got 'file:///mlruns'. MLflow keeps no runs in plain folders any more.",
        ),
        ("file:mlruns", f"{RULE}, but got 'file:mlruns'. MLflow keeps no runs in plain folders any more."),
        ("localhost:5000", f"{RULE}, but got 'localhost:5000'."),
        ("http://", "must name a host, but got 'http://'. Say http://host:5000."),
        ("sqlite://", "must name a file, as sqlite:///path.db does, but got 'sqlite://'."),
        (
            "sqlite:////nowhere/at/all/runs.db",
            "must be a file that can be written, in a folder that exists, but got 'sqlite:////nowhere/at/all/runs.db'.",
        ),
        (
            "postgresql+none://user:secret@host/runs",
            "must have a driver that is installed, but got 'postgresql+none://user@host/runs': "
            "Can't load plugin: sqlalchemy.dialects:postgresql.none.",
        ),
    ],
)
def test_a_uri_that_cannot_work_is_refused_in_a_line(tmp_path, uri, told):
    with pytest.raises(UsageError) as error:
        check_tracking(config(tmp_path), {URI: uri})
    assert str(error.value) == f"{URI} {told}"


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("http://user:secret@host", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ("postgresql+psycopg://user:secret@host/runs", "PGPASSWORD"),
    ],
)
def test_a_password_that_a_search_would_write_down_is_refused_without_being_shown(tmp_path, uri, kept):
    with pytest.raises(UsageError) as error:
        check_tracking(config(tmp_path, tracking_uri=uri), {})
    assert str(error.value) == (
        f"tracking_uri must be without a password, but has one, and would be kept in search.yaml. Put it into {kept}."
    )


def test_a_uri_is_shown_without_a_password():
    assert redact("http://user:secret@host:5000/path") == "http://host:5000/path"
    assert redact("http://token@host:5000") == "http://host:5000"
    assert redact("postgresql://user:secret@host/runs") == "postgresql://user@host/runs"
    assert redact("postgresql://user@host/runs") == "postgresql://user@host/runs"
    assert redact("sqlite:////a@b/runs.db") == "sqlite:////a@b/runs.db"
    assert redact("") == ""


def test_a_login_in_the_uri_of_a_server_moves_to_its_own_variables():
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


def test_a_search_with_a_uri_that_cannot_work_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv(URI, "./mlruns")
    with pytest.raises(UsageError, match=f"^{URI} must be a server"):
        plan(config(tmp_path, name="one"))
    assert list(tmp_path.iterdir()) == []
