"""Why MLflow did not do what it was told, in a line."""

import re

LOGIN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
LONGEST = 200
# The part that says something to a user, in what urllib3 and the drivers of databases put around it.
TELLING = re.compile(
    r"(Connection refused|Connection reset|Connection aborted|No route to host|Network is unreachable"
    r"|Failed to resolve '[^']*'|[Rr]ead timed out|[Cc]onnect(?:ion)? timed out|timed out|CERTIFICATE_VERIFY_FAILED)"
)


def describe_mlflow_error(error: BaseException) -> str:
    """What MLflow does, as the end of a sentence: "does not answer: Connection refused". Never a password."""
    status, text = get_http_status(error), error_message(error)
    if status == 401:
        return f"does not accept the login: {LOGIN} must be those of an account there"
    if status == 403:
        return f"does not let this account write: {LOGIN} must be those of one that may"
    if found := TELLING.search(text):
        return f"does not answer: {found.group(1)}"
    return f"fails: {text[:LONGEST]}"


def error_message(error: BaseException) -> str:
    """What the error says, in one line, without the password of a URL and without what SQLAlchemy adds."""
    text = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return re.split(r" ?\[SQL:| ?\(Background on this error", text)[0]


def get_http_status(error: BaseException) -> int:
    """The HTTP status that an error of MLflow stands for; 0 of any other."""
    status = getattr(error, "get_http_status_code", None)
    return int(status()) if status is not None else 0


def is_login_error(error: BaseException) -> bool:
    """Whether it comes of the login, which is that of the environment until this process ends."""
    return get_http_status(error) in (401, 403)
