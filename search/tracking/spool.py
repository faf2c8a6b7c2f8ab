"""What MLflow lacks of a search and the study has not: how the search ended, and what MLflow refused."""

import json
from collections.abc import Sequence
from pathlib import Path

from search.storage.atomic_file import write_atomic
from search.tracking.events import Event

FILE = "mlflow-unsent.jsonl"


def write_spool(folder: Path, refused: Sequence[Event], end: Event | None) -> None:
    """Write it to the folder of the search, an event a line; without any, remove what is there."""
    events = [*refused, *([end] if end else [])]
    path = folder / FILE
    if events:
        write_atomic(path, "".join(json.dumps(event) + "\n" for event in events))
    else:
        path.unlink(missing_ok=True)


def read_end(folder: Path) -> Event | None:
    """How the search ended, if MLflow has not been told. None also of one that was killed."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    events: list[Event] = [json.loads(line) for line in lines]
    return next((event for event in events if event["kind"] == "finished"), None)
