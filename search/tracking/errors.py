"""Errors of MLflow, and their reasons in one line."""

import re

LOGIN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
LONGEST = 200
# The informative part of the messages of urllib3 and database drivers.
TELLING = re.compile(
    r"(Connection refused|Connection reset|Connection aborted|No route to host|Network is unreachable"
    r"|Failed to resolve '[^']*'|[Rr]ead timed out|[Cc]onnect(?:ion)? timed out|timed out|CERTIFICATE_VERIFY_FAILED)"
)


class TrackingError(RuntimeError):
    """MLflow does not have all events of the search. The message says how to send them."""


class ModelError(RuntimeError):
    """The best checkpoint could not be logged as a model. The message says why, and how to try again.

    Attributes:
        cause: "trial" if the search has nothing to log, "task" if the task's code failed, "run" if MLflow does not have
            the search, else "".
    """

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause


def describe_mlflow_error(error: BaseException) -> str:
    """Return an error as the end of a sentence without passwords: "does not answer: Connection refused"."""
    status, text = get_http_status(error), error_message(error)
    if status == 401:
        return f"does not accept the login: {LOGIN} must be those of an account there"
    if status == 403:
        return f"does not let this account write: {LOGIN} must be those of one that may"
    if found := TELLING.search(text):
        return f"does not answer: {found.group(1)}"
    return f"fails: {text[:LONGEST]}"


def error_message(error: BaseException) -> str:
    """Return the message of `error` in one line, without a URL's password and SQLAlchemy's additions."""
    text = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return re.split(r" ?\[SQL:| ?\(Background on this error", text)[0]


def get_http_status(error: BaseException) -> int:
    """Return the HTTP status of an error of MLflow, or 0 of any other error."""
    status = getattr(error, "get_http_status_code", None)
    return int(status()) if status is not None else 0
