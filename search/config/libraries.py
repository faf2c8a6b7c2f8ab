"""Libraries that neither phone home nor talk over what is shown."""

import logging
import os

import optuna

SETTINGS = {
    # Nothing phones home unless the user turns it on.
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The tracker tries again by itself; MLflow's own tries would keep one call going for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A bar for each folder of artifacts.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # The study has what Tune's loggers and snapshots would write; we hear Ctrl-C ourselves.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "RAY_AIR_NEW_OUTPUT": "0",  # its banner comes even where Tune is told to be silent
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def configure_libraries() -> None:
    """Keep libraries from phoning home, from talking over the progress, and from doing twice what is done here."""
    os.environ.update({key: value for key, value in SETTINGS.items() if key not in os.environ})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    # Tune looks for the files of its own loggers, which are off, and logs an error per trial.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
