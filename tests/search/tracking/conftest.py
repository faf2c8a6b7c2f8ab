import queue

import pytest

from searchlight.search.libraries import SETTINGS
from searchlight.search.tracking.runs import Runs


@pytest.fixture(autouse=True)
def mlflow_environment(monkeypatch):
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def sent(monkeypatch):
    """The numbers of trials, each once MLflow has been told of some events."""
    numbers, send = queue.SimpleQueue(), Runs.send_events

    def send_events(runs, number, events):
        refused = send(runs, number, events)
        numbers.put(number)
        return refused

    monkeypatch.setattr(Runs, "send_events", send_events)
    return numbers
