"""The data that a trial of the task `liquid` learns from."""

import functools
from pathlib import Path

from models.liquid.continual import Scenario, class_groups
from models.liquid.data import DOMAINS, SOURCES, Source, build_corpus, check_hub, load
from models.liquid.stream import stream

CORPUS = "corpus"


def absolute(data: str) -> str:
    """`data` as workers find it, who run in a folder of their own."""
    if data in SOURCES or data.startswith("hub:"):
        return data
    prefix = "idx:" if data.startswith("idx:") else ""
    return prefix + str(Path(data.removeprefix(prefix)).expanduser().absolute())


@functools.lru_cache(maxsize=128)  # it reads files, and configs are made all the time
def check(data: str, length: int, tasks: int, scenario: Scenario) -> None:
    """Whether a trial could learn from it, before a search begins.

    Raises:
        ValueError: It could not; in one line.
    """
    try:
        _check(data, length, tasks, scenario)
    except ValueError as error:
        told = str(error)
        for general, name in (("source ", "data "), ("tasks ", "continual.tasks ")):
            if told.startswith(general):
                told = name + told.removeprefix(general)
        raise ValueError(told) from error


def _check(data: str, length: int, tasks: int, scenario: Scenario) -> None:
    if data == "text":  # its corpus is not there yet
        class_groups(len(DOMAINS), tasks, "domains")
    elif data.startswith("hub:"):  # nothing is fetched before a search begins
        check_hub(data.removeprefix("hub:"))
    elif data.startswith("idx:") or data in SOURCES or Path(data).exists():
        stream(load(data, length), tasks, scenario)
    else:
        known = f"{', '.join(SOURCES)}, idx:PATH, hub:OWNER/NAME or a folder"
        raise ValueError(f"source must be {known}, but there is no {data}. Correct it.")


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
        ValueError: The corpus is not the one that was written.
    """
    return load(data, length, files / CORPUS)
