"""The data that a trial of the task `liquid` learns from."""

import functools
from pathlib import Path

from searchlight.models.data import DOMAINS, SOURCES, Source, build_corpus, load
from searchlight.models.data import check as check_source
from searchlight.models.liquid.continual import Scenario, group_classes
from searchlight.models.liquid.task_stream import build_stream
from searchlight.trainables.task.config import renamed_errors

CORPUS = "corpus"
NAMES = {
    "source must": "data must",
    "tasks must": "continual.tasks must",
    "a task must have": "continual.tasks must give each task",
}


def resolve_data(data: str) -> str:
    """Return `data` with an absolute folder, since workers run in other folders.

    Raises:
        ValueError: The folder does not exist.
    """
    if data in SOURCES or data.startswith("hub:"):
        return data
    prefix = "idx:" if data.startswith("idx:") else ""
    name = data.removeprefix(prefix)
    folder = Path(name).expanduser().absolute()
    if not name or not folder.is_dir():
        raise ValueError(
            f"must be {', '.join(SOURCES)}, hub:NAME or a folder, but got {data!r}: there is no such folder."
        )
    return f"{prefix}{folder}"


@functools.lru_cache(maxsize=128)  # it reads files, and is called for every config
def check(data: str, length: int, tasks: int, scenario: Scenario) -> None:
    """Check before a search begins that a trial can learn from the data.

    Raises:
        ValueError: It cannot.
    """
    with renamed_errors(NAMES):
        if data.startswith("hub:"):
            check_source(data, length)  # nothing is fetched before a search begins
        elif data == "text":
            group_classes(len(DOMAINS), tasks, "domains")  # its corpus does not exist yet
        else:
            build_stream(load(data, length), tasks, scenario)


def write_corpus(files: Path) -> None:
    """Collect the text corpus of this machine for `data=text`."""
    build_corpus(files / CORPUS)


def read(data: str, length: int, files: Path) -> Source:
    """Return the data of a trial.

    Args:
        data: The name or folder of the config.
        length: Steps of a sequence.
        files: The folder that the task prepared, which may hold a corpus.

    Raises:
        ValueError: The corpus is missing, or differs from the prepared one.
    """
    if data == "text" and not (files / CORPUS).is_dir():  # a corpus of this node would be another one
        raise ValueError(
            "data must be text for the whole search, not for some trials, but there is no "
            f"{files / CORPUS}. Use --set data=text. With several nodes, all must see the folder of --storage."
        )
    return load(data, length, files / CORPUS)
