"""The location of MLflow: a server, a database, or by default an SQLite file in the storage folder."""

import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from searchlight.search.errors import UsageError
from searchlight.search.libraries import configure_libraries
from searchlight.search.tracking.options import TrackingOptions
from searchlight.trainables.filesystem.paths import RemotePath, StoragePath

URI = "MLFLOW_TRACKING_URI"
USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
RULE = "must be a server, http://host:port, or a database, sqlite:///path.db or postgresql+psycopg://host/database"
SERVERS = ("http", "https")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
OTHERS = ("databricks", "databricks-uc", "uc")
CLIENTS = {"s3": "boto3", "gs": "google.cloud.storage"}  # packages with which MLflow accesses a bucket
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL")


def resolve_tracking_uri(options: TrackingOptions, environment: Mapping[str, str]) -> tuple[str, StoragePath | None]:
    """Return the tracking URI of a search, and the artifact location of a new experiment or None."""
    artifacts = options.storage / "mlartifacts"
    uri = options.tracking_uri or environment.get(URI, "")
    if not uri:
        return f"sqlite:///{options.storage / 'mlflow.db'}", artifacts
    if _get_scheme(uri) not in DATABASES:
        return uri, None
    path = get_sqlite_path(uri)
    return (f"sqlite:///{path}" if path else uri), artifacts


def move_credentials_to_environment(environment: MutableMapping[str, str]) -> None:
    """Move the login in a server's URI to its own variables, which artifact requests read, too."""
    parts = urlsplit(environment.get(URI, ""))
    if parts.scheme in SERVERS and parts.username:
        login = {USER: unquote(parts.username), PASSWORD: unquote(parts.password or "")}
        environment.update({URI: redact(environment[URI]), **{key: value for key, value in login.items() if value}})


def prepare_process() -> None:
    """Configure the libraries of this process, and move the login of MLflow's URI to its own variables."""
    configure_libraries()
    move_credentials_to_environment(os.environ)


def check_tracking(options: TrackingOptions, environment: Mapping[str, str]) -> None:
    """Raise a UsageError for an invalid tracking URI, or a tracker that is not installed.

    Send no requests, since a server may become available.
    """
    if options.tracker == "wandb" and find_spec("wandb") is None:
        raise UsageError("--tracker wandb must have the package wandb, but it is not installed. pip install wandb")
    if options.tracker == "wandb" and environment.get("WANDB_MODE") in ("online", "shared"):
        _check_wandb_login(environment)
    if options.tracker != "mlflow":
        return
    uri = options.tracking_uri or environment.get(URI, "")
    if isinstance(options.storage, RemotePath):
        _check_bucket(options.storage, uri, environment)
    if not uri:
        return
    if options.tracking_uri and redact(uri) != uri:
        kept = f"{USER} and {PASSWORD}" if _get_scheme(uri) in SERVERS else "PGPASSWORD"
        raise UsageError(
            f"tracking_uri must be without a password, but has one, and would be kept in search.yaml. "
            f"Put it into {kept}."
        )
    if problem := _find_problem(uri):
        raise UsageError(f"{'tracking_uri' if options.tracking_uri else URI} {problem}")


def _check_wandb_login(environment: Mapping[str, str]) -> None:
    """Check that W&B finds a key: it would ask for one in the terminal, where a thread of the search waits for it."""
    words = [sys.executable, "-c", "import wandb; raise SystemExit(not wandb.login(verify=False))"]
    silent = {**environment, "WANDB_SILENT": "true"}  # else it asks the server for the user's name
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=silent, check=False)
    if done.returncode:
        told = (done.stderr.strip() or "no key").splitlines()[-1].rpartition("Error: ")[2].rstrip(".")
        raise UsageError(
            f"--tracker wandb must find a login with WANDB_MODE={environment['WANDB_MODE']}, but W&B says: {told}. "
            "Use `wandb login`, WANDB_API_KEY or WANDB_MODE=offline."
        )


def _check_bucket(storage: RemotePath, uri: str, environment: Mapping[str, str]) -> None:
    """Check that MLflow can store runs and artifacts of searches in a bucket."""
    if not uri:
        raise UsageError(
            f"{URI} must name a server or a database with --storage {storage}: there is no disk for mlflow.db. "
            "Use the address of a server, http://host:5000, as in docs/cluster.md."
        )
    if _get_scheme(uri) not in DATABASES:
        return  # the server keeps the artifacts
    client = CLIENTS.get(storage.scheme, "")
    try:
        is_missing = client != "" and find_spec(client) is None
    except ModuleNotFoundError:  # its parent package
        is_missing = True
    if is_missing:
        raise UsageError(
            f"{URI} must be a server, or MLflow must have {client} to write artifacts to {storage}, but it is not "
            f"installed. pip install {client.replace('.', '-')}"
        )
    if "endpoint_override" in storage.query and not any(map(environment.get, ENDPOINTS)):
        raise UsageError(
            f"{ENDPOINTS[0]} must say where the bucket is, since MLflow's client does not know the query of {storage}."
        )


def redact(uri: str) -> str:
    """Return `uri` without its password, and a server's URI also without its user."""
    if _get_scheme(uri) in SERVERS:
        parts = urlsplit(uri)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    try:
        parsed = make_url(uri)
    except (ArgumentError, ValueError):
        return uri.rpartition("@")[2]
    secret = [key for key in parsed.query if "password" in key]
    if parsed.password is None and not secret:
        return uri
    public = parsed.difference_update_query(secret)._replace(password=None)
    return public.render_as_string(hide_password=False)


def _find_problem(uri: str) -> str:
    """Return the problem with `uri` as the end of a sentence, or ""."""
    kind, told = _get_scheme(uri), redact(uri)
    if kind in SERVERS:
        return "" if urlsplit(uri).hostname else f"must name a host, but got {told!r}. Use http://host:5000."
    if kind in DATABASES:
        return _find_database_problem(uri)
    if kind in OTHERS or uri in OTHERS or kind in {point.name for point in entry_points(group="mlflow.tracking_store")}:
        return ""
    kept = " MLflow no longer keeps runs in plain folders." if kind in ("", "file") else ""
    return f"{RULE}, but got {told!r}.{kept}"


def _find_database_problem(uri: str) -> str:
    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError) as error:
        hint = " Use postgresql+psycopg://..." if uri.startswith("postgresql:") else ""
        return f"must have a driver that is installed, but got {redact(uri)!r}: {error}.{hint}"
    except (ArgumentError, ValueError):
        return f"{RULE}, but got {redact(uri)!r}."
    if _get_scheme(uri) != "sqlite":
        return ""
    path = get_sqlite_path(uri)
    if path is None:
        return f"must name a file, as sqlite:///path.db does, but got {uri!r}."
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"must be a file that can be written, in a folder that exists, but got {uri!r}."
    return ""


def _get_scheme(uri: str) -> str:
    """Return the scheme without a driver: sqlite, http, file."""
    scheme, colon, _ = uri.partition("://") if "://" in uri else uri.partition(":")
    return scheme.partition("+")[0].lower() if colon else ""


def get_sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite database as an absolute path, since a job's working folder is deleted."""
    if _get_scheme(uri) != "sqlite":
        return None
    database = make_url(uri).database
    return None if database in (None, "", ":memory:") else Path(str(database)).expanduser().absolute()


def tracking_environment(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment with MLflow's URI. Present variables override those of the search's start."""
    return {URI: about["tracking_uri"], **os.environ}
