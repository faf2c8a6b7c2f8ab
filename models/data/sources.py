"""Loads data sets by name."""

from dataclasses import replace
from pathlib import Path

from searchlight.models.data.corpus import is_corpus
from searchlight.models.data.digits import load_digits
from searchlight.models.data.hub import check_hub, load_hub
from searchlight.models.data.idx import check_idx, is_idx, load_idx
from searchlight.models.data.samples import Source
from searchlight.models.data.series import load_series
from searchlight.models.data.text import check_corpus, read_corpus

SOURCES = ("digits", "text", "series")


def load(source: str, length: int = 128, folder: Path | None = None) -> Source:
    """Load data to learn from.

    Args:
        source: "digits", "text" or "series", which need no download; "idx:PATH" with the files of MNIST or a similar
            set; the absolute path of a folder with such files, or with one text file (or one subfolder of text files)
            for each domain; or "hub:NAME", the only one that may download data.
        length: Steps of a sequence of text or of a series. Images have as many steps as rows.
        folder: The corpus of "text", written by `build_corpus`.

    Raises:
        ValueError: Its data is missing, broken or too small.
    """
    check(source, length, folder)
    return replace(_load(source, length, folder), name=source)


def check(source: str, length: int = 128, folder: Path | None = None) -> None:
    """Check that `load` can work, without loading data.

    Raises:
        ValueError: It cannot. The message has one line.
    """
    if source in ("digits", "series"):
        return
    if source == "text":
        if folder is None or not is_corpus(folder):
            raise ValueError(f"source must have a corpus to be text, but there is none in {folder}. Build it before.")
        check_corpus(folder, length)
        return

    kind, _, name = source.partition(":")
    if kind == "hub":
        check_hub(name)
        return

    path = Path(name if kind == "idx" else source)
    if kind == "idx" or is_idx(path):
        check_idx(path)
    else:
        check_corpus(path, length)


def _load(source: str, length: int, folder: Path | None) -> Source:
    if source == "digits":
        return load_digits()
    if source == "series":
        return load_series(length)
    if source == "text":
        assert folder is not None
        return read_corpus(folder, length)
    kind, _, name = source.partition(":")
    if kind == "hub":
        return load_hub(name, length)
    path = Path(name if kind == "idx" else source)
    return load_idx(path) if kind == "idx" or is_idx(path) else read_corpus(path, length)
