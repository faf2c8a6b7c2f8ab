"""The data that a trial of the task `liquid` learns from."""

import functools
from pathlib import Path

from models.liquid.continual import Scenario, class_groups
from models.liquid.data import DOMAINS, SOURCES, Source, build_corpus, load
from models.liquid.data import check as check_source
from models.liquid.task_stream import stream
from trainables.task.config import renamed_errors

CORPUS = "corpus"
NAMES = {
    "source must": "data must",
    "tasks must": "continual.tasks must",
    "a task must have": "continual.tasks must give each task",
}


def resolve_data(data: str) -> str:
    """`data` as workers find it, who run in a folder of their own.

    Raises:
        ValueError: There is no such data.
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


@functools.lru_cache(maxsize=128)  # it reads files, and configs are made all the time
def check(data: str, length: int, tasks: int, scenario: Scenario) -> None:
    """Whether a trial could learn from it, before a search begins.

    Raises:
        ValueError: It could not; in one line.
    """
    with renamed_errors(NAMES):
        if data.startswith("hub:"):
            check_source(data, length)  # nothing is fetched before a search begins
        elif data == "text":
            class_groups(len(DOMAINS), tasks, "domains")  # its corpus does not exist yet
        else:
            stream(load(data, length), tasks, scenario)


def write_corpus(files: Path) -> None:
    """Gather the text of this machine that `data=text` learns from."""
    build_corpus(files / CORPUS)


def read(data: str, length: int, files: Path) -> Source:
    """The data of a trial.

    Args:
        data: What was asked for.
        length: Steps of a sequence.
        files: What the task prepared, of which the corpus is read.

    Raises:
        ValueError: The corpus is not the one that was written, or is not there.
    """
    if data == "text" and not (files / CORPUS).is_dir():  # it would be gathered here, and be another one
        raise ValueError(
            "data must be text for the whole search, so that it is gathered before it, but there is no "
            f"{files / CORPUS}. Say --set data=text; of several nodes, all must see the folder of --storage."
        )
    return load(data, length, files / CORPUS)
