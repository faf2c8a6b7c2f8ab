"""Settings of libraries, which disable telemetry and superfluous output."""

import logging
import os

import optuna

SETTINGS = {
    # Telemetry is off unless the user enables it.
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The tracker retries calls. MLflow's own retries would block one call for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # MLflow would show a progress bar for each folder of artifacts.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # The study replaces Tune's loggers and snapshots, and the search handles Ctrl-C.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "RAY_AIR_NEW_OUTPUT": "0",  # its banner is shown even if Tune is silent
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def configure_libraries() -> None:
    """Set environment variables and log levels of Ray, MLflow and Optuna. Variables that are set stay."""
    os.environ.update({key: value for key, value in SETTINGS.items() if key not in os.environ})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    # The tracker shows errors of a database, which MLflow would log with their traceback at each try.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    # Tune looks for the files of its own loggers, which are off, and logs an error per trial.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
