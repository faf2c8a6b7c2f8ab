"""The data that a trial of the task `liquid` learns from."""

import functools
from pathlib import Path

from models.liquid.continual import Scenario, class_groups
from models.liquid.data import DOMAINS, SOURCES, Source, build_corpus, check_hub, load
from models.liquid.stream import stream

CORPUS = "corpus"
PREFIXES = ("idx:", "hub:")


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
    if data == "text":  # its corpus is not there yet
        class_groups(len(DOMAINS), tasks, "domains")
        return
    try:
        if data.startswith("hub:"):  # nothing is fetched before a search begins
            return check_hub(data.removeprefix("hub:"))
        source = load(data, length)
    except ValueError as error:
        raise ValueError(str(error).replace("source must", "data must", 1)) from error
    stream(source, tasks, scenario)


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
